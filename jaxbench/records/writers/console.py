"""What a person watching sees: a live bar in a terminal, plain lines in a log file."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from jaxbench.clock import Stopwatch
from jaxbench.distributed import coordination

# The figure that each kind of training is judged by, and what people call it.
_SCORES = {"top1": "top-1", "dice": "Dice"}
# Without a terminal there is no bar: one line of progress every so often.
_PLAIN_INTERVAL_S = 10.0
# Above the lines of `scaling` records.
SCALING_HEADER = (
    f"{'scaling':<7} {'devices':>7} {'batch':>7} {'each':>6} {'images/s':>11}  "
    f"{'(95 % interval)':<26} {'efficiency':>10}  {'(interval)':<18} replicas"
)


class Console(Protocol):
    """A writer that also announces slow phases and shows progress inside an epoch."""

    def say(self, line: str) -> None: ...

    def phase(self, name: str) -> contextlib.AbstractContextManager: ...

    def progress(self, title: str, done: int, total: int, status: str) -> None: ...

    def write(self, record: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def create_console(stream=None) -> Console:
    """Returns the live console for a terminal, the plain one otherwise.

    In any process but the first of a run, one that says nothing.
    """
    if not coordination.is_primary():
        return PlainConsole(None)
    stream = stream or sys.stdout
    return RichConsole() if stream.isatty() else PlainConsole(stream)


class PlainConsole:
    """One line an event, flushed; none where there is no stream."""

    def __init__(self, stream):
        self._stream = stream
        self._since_progress = Stopwatch()

    def say(self, line: str) -> None:
        if self._stream is None:
            return
        # A reader that has gone away (`| head`) does not end the run.
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._stream, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        self.say(f"{name} ...")
        yield
        self.say(f"{name}: {watch.elapsed_s():.1f} s")

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        if self._since_progress.elapsed_s() >= _PLAIN_INTERVAL_S:
            self._since_progress = Stopwatch()
            self.say(f"{title}  {done}/{total}  {status}")

    def write(self, record: Mapping[str, Any]) -> None:
        for line in describe_record(record):
            self.say(line)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        pass


class RichConsole:
    """The same lines, with a spinner or a bar below them that goes away when it is done."""

    def __init__(self):
        from rich.console import Console

        self._console = Console(highlight=False)
        self._bar = None

    def say(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(line), soft_wrap=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        watch = Stopwatch()
        self._drop_bar()
        with self._console.status(f"{name} ..."):
            yield
        self.say(f"{name}: {watch.elapsed_s():.1f} s")

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed}/{task.total}  {task.fields[status]}"),
                console=self._console,
                transient=True,
            )
            self._bar.add_task(title, total=total, status=status)
            self._bar.start()
        [task] = self._bar.tasks
        self._bar.update(task.id, description=title, completed=done, total=total, status=status)

    def _drop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def write(self, record: Mapping[str, Any]) -> None:
        for line in describe_record(record):
            self.say(line)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        self._drop_bar()


def describe_record(record: Mapping[str, Any]) -> list[str]:
    """Returns the lines that a record is worth on a console; most are worth none."""
    if record["kind"] == "epoch":
        rate = record["images_per_s"]
        parts = [
            f"epoch {record['epoch']:>3}/{record['epochs']}",
            f"{duration(record['epoch_time_s']):>8}",
            "profiled" if rate is None else f"{rate:>9,.1f} images/s",
            f"train loss {record['train_loss']:.4f} {_score(record, 'train_')}",
        ]
        if "eval_count" in record:
            parts.append(
                f"test loss {record['eval_loss']:.4f} {_score(record, 'eval_')}"
                f" of {record['eval_count']:,}"
            )
        parts += [
            f"lr {record['learning_rate']:.4g}",
        ]
        if "loss_scale" in record:
            parts.append(f"loss scale {record['loss_scale']:,.10g}")
        return ["  ".join(parts)]
    if record["kind"] == "conv2d":
        return [
            f"kernel {record['kernel']:>2}  channels {record['channels']:>2}  "
            f"{record['devices']:>2} device(s)  compute {record['compute_s'] * 1e3:,.2f} ms  "
            f"{record['images_per_s']:,.0f} images/s"
        ]
    if record["kind"] == "input":
        return [
            f"{record['stage']:<17} {record['images_per_s']:>10,.1f} images/s  (95 % interval "
            f"{record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
        ]
    if record["kind"] == "scaling":
        return [_scaling_row(record)]
    if record["kind"] == "device":
        return [
            f"device {record['device_id']} ({record['device_kind']}) alone, batch "
            f"{record['batch_size']}: {record['images_per_s']:,.1f} images/s  (95 % interval "
            f"{record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
        ]
    if record["kind"] == "all_reduce":
        share = record["share_of_weak_step"]
        return [
            f"all-reduce of {record['bytes']:,} bytes over {record['num_devices']} "
            f"devices: {record['all_reduce_s'] * 1e3:,.3f} ms  (95 % interval "
            f"{record['all_reduce_s_low'] * 1e3:,.3f} to {record['all_reduce_s_high'] * 1e3:,.3f}),"
            f" bus {record['bus_bytes_per_s'] / 1e9:,.2f} GB/s"
            + (f", {share:.1%} of the weak step" if share is not None else "")
        ]
    if record["kind"] == "throughput":
        line = (
            f"{record['stage']:<17} {record['images_per_s']:>10,.1f} images/s  (95 % interval "
            f"{record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
        )
        if record["mfu"] is not None:
            line += f"  MFU {record['mfu']:.1%}"
        if "latency_p50_s" in record:
            line += (
                f"  latency p50 {record['latency_p50_s'] * 1e3:,.2f}, "
                f"p95 {record['latency_p95_s'] * 1e3:,.2f}, "
                f"p99 {record['latency_p99_s'] * 1e3:,.2f} ms"
            )
        return [line]
    if record["kind"] == "compile" and record["memory"]:
        planned = f"{record['memory']['total_bytes'] / 2**20:,.1f} MiB"
        limit = record["device_memory_bytes"]
        of = f" of {limit / 2**20:,.0f}" if limit else ""
        return [f"{record['function']} is planned to take {planned}{of} on each device"]
    if record["kind"] == "summary":
        return _describe_summary(record)
    return []


def _scaling_row(record: Mapping[str, Any]) -> str:
    row = (
        f"{record['scaling']:<7} {record['num_devices']:>7} {record['batch_size']:>7} "
        f"{record['batch_per_device']:>6} "
    )
    if record["images_per_s"] is None:
        return row + f"{record['status']:>11}"
    interval = f"({record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
    row += f"{record['images_per_s']:>11,.1f}  {interval:<26} "
    if record["efficiency"] is None:
        row += f"{'unknown':>10}  {'':<18} "
    else:
        interval = f"({record['efficiency_low']:.1%} to {record['efficiency_high']:.1%})"
        row += f"{record['efficiency']:>10.1%}  {interval:<18} "
    equal = record["replicas_equal_after_steps"]
    if equal is not None:
        row += f"{'equal' if equal else 'DIFFER'} after {record['steps']} steps"
    return row.rstrip()


def _describe_scaling(record: Mapping[str, Any]) -> list[str]:
    """What a scaling run's summary says below its table."""
    lines = []
    exchange = record.get("exchange")
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
    found = record.get("devices")
    if found and found["slowest"] != found["fastest"]:
        slowest, fastest = found["slowest"], found["fastest"]
        lines.append(
            f"device {slowest['device_id']} ({slowest['device_kind']}) takes "
            f"{found['slowest_over_fastest']:.3f} times as long as device {fastest['device_id']} "
            f"({fastest['device_kind']}) for the same share"
            + (": it bounds every step" if found["differ"] else ": no difference can be told")
        )
        lines.append(
            f"at best: {found['even_split_images_per_s']:,.1f} images/s split evenly, "
            f"{found['uneven_split_images_per_s']:,.1f} split by what each can do"
        )
    predictions = record.get("predictions", ())
    for line in predictions:
        lines.append(
            f"PREDICTED, weak, {line['num_devices']:>4} devices: "
            f"{line['images_per_s_no_overlap']:,.0f} to {line['images_per_s_full_overlap']:,.0f} "
            f"images/s, efficiency {line['efficiency_no_overlap']:.1%} (nothing overlaps) to "
            f"{line['efficiency_full_overlap']:.1%} (all that can)"
        )
    if predictions:
        first = predictions[0]
        lines.append(
            f"PREDICTED from a step of {first['one_device_step_s'] * 1e3:,.3f} ms, "
            f"{first['gradient_bytes']:,} bytes of gradient and "
            f"{first['link_bytes_per_s'] / 1e9:,.2f} GB/s, {first['link_source']}; assuming "
            f"{first['assumptions']}"
        )
    return lines


