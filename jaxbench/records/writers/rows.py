"""The rows of records that come one after another: a table on the console that grows."""

from collections.abc import Iterator

from jaxbench.metrics import plain
from jaxbench.schema import METRICS, Record, column_heading, shown_in, value_of
from jaxbench.tables.text import TextCell

# On a narrow terminal columns with a high number are left out first.
_SPARE = {
    **dict.fromkeys(("train_top1_std", "train_dice_std"), 6),
    **dict.fromkeys(("train_loss", "train_top1", "train_dice", "train_metrics"), 2),
    **{"learning_rate": 3, "eval_loss": 1, "loss_scale": 1},
}
_WIDTHS = {"stage": 16, "images_per_s_low": 18}


def record_row(record: Record) -> list[TextCell]:
    """Return a record's row; most kinds have none."""
    return [cell for name in shown_in(record.kind) for cell in _cells(record, name)]


def _cells(record: Record, name: str) -> Iterator[TextCell]:
    value, spare = getattr(record, name), _SPARE.get(name, 0)
    if name.endswith("_metrics"):
        words = {"train_metrics": "train", "eval_metrics": "test"}[name]
        for metric, number in (value or {}).items():
            yield TextCell(f"{words} {metric}", plain(number), 8, spare)
        return
    # An epoch without an evaluation, or with profiled steps, has empty cells: the columns stay.
    in_training = name.replace("eval_", "train_")
    if value is None and in_training in METRICS:
        value = value_of(record, in_training)
    if value is not None or name == "images_per_s":
        width = (
            2 * len(f"{value_of(record, 'epochs')}") + 1
            if name == "epoch"
            else _WIDTHS.get(name, 7)
        )
        align = "<" if METRICS[name].unit == "text" else ">"
        yield TextCell(heading(record, name), text(record, name), width, spare, align)


def heading(record: Record, name: str) -> str:
    """Return the heading of a metric's column."""
    return column_heading(name).replace("images", noun(value_of(record, "tokens_per_s")))


def text(record: Record, name: str) -> str:
    """Return a metric as people read it: with the number of epochs, or the interval's other end."""
    value, show = getattr(record, name), METRICS[name].show
    if value is None:
        return ""
    if name.endswith("_low"):
        return f"{show(value)} to {show(getattr(record, name.removesuffix('low') + 'high'))}"
    return f"{value}/{value_of(record, 'epochs')}" if name == "epoch" else show(value)


def noun(tokens: float | None) -> str:
    """Return what images are called where people read it, given their tokens or those per second.

    The records' fields speak of images: a sequence of tokens is one.
    """
    return "sequences" if tokens else "images"


def rate_in_words(images_per_s: float, tokens_per_image: int | None) -> str:
    """Return a rate of images, or of sequences and of their tokens."""
    tokens = tokens_per_image and f", {plain(images_per_s * tokens_per_image)} tokens/s"
    return f"{plain(images_per_s)} {noun(tokens_per_image)}/s{tokens or ''}"
