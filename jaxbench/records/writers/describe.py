"""The lines that a record is worth on a console."""

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.analysis.rate import Estimate, describe_steady_rate, of_windows
from jaxbench.clock import duration, rough_duration
from jaxbench.metrics import plain
from jaxbench.records.goodput import CAUSE_OF
from jaxbench.records.writers.rows import heading, noun, rate_in_words, text
from jaxbench.schema import (
    METRICS,
    SCORES,
    AllReduceRecord,
    CompileRecord,
    Conv2dSummary,
    InputSummary,
    Record,
    ScalingRecord,
    ScalingSummary,
    Summary,
    TrainSummary,
    value_of,
)
from jaxbench.tables.text import text_table

_SCALING = (
    *("scaling", "num_devices", "batch_size", "batch_per_device", "images_per_s"),
    *("images_per_s_low", "efficiency", "efficiency_low"),
)
# Phases that are shorter would be shown as 0.0 s.
SHORTEST_S = 0.05
# {phase or cause of badput: what people read}
_WORDS = {
    **{"train": "training", "eval": "evaluating", "measure": "measuring", "run": "running"},
    **{"startup": "starting up", "warm_up": "warming up"},
    **{"data_wait": "waiting for data", "checkpoint": "checkpoints", "records": "writing records"},
    **{"lost_work": "lost work", "down": "between processes", "first_step": "first step"},
}


@functools.singledispatch
def describe_record(record: Record) -> list[str]:
    """Return a record's lines; most kinds have none."""
    return []


@describe_record.register
def _describe_compile(record: CompileRecord) -> list[str]:
    if not record.memory or record.function == "eval_step":
        return []
    show = METRICS["planned_bytes_per_device"].show
    of_device = f" of {show(record.device_memory_bytes)}" if record.device_memory_bytes else ""
    total = show(record.memory["total_bytes"])
    return [f"{record.function} needs {total}{of_device} MiB on each device (XLA's estimate)"]


def _score(record: TrainSummary) -> str:
    """Return the metric that an experiment is judged by, with its spread over several models."""
    parts = []
    for name, title in SCORES.items():
        notes = {"_std": "std {:.2%}", "_tta": "{:.2%} with test-time augmentation"}
        values = {end: getattr(record, f"eval_{name}{end}", None) for end in ("", *notes)}
        if values[""] is not None:
            parts.append(f"{title} {values['']:.2%}")
            parts += [f"({n.format(values[e])})" for e, n in notes.items() if values[e] is not None]
    parts += [f"{name} {plain(value)}" for name, value in (record.eval_metrics or {}).items()]
    if record.eval_bits_per_byte is not None:
        parts.append(f"{plain(record.eval_bits_per_byte)} bits per byte")
    if not parts and record.eval_loss is not None:
        parts.append(f"loss {plain(record.eval_loss)} (the task has no top-1)")
    return " ".join(parts)


@describe_record.register
def _describe_all_reduce(record: AllReduceRecord) -> list[str]:
    share = record.share_of_weak_step
    ends = of_windows(record, "all_reduce_s").map(lambda time_s: time_s * 1e3).ends_in_words
    return [
        f"all-reduce of {record.bytes:,} bytes over {record.num_devices} devices: "
        f"{plain(record.all_reduce_s * 1e3)} ms{f' ({ends})' if ends else ''}, "
        f"bus {plain(record.bus_bytes_per_s / 1e9)} GB/s"
        + (f", {share:.1%} of the weak step" if share is not None else "")
    ]


def scaling_table(records: Sequence[ScalingRecord]) -> list[str]:
    """Return the lines of the table of a scaling run; its records have no lines of their own."""
    first = next((record for record in records if record.tokens_per_s), records[0])
    headings = [*(heading(first, name) for name in _SCALING), "equal after"]
    rows = [[*(text(record, name) for name in _SCALING), _equality(record)] for record in records]
    return text_table(headings, rows, spare=[headings[index] for index in (3, 7, 2, 5)])


def _equality(record: ScalingRecord) -> str:
    if record.status != "done":
        return record.status
    steps = f"{record.steps} steps"
    return {None: "", True: steps, False: f"DIFFER ({steps})"}[record.replicas_equal_after_steps]


