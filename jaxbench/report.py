"""Make a report of runs, sweeps and cards: `jaxbench report DIR [DIR ...]`.

DIR is a run directory, a sweep's folder, a card, or a folder with some of them below it. Nothing is
measured, and nothing is changed in them.
"""

from jaxbench.cli import entry_point, price_flags
from jaxbench.cli.flag_table import define_flags
from jaxbench.errors import BadInput
from jaxbench.reports.prices import Prices
from jaxbench.reports.write import write_report
from jaxbench.terminal import printable

_OUT, _FORMAT, _TARGET_ACCURACY, _USD_PER_KWH, _SECTION, _TITLE = define_flags("report")


def main(paths: list[str]) -> int:
    """Write the report; return the exit code."""
    if not paths:
        raise BadInput(
            "give at least one DIR: a run directory, a sweep, a card, or a folder that holds any"
        )
    price_flags.check_positive("usd_per_kwh")
    out, collection = write_report(
        paths,
        _OUT.value,
        _FORMAT.value,
        title=_TITLE.value,
        prices=Prices(*price_flags.run_prices(), _USD_PER_KWH.value),
        target_accuracy=_TARGET_ACCURACY.value,
        section=_SECTION.value,
    )
    sweeps = f", {len(collection.sweeps)} sweep(s)" if collection.sweeps else ""
    cards = f", {len(collection.cards)} card(s)" if collection.cards else ""
    print(printable(f"{len(collection.runs)} run(s){sweeps}{cards}: {out}"))
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
