"""Fit the model of predicted rates again: `jaxbench calibrate [ROWS.csv | RUN | CARD ...]`.

Your own rates are added to those of jaxbench/analysis/published/rates.csv: rows in its columns, and
the rates of training steps in runs and cards, or in folders that have any, as for `jaxbench
report`. The fit and the errors of rows left out are written to --out; a prediction reads them with
--calibration=FILE. Without arguments the file that jaxbench ships is made again.
"""

import os

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput, as_refusal
from jaxbench.paths import user_path
from jaxbench.terminal import print_wrapped, printable, warn

_OUT = flags.DEFINE_string("out", "calibration.json", "The file to write.")


def main(paths: list[str]) -> int:
    """Fit, and write the calibration."""
    from jaxbench.predict.calibration import calibrate, save
    from jaxbench.predict.rates import read_rates

    out = user_path(_OUT.value)
    # A device or a pipe would be replaced.
    folder = out.parent
    if (out.exists() and not out.is_file()) or not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise BadInput(f"--out={out}: must be a file in a folder that exists and can be written")
    tables = [path for path in paths if _is_table(path)]
    rates, taken = [*read_rates()], [f"{len(read_rates()):,} published rates"]
    for path in tables:
        rates += (rows := read_rates(user_path(path)))
        taken.append(f"{len(rows):,} of {path}")
    if measured := [path for path in paths if path not in tables]:
        from jaxbench.modes.measured_rates import NoRate  # these import JAX
        from jaxbench.reports.rates_to_fit import rates_to_fit

        try:
            more, (words, *notes) = rates_to_fit(measured, warn)
        except NoRate as error:
            if not tables:
                raise
            more, words, notes = [], "", [str(error)]
        rates += more
        taken += filter(None, [words])
        print_wrapped(*map(printable, notes))
    print_wrapped(printable(", ".join(taken)))
    calibration = calibrate(rates, warn)
    with as_refusal(f"--out={out}"):
        save(calibration, out)
    print(f"{len(rates):,} rates; written to {out}")
    return 0


def _is_table(path: str) -> bool:
    """Return whether a path is a table of rates; a card is a .json file, a run is a folder."""
    suffix = user_path(path).suffix
    return suffix == ".csv" or (suffix != ".json" and user_path(path).is_file())


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