@describe_record.register
def _describe_summary(record: Summary) -> list[str]:
    """Return the result, where the time went, and what to be careful about."""
    total_s, results, details = record.wall_s, [], []
    if isinstance(record, TrainSummary):
        details = _describe_training(record)
        if record.eval_count is not None:
            tested = f"{record.eval_count:,} test {noun(record.tokens_per_image)}"
            results.append(f"{_score(record)} of {tested}")
        results.append(_training_rate(record))
        if total_s is not None:
            total_s = record.total_wall_s or total_s + (record.import_s or 0.0)
    elif isinstance(record, ScalingSummary):
        details = _describe_scaling(record)
    elif isinstance(record, Conv2dSummary):
        details = record.findings
    elif isinstance(record, InputSummary) and record.verdict:
        details = [record.verdict]
    ending = record.status
    if total_s is not None:
        ending += f" {'in' if ending == 'done' else 'after'} {rough_duration(total_s)}"
    problems = [f"invalid: {line}" for line in record.invalid]
    problems += [f"warning: {line}" for line in _join_stages(record.warnings)]
    result = "; ".join(filter(None, results))
    ending += f": {result}" if result else ""
    return [ending, *details, *_costs(record), *_times(record), *problems]


def _join_stages(warnings: Sequence[str]) -> list[str]:
    """Return the warnings, one for all stages whose windows have the same fault."""
    stages: dict[str, list[str]] = {}
    for line in warnings:
        stage, windows, fault = line.rpartition(": windows ")
        stages.setdefault(windows + fault, []).append(stage)
    return [", ".join(filter(None, names)) + fault for fault, names in stages.items()]


def _describe_training(record: TrainSummary) -> list[str]:
    lines = []
    models: Sequence[Mapping[str, Any]] = record.eval_models or ()
    for model in models:
        scores = [f"{SCORES[name]} {model[name]:.2%}" for name in SCORES if name in model]
        scores = scores or [f"{name} {plain(v)}" for name, v in model.items() if name != "seed"]
        lines.append(f"seed {model['seed']}: {', '.join(scores)}")
    if record.skipped_steps:
        lines.append(
            f"{record.skipped_steps:,} steps were skipped because they overflowed float16; "
            f"the loss scale is {record.loss_scale:,.10g}"
        )
    if record.target_accuracy:
        lines.append(_target(record.target_accuracy))
    if record.diverged_seeds:
        lost = ", ".join(map(str, record.diverged_seeds))
        lines.append(f"diverged: seed {lost} (counted in the mean)")
    return lines


def _training_rate(record: TrainSummary) -> str:
    """Return the steady rate, or that of the whole run; nothing without either."""
    if not (record.steady_epochs and record.images_per_s):
        rate = record.images_per_s_whole_run
        return f"{rate_in_words(rate, record.tokens_per_image)} over the whole run" if rate else ""
    ends = (record.images_per_s_low, record.images_per_s_high)
    span: Any = record.images_per_s_range
    rate = Estimate(record.images_per_s, *ends, record.steady_epochs)._replace(range=span)
    per_device = record.images_per_s_per_device  # None if other devices took part
    is_of_several = per_device not in (None, record.images_per_s)
    return (
        f"{rate_in_words(record.images_per_s, record.tokens_per_image)} ("
        + (f"{plain(per_device)} per device; " if is_of_several else "")
        + f"{describe_steady_rate(rate)})"
    )


def _target(target: Mapping[str, Any]) -> str:
    line = f"{SCORES.get(target['score'], target['score'])} of {target['value']:.2%} "
    if target["reached"]:
        line += (
            f"reached in epoch {target['epoch']}, {duration(target['time_s'])} from the start "
            f"({target['train_time_s']:.2f} s of training, {target['epochs_time_s']:.2f} s with "
            "evaluations)"
        )
    else:
        line += "never reached"
    return line + (f" for {plain(target['usd'])} USD" if target["usd"] is not None else "")


