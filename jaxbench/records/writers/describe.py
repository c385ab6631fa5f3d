"""The lines that a record is worth on a console."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.clock import duration
from jaxbench.records.schema import (
    AllReduceRecord,
    CompileRecord,
    Conv2dRecord,
    DeviceRecord,
    EpochRecord,
    InputRecord,
    Record,
    ScalingRecord,
    ScalingSummary,
    Summary,
    ThroughputRecord,
    TrainSummary,
)
from jaxbench.records.schema.base import Rate
from jaxbench.records.writers.tables import text_table

# The figure that each kind of training is judged by, and its name for people.
_SCORES = {"top1": "top-1", "dice": "Dice"}
_SCALING_HEADINGS = (
    *("scaling", "devices", "batch", "each", "images/s", "95 % interval"),
    *("efficiency", "interval", "replicas"),
)


@functools.singledispatch
def describe_record(record: Record) -> list[str]:
    """Return a record's lines; most kinds have none."""
    return []


@describe_record.register
def _describe_compile(record: CompileRecord) -> list[str]:
    if not record.memory:
        return []
    limit = record.device_memory_bytes
    return [
        f"{record.function}: estimated memory (XLA) on each device: "
        f"{record.memory['total_bytes'] / 2**20:,.1f} MiB"
        + (f" of {limit / 2**20:,.0f}" if limit else "")
    ]


@describe_record.register
def _describe_epoch(record: EpochRecord) -> list[str]:
    rate = record.images_per_s
    parts = [
        f"epoch {record.epoch:>3}/{record.epochs}",
        f"{duration(record.epoch_time_s):>8}",
        "profiled" if rate is None else f"{rate:>9,.1f} images/s",
        f"train loss {record.train_loss:.4f} {_score(record, 'train_')}",
    ]
    if record.eval_count is not None:
        parts.append(
            f"test loss {record.eval_loss:.4f} {_score(record, 'eval_')} of {record.eval_count:,}"
        )
    parts.append(f"lr {record.learning_rate:.4g}")
    if record.loss_scale is not None:
        parts.append(f"loss scale {record.loss_scale:,.10g}")
    return ["  ".join(parts)]


def _score(record: EpochRecord | TrainSummary, prefix: str) -> str:
    """Return the figure that an experiment is judged by, with its spread over several models."""
    figures = {
        name.removeprefix(prefix): value
        for name, value in vars(record).items()
        if name.startswith(prefix) and value is not None
    }
    [name] = [name for name in _SCORES if name in figures]
    text = f"{_SCORES[name]} {figures[name]:7.2%}"
    if f"{name}_std" in figures:
        text += f" (std {figures[f'{name}_std']:.2%})"
    if f"{name}_tta" in figures:
        text += f" ({figures[f'{name}_tta']:.2%} with test-time augmentation)"
    return text


@describe_record.register
def _describe_conv2d(record: Conv2dRecord) -> list[str]:
    return [
        f"kernel {record.kernel:>2}  channels {record.channels:>2}  {record.devices:>2} device(s)  "
        f"compute {record.compute_s * 1e3:,.2f} ms  {record.images_per_s:,.0f} images/s"
    ]


@describe_record.register
def _describe_input(record: InputRecord) -> list[str]:
    return [f"{record.stage:<17} {record.images_per_s:>10,.1f} images/s  {_interval(record)}"]


@describe_record.register
def _describe_throughput(record: ThroughputRecord) -> list[str]:
    line = f"{record.stage:<17} {record.images_per_s:>10,.1f} images/s  {_interval(record)}"
    if record.mfu is not None:
        line += f"  MFU {record.mfu:.1%}"
    if record.latency_p50_s is not None:
        line += (
            f"  latency p50 {record.latency_p50_s * 1e3:,.2f}, "
            f"p95 {record.latency_p95_s * 1e3:,.2f}, p99 {record.latency_p99_s * 1e3:,.2f} ms"
        )
    return [line]


@describe_record.register
def _describe_device(record: DeviceRecord) -> list[str]:
    return [
        f"device {record.device_id} ({record.device_kind}) alone, batch {record.batch_size}: "
        f"{record.images_per_s:,.1f} images/s  {_interval(record)}"
    ]


