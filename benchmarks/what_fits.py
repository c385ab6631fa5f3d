"""Print which experiments fit which cards: the largest batch, and the rate to expect there.

    python benchmarks/what_fits.py [--experiment=NAME,NAME]

A table in Markdown, that of docs/what-fits.md. The memory is estimated from the network's layers,
as if the compiler recomputed nothing; the rates are predicted from published ones. Nothing is
compiled. Takes about a minute on a quiet core.
"""

from absl import flags

from jaxbench.cli import entry_point, registry
from jaxbench.config import Config
from jaxbench.hardware.targets.target import Target, parse_target
from jaxbench.metrics import plain
from jaxbench.modes.measured_rates import unlike_published
from jaxbench.modes.predictions import Predictor
from jaxbench.predict.calibration import Calibration, load
from jaxbench.predict.layers import NetworkShape
from jaxbench.predict.prediction import NotPredicted, predict, setting_of
from jaxbench.records.writers.rows import noun

_EXPERIMENT = flags.DEFINE_list("experiment", [], "Only these experiments; all if empty.")
# A card of each size.
CARDS = {"8 GB": "rtx3070", "16 GB": "rtx4080", "24 GB": "rtx4090", "40 GB": "a100-40gb"}
CARDS |= {"80 GB": "h100"}
# The largest batch shown, in batches of the experiment: a larger one would train differently.
_MOST_TIMES = 8


def describe(config: Config, shape: NetworkShape, target: Target, calibration: Calibration) -> str:
    """Return a cell: the largest power of two that fits as a batch, and the predicted rate."""
    try:
        setting = setting_of(shape, target, config.precision, 1)
    except NotPredicted:
        return f"no {config.precision}"
    free = target.usable_bytes - shape.state_bytes
    fits = int(free / shape.kept_bytes(setting.element_bytes))
    if fits < 1:
        return "does not fit"
    batch = 2 ** (min(fits, _MOST_TIMES * config.batch_size).bit_length() - 1)
    size = f"{batch:,}" if batch >= config.batch_size else f"**{batch:,}**"
    try:
        rate = predict(setting._replace(batch=batch), calibration).rate.value
    except NotPredicted:
        return size
    return f"{size}: {plain(rate)}/s"


def lines(names: list[str]) -> list[str]:
    """Return the table's lines; experiments of the same network in the same precision share one."""
    calibration, rows = load(), {}
    for name in names:
        config = registry.load(name)
        if not isinstance(config, Config):
            continue
        if unlike_published(vars(config), parse_target("gpu:h100")):
            continue  # its memory is not estimated either
        predictor = Predictor(config)
        what = noun(config.data.sequence_length)
        cells = [f"{config.batch_size:,} {what}, {config.precision}"]
        for card in CARDS.values():
            shape, _ = predictor.trace(target := parse_target(f"gpu:{card}"))
            cells.append(describe(config, shape, target, calibration))
        rows.setdefault(tuple(cells), []).append(f"`{name}`")
    heads = [f"{size}: `{card}`" for size, card in CARDS.items()]
    table = [["experiment", "its batch", *heads], ["---"] * (len(heads) + 2)]
    table += [[", ".join(same), *cells] for cells, same in rows.items()]
    return [f"| {' | '.join(row)} |" for row in table]


def main(_) -> None:
    print("\n".join(lines(_EXPERIMENT.value or [*registry.available()])))


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