def _describe_scaling(record: ScalingSummary) -> list[str]:
    lines = []
    exchange, devices = record.exchange, record.devices
    images = noun(record.tokens_per_image)
    if exchange and exchange["num_devices"] > 1:
        counts = [
            f"{count['count']} {name} of {count['bytes']:,} bytes (the largest "
            f"{count['largest_bytes']:,})"
            for name, count in exchange["collectives"].items()
        ]
        lines.append(
            f"a step on {exchange['num_devices']} devices has "
            f"{', '.join(counts) or 'no collective'}; "
            f"its gradient has {exchange['gradient_bytes']:,} bytes"
        )
    if devices and devices["slowest"] != devices["fastest"]:
        slowest, fastest = devices["slowest"], devices["fastest"]
        lines.append(
            f"device {slowest['device_id']} ({slowest['device_kind']}) takes "
            f"{devices['slowest_over_fastest']:.3f} times as long as device {fastest['device_id']} "
            f"({fastest['device_kind']}) for the same batch"
            + (": it bounds every step" if devices["differ"] else ": no significant difference")
        )
        lines.append(
            f"at best: {plain(devices['even_split_images_per_s'])} {images}/s split evenly, "
            f"{plain(devices['uneven_split_images_per_s'])} split by what each can do"
        )
    predictions = record.predictions
    if devices and devices["slowest"]["device_kind"] == "cpu":
        # What simulated devices were measured to exchange predicts nothing.
        predictions = [one for one in predictions if one["link_source"].startswith("stated")]
    return lines + _predictions(predictions, images)


def _predictions(predictions: Sequence[Mapping[str, Any]], images: str) -> list[str]:
    lines = [
        f"PREDICTED, weak, {line['num_devices']:>4} devices: "
        f"{plain(line['images_per_s_no_overlap'])} to {plain(line['images_per_s_full_overlap'])} "
        f"{images}/s, {line['efficiency_no_overlap']:.1%} to {line['efficiency_full_overlap']:.1%}"
        for line in predictions
    ]
    for first in predictions[:1]:
        lines.append(
            "PREDICTED without and with full overlap of the all-reduce, from a step of "
            f"{plain(first['one_device_step_s'] * 1e3)} ms, {first['gradient_bytes']:,} bytes of "
            f"gradient and {plain(first['link_bytes_per_s'] / 1e9)} GB/s ({first['link_source']}); "
            f"assuming {first['assumptions']}"
        )
    return lines


def _costs(record: Summary) -> list[str]:
    lines = []
    if record.usd is not None:
        lines.append(f"cost: {plain(record.usd)} USD")
    telemetry: Mapping[str, Any] = record.telemetry or {}
    if telemetry.get("joules_per_image") is not None:
        lines.append(
            f"energy: {plain(telemetry['joules_per_image'])} J an image, "
            f"{plain(telemetry['images_per_kwh'])} images/kWh over {telemetry['measured_s']:.1f} s"
            f"; {telemetry['energy_covers']}"
        )
    return lines


def _times(record: Summary) -> list[str]:
    """Return where the time of a run went, the longest first; of one process the largest parts."""
    lines, title = [], "time"
    spent_s: dict[str, float] = collections.defaultdict(float)
    if profile := value_of(record, "profile"):
        lines.append(
            f"steps {profile['first_step']} to {profile['last_step']} are traced in "
            f"{profile['folder']}/ ({profile['bytes'] / 1e6:.1f} MB)"
        )
    if isinstance(record, TrainSummary) and record.num_resumes and record.goodput is not None:
        title = f"time of {record.num_resumes + 1} processes (goodput {record.goodput:.1%})"
        spent_s |= record.badput_s or {}
        spent_s["train"] = record.goodput * (record.total_wall_s or 0.0)
    else:
        spent_s["startup"] = value_of(record, "import_s") or 0.0
        for phase, phase_s in (record.phases_s or {}).items():
            spent_s[CAUSE_OF.get(phase, phase)] += phase_s
        total_s = sum(spent_s.values())
        rest_s = sum(spent_s.pop(cause) for cause in [*spent_s] if spent_s[cause] < total_s / 20)
        spent_s["other"] += rest_s
    cached = " (cached)" * (value_of(record, "compile_cache") == "hit")
    words = _WORDS | {"compile": f"compiling{cached}"}
    spent = [
        f"{words.get(cause, cause)} {rough_duration(cause_s)}"
        for cause, cause_s in sorted(spent_s.items(), key=lambda item: -item[1])
        if cause_s >= SHORTEST_S
    ]
    return [*lines, f"{title}: {', '.join(spent)}"] if spent else lines