def _interval(record: Rate) -> str:
    low, high = record.images_per_s_low, record.images_per_s_high
    return f"(95 % interval {low:,.1f} to {high:,.1f})"


@describe_record.register
def _describe_all_reduce(record: AllReduceRecord) -> list[str]:
    share = record.share_of_weak_step
    return [
        f"all-reduce of {record.bytes:,} bytes over {record.num_devices} devices: "
        f"{record.all_reduce_s * 1e3:,.3f} ms  (95 % interval "
        f"{record.all_reduce_s_low * 1e3:,.3f} to {record.all_reduce_s_high * 1e3:,.3f}), "
        f"bus {record.bus_bytes_per_s / 1e9:,.2f} GB/s"
        + (f", {share:.1%} of the weak step" if share is not None else "")
    ]


def scaling_table(records: Sequence[ScalingRecord]) -> list[str]:
    """Return the lines of the table of a scaling run; its records have no lines of their own."""
    return text_table(_SCALING_HEADINGS, [_scaling_row(record) for record in records])


def _scaling_row(record: ScalingRecord) -> list[str]:
    rate, share, equal = record.images_per_s, record.efficiency, record.replicas_equal_after_steps
    row = [record.scaling, f"{record.num_devices}", f"{record.batch_size}"]
    row.append(f"{record.batch_per_device}")
    if rate is None:
        return [*row, record.status, *4 * [""]]
    row += [f"{rate:,.1f}", f"{record.images_per_s_low:,.1f} to {record.images_per_s_high:,.1f}"]
    if share is None:
        row += ["unknown", ""]
    else:
        row += [f"{share:.1%}", f"{record.efficiency_low:.1%} to {record.efficiency_high:.1%}"]
    compared = f"{'equal' if equal else 'DIFFER'} after {record.steps} steps"
    return [*row, "" if equal is None else compared]


@describe_record.register
def _describe_summary(record: Summary) -> list[str]:
    return [*_outcome(record), *_costs(record), *_problems(record), *_times(record)]


@functools.singledispatch
def _outcome(record: Summary) -> list[str]:
    """Return what the mode's own summary says, its first line how the run ended."""
    return [_ending(record)]


def _ending(record: Summary) -> str:
    return record.status + ("" if record.wall_s is None else f" after {duration(record.wall_s)}")


@_outcome.register
def _train_outcome(record: TrainSummary) -> list[str]:
    lines = [_ending(record)]
    if record.eval_count is not None:
        score = " ".join(_score(record, "eval_").split())
        lines[0] += f": {score} of {record.eval_count:,} test images"
    for model in record.eval_models or ():
        [name] = [name for name in _SCORES if name in model]
        lines.append(f"seed {model['seed']}: {_SCORES[name]} {model[name]:.2%}")
    lines += _epochs(record)
    if record.skipped_steps:
        lines.append(
            f"{record.skipped_steps:,} steps were skipped because they overflowed float16; "
            f"the loss scale is {record.loss_scale:,.10g}"
        )
    if record.target:
        lines.append(_target(record.target))
    if record.diverged_seeds:
        lost = ", ".join(map(str, record.diverged_seeds))
        lines.append(f"diverged: seed {lost} (counted in the mean)")
    return lines


def _epochs(record: TrainSummary) -> list[str]:
    lines = []
    first_s, median_s = record.first_epoch_s, record.median_epoch_s
    if first_s is not None or median_s is not None:
        lines.append(
            f"compile {record.compile_s:.1f} s"
            + (" (compilation cache hit)" if record.compile_cache == "hit" else "")
            + (f", first epoch {first_s:.2f} s" if first_s is not None else "")
            + (f", median of the later {median_s:.2f} s" if median_s is not None else "")
            + f", {record.images_per_s:,.1f} images/s"
            + f" ({record.images_per_s_per_device:,.1f} per device)"
        )
    if record.epochs_done:
        lines.append(
            f"training {record.train_time_s:.2f} s, evaluating {record.eval_time_s:.2f} s; "
            f"before them, data to the devices {record.phases_s.get('place_data', 0):.2f} s"
        )
        if "init_from_images" in record.phases_s:
            lines[-1] += f", looking at images {record.phases_s['init_from_images']:.2f} s"
    return lines