def _score(record: Mapping[str, Any], prefix: str) -> str:
    """The figure that an experiment is judged by, with its spread where there are models."""
    [name] = [name for name in _SCORES if f"{prefix}{name}" in record]
    text = f"{_SCORES[name]} {record[prefix + name]:7.2%}"
    if f"{prefix}{name}_std" in record:
        text += f" (std {record[f'{prefix}{name}_std']:.2%})"
    if f"{prefix}{name}_tta" in record:
        text += f" ({record[f'{prefix}{name}_tta']:.2%} with test-time augmentation)"
    return text


def _describe_summary(record: Mapping[str, Any]) -> list[str]:
    lines = [f"{record['status']} after {duration(record['wall_s'])}"]
    if "eval_count" in record:
        lines[0] += f": {' '.join(_score(record, 'eval_').split())}"
        lines[0] += f" of {record['eval_count']:,} test images"
    for model in record.get("eval_models", ()):
        [name] = [name for name in _SCORES if name in model]
        lines.append(f"seed {model['seed']}: {_SCORES[name]} {model[name]:.2%}")
    first_s, median_s = record.get("first_epoch_s"), record.get("median_epoch_s")
    if first_s is not None or median_s is not None:
        lines.append(
            f"compile {record['compile_s']:.1f} s"
            + (" (kept programs fetched)" if record["compile_cache"] == "hit" else "")
            + (f", first epoch {first_s:.2f} s" if first_s is not None else "")
            + (f", median of the later {median_s:.2f} s" if median_s is not None else "")
            + f", {record['images_per_s']:,.1f} images/s"
            + f" ({record['images_per_s_per_device']:,.1f} per device)"
        )
    if record.get("skipped_steps"):
        lines.append(
            f"{record['skipped_steps']:,} steps were skipped because they overflowed float16; "
            f"the loss scale is {record['loss_scale']:,.10g}"
        )
    if record.get("epochs_done"):
        phases_s = record["phases_s"]
        lines.append(
            f"training {record['train_time_s']:.2f} s, evaluating {record['eval_time_s']:.2f} s; "
            f"before them, data to the devices {phases_s.get('place_data', 0):.2f} s"
            + (
                f", looking at images {phases_s['init_from_images']:.2f} s"
                if "init_from_images" in phases_s
                else ""
            )
        )
    if target := record.get("target"):
        lines.append(
            f"{target['score']} of {target['value']:.2%} "
            + (
                f"reached in epoch {target['epoch']}, {duration(target['time_s'])} from the start"
                f" ({target['train_time_s']:.2f} s of training, {target['epochs_time_s']:.2f} s "
                "with evaluations)"
                if target["reached"]
                else "never reached"
            )
            + (f" for {target['usd']:,.4f} USD" if target["usd"] is not None else "")
        )
    if "usd" in record:
        lines.append(f"the whole run: {record['usd']:,.4f} USD")
    if record.get("diverged_seeds"):
        lost = ", ".join(map(str, record["diverged_seeds"]))
        lines.append(f"diverged: seed {lost} (counted in the mean)")
    lines += _describe_scaling(record)
    if record.get("corrupt"):
        lines.append(f"{len(record['corrupt'])} corrupt images left out (run.json names them)")
    if record.get("profile"):
        profile = record["profile"]
        lines.append(
            f"steps {profile['first_step']} to {profile['last_step']} are traced in "
            f"{profile['folder']}/ ({profile['bytes'] / 1e6:.1f} MB)"
        )
    shares = sorted(record["phases_s"].items(), key=lambda item: -item[1])
    telemetry = record.get("telemetry") or {}
    if telemetry.get("joules_per_image") is not None:
        lines.append(
            f"energy: {telemetry['joules_per_image']:.4g} J an image, "
            f"{telemetry['images_per_kwh']:,.0f} images/kWh over {telemetry['measured_s']:.1f} s"
            + ("" if telemetry["energy_window_long_enough"] else " (too short for the sampling)")
            + f"; {telemetry['energy_covers']}"
        )
    lines += [f"invalid: {line}" for line in record.get("invalid", ())]
    lines += [f"warning: {line}" for line in record.get("warnings", ())]
    if record.get("startup_s") is not None:
        lines.append(
            f"start-up: {record['startup_s']:.2f} s from the process's start to its first step's "
            f"end; {record['import_s']:.2f} s of it (imports) come before the times below"
        )
    lines.append("time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in shares))
    return lines


def duration(seconds: float) -> str:
    """Returns a duration in the two units that matter: 8.21 s, 3 min 20 s, 5 h 7 min, 54 d 3 h."""
    if seconds < 99.995:
        return f"{seconds:.2f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h} h"
    return f"{h} h {m} min" if h else f"{m} min {s} s"
