"""The rows of records that come one after another: a table on the console that grows."""

import functools
from collections.abc import Iterator, Sequence

from jaxbench.clock import duration
from jaxbench.records.schema import Conv2dRecord, DeviceRecord, EpochRecord, Record
from jaxbench.records.schema.base import Rate
from jaxbench.records.schema.measurements import Stage
from jaxbench.records.schema.training import SCORES
from jaxbench.records.writers.tables import Cell


@functools.singledispatch
def record_row(record: Record) -> Sequence[Cell]:
    """Return a record's row; most kinds have none."""
    return ()


@record_row.register
def _epoch_row(record: EpochRecord) -> list[Cell]:
    rate, digits = record.images_per_s, len(str(record.epochs))
    scale = record.loss_scale
    return [
        Cell("epoch", f"{record.epoch}/{record.epochs}", 2 * digits + 1),
        Cell("loss", f"{record.train_loss:.4f}", 6, spare=2),
        *_scores(record, "train_", "", 2),
        Cell("test loss", _form(record.eval_loss, ".4f"), spare=1),
        *_scores(record, "eval_", "test ", 0),
        *_bits(record),
        Cell(f"{noun(record.tokens_per_s)}/s", "profiled" if rate is None else f"{rate:,.1f}", 9),
        *_tokens(record.tokens_per_s),
        Cell("time", duration(record.epoch_time_s), 10),
        Cell("lr", f"{record.learning_rate:.3g}", 8, spare=3),
        *([] if scale is None else [Cell("loss scale", f"{scale:,.10g}", spare=1)]),
    ]


def _scores(record: EpochRecord, prefix: str, words: str, spare: int) -> Iterator[Cell]:
    """Yield the scores that the experiment is judged by, and their spread over several models."""
    for score, title in SCORES.items():
        name = f"{prefix}{score}"
        if getattr(record, f"train_{score}") is None and getattr(record, name) is None:
            continue
        yield Cell(f"{words}{title}", _form(getattr(record, name), ".2%"), 7, spare)
        if getattr(record, f"train_{score}_std") is not None:
            yield Cell(f"{words}std", _form(getattr(record, f"{name}_std"), ".2%"), 6, 3 * spare)
        augmented = getattr(record, f"{name}_tta", None)
        if augmented is not None:
            yield Cell("with TTA", f"{augmented:.2%}")
    # The metrics of a custom task.
    for name, value in (getattr(record, f"{prefix}metrics") or {}).items():
        yield Cell(f"{words}{name}", f"{value:.4g}", 8, spare)


def _bits(record: EpochRecord) -> Iterator[Cell]:
    if record.train_bits_per_byte is not None:
        yield Cell("test bits/byte", _form(record.eval_bits_per_byte, ".4f"), 6)


def noun(tokens: float | None) -> str:
    """Return what images are called where people read it, given their tokens or those per second.

    The records' fields speak of images: a sequence of tokens is one.
    """
    return "sequences" if tokens else "images"


def rate_in_words(images_per_s: float, tokens_per_image: int | None) -> str:
    """Return a rate of images, or of sequences and of their tokens."""
    words = f"{images_per_s:,.1f} {noun(tokens_per_image)}/s"
    return words + (
        f", {images_per_s * tokens_per_image:,.0f} tokens/s" if tokens_per_image else ""
    )


def _tokens(tokens_per_s: float | None) -> Iterator[Cell]:
    if tokens_per_s is not None:
        yield Cell("tokens/s", f"{tokens_per_s:,.0f}", 11)


def _form(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


@record_row.register
def _stage_row(record: Stage) -> list[Cell]:
    cells = [Cell("stage", record.stage, 16, align="<"), *_rate(record)]
    if getattr(record, "mfu", None) is not None:
        cells.append(Cell("MFU", f"{record.mfu:.1%}"))
    for percent in (50, 95, 99):
        latency_s = getattr(record, f"latency_p{percent}_s", None)
        if latency_s is not None:
            cells.append(Cell(f"p{percent} ms", f"{latency_s * 1e3:,.2f}"))
    return cells


@record_row.register
def _device_row(record: DeviceRecord) -> list[Cell]:
    return [
        Cell("device", f"{record.device_id}"),
        Cell("kind", record.device_kind, align="<"),
        Cell("batch", f"{record.batch_size}"),
        *_rate(record),
    ]


def _rate(record: Rate) -> list[Cell]:
    low, high = record.images_per_s_low, record.images_per_s_high
    tokens_per_s = getattr(record, "tokens_per_s", None)
    return [
        Cell(f"{noun(tokens_per_s)}/s", f"{record.images_per_s:,.1f}", 11),
        Cell("95 % interval", f"{_short(low)} to {_short(high)}", 18),
        *_tokens(tokens_per_s),
    ]


def _short(rate: float) -> str:
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"


@record_row.register
def _conv2d_row(record: Conv2dRecord) -> list[Cell]:
    return [
        *(
            Cell(f"{name}", f"{getattr(record, name)}")
            for name in ("kernel", "channels", "devices")
        ),
        Cell("compute", f"{record.compute_s * 1e3:,.2f} ms", 11),
        Cell("images/s", f"{record.images_per_s:,.0f}", 11),
    ]