def _target(target: Mapping[str, Any]) -> str:
    line = f"{_SCORES[target['score']]} of {target['value']:.2%} "
    if target["reached"]:
        line += (
            f"reached in epoch {target['epoch']}, {duration(target['time_s'])} from the start "
            f"({target['train_time_s']:.2f} s of training, {target['epochs_time_s']:.2f} s with "
            "evaluations)"
        )
    else:
        line += "never reached"
    return line + (f" for {target['usd']:,.4f} USD" if target["usd"] is not None else "")


@_outcome.register
def _scaling_outcome(record: ScalingSummary) -> list[str]:
    lines = [_ending(record)]
    exchange, found = record.exchange, record.devices
    if exchange and exchange["num_devices"] > 1:
        told = [
            f"{count['count']} {name} of {count['bytes']:,} bytes (the largest "
            f"{count['largest_bytes']:,})"
            for name, count in exchange["collectives"].items()
        ]
        lines.append(
            f"a step on {exchange['num_devices']} devices has {', '.join(told) or 'no collective'};"
            f" its gradient has {exchange['gradient_bytes']:,} bytes"
        )
    if found and found["slowest"] != found["fastest"]:
        slowest, fastest = found["slowest"], found["fastest"]
        lines.append(
            f"device {slowest['device_id']} ({slowest['device_kind']}) takes "
            f"{found['slowest_over_fastest']:.3f} times as long as device {fastest['device_id']} "
            f"({fastest['device_kind']}) for the same batch"
            + (": it bounds every step" if found["differ"] else ": no significant difference")
        )
        lines.append(
            f"at best: {found['even_split_images_per_s']:,.1f} images/s split evenly, "
            f"{found['uneven_split_images_per_s']:,.1f} split by what each can do"
        )
    return lines + _predictions(record.predictions)


def _predictions(predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"PREDICTED, weak, {line['num_devices']:>4} devices: "
        f"{line['images_per_s_no_overlap']:,.0f} to {line['images_per_s_full_overlap']:,.0f} "
        f"images/s, efficiency {line['efficiency_no_overlap']:.1%} (nothing overlaps) to "
        f"{line['efficiency_full_overlap']:.1%} (all that can)"
        for line in predictions
    ]
    for first in predictions[:1]:
        lines.append(
            f"PREDICTED from a step of {first['one_device_step_s'] * 1e3:,.3f} ms, "
            f"{first['gradient_bytes']:,} bytes of gradient and "
            f"{first['link_bytes_per_s'] / 1e9:,.2f} GB/s, {first['link_source']}; assuming "
            f"{first['assumptions']}"
        )
    return lines


def _costs(record: Summary) -> list[str]:
    lines = []
    if record.usd is not None:
        lines.append(f"the whole run: {record.usd:,.4f} USD")
    telemetry = record.telemetry or {}
    if telemetry.get("joules_per_image") is not None:
        lines.append(
            f"energy: {telemetry['joules_per_image']:.4g} J an image, "
            f"{telemetry['images_per_kwh']:,.0f} images/kWh over {telemetry['measured_s']:.1f} s"
            + ("" if telemetry["energy_window_long_enough"] else " (too short for the sampling)")
            + f"; {telemetry['energy_covers']}"
        )
    return lines


def _problems(record: Summary) -> list[str]:
    lines = []
    if record.corrupt:
        lines.append(f"{len(record.corrupt)} corrupt images left out (run.json names them)")
    lines += [f"invalid: {line}" for line in record.invalid]
    return lines + [f"warning: {line}" for line in record.warnings]


def _times(record: Summary) -> list[str]:
    lines = []
    if profile := getattr(record, "profile", None):
        lines.append(
            f"steps {profile['first_step']} to {profile['last_step']} are traced in "
            f"{profile['folder']}/ ({profile['bytes'] / 1e6:.1f} MB)"
        )
    if isinstance(record, TrainSummary) and record.startup_s is not None:
        lines.append(
            f"start-up: {record.startup_s:.2f} s from the process's start to its first step's "
            f"end; {record.import_s:.2f} s of it (imports) come before the times below"
        )
    phases_s = sorted((record.phases_s or {}).items(), key=lambda item: -item[1])
    if phases_s:
        lines.append("time: " + ", ".join(f"{name} {spent_s:.1f} s" for name, spent_s in phases_s))
    return lines
