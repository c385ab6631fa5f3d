"""Measures what the host can feed and what the devices can take, each by itself.

Three stages, in turn, so that what drifts hits all alike: preparing batches on the host; preparing
and sending them; training on one batch that is already there. The slower of the last two bounds a
run. Letters: R rounds.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxbench.clock import Clock, Stopwatch
from jaxbench.config import Config
from jaxbench.data.feed import create_feed
from jaxbench.data.sources import load_dataset
from jaxbench.data.stream import StreamFeed
from jaxbench.devices import DataMesh, create_training_mesh, peak_memory_bytes
from jaxbench.environment import available_cores, host_peak_memory_bytes
from jaxbench.errors import BadInput
from jaxbench.precision import get_precision
from jaxbench.program import Program, build_program, compile_step
from jaxbench.recorder import recording
from jaxbench.rundir import RunDir, check_workdir
from jaxbench.spread import median_interval
from jaxbench.writers.console import Console, create_console

_ROUNDS = 7
# A window holds as many batches as take about so long.
_WINDOW_S = 1.0
# More batches than are ever taken: epoch after epoch, as training reads them.
_ENDLESS = 2**40


@dataclasses.dataclass(frozen=True)
class Result:
    """One record for each stage, the summary record and the folder they are in."""

    stages: list[dict[str, Any]]
    summary: dict[str, Any]
    run_dir: RunDir


def measure_input(
    config: Config, workdir: str | None = None, console: Console | None = None
) -> Result:
    """Measures the three stages of a streamed experiment.

    Args:
      config: the experiment; `data.feed` must be `stream`.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.

    Raises:
      BadInput: before anything is written.
    """
    config.validate()
    if config.data.feed != "stream":
        raise BadInput(
            f"--mode=input with data.feed={config.data.feed!r}: the host prepares nothing then; "
            "it goes with data.feed=stream"
        )
    check_workdir(workdir, config.name)
    clock = Clock()
    with contextlib.ExitStack() as stack:
        precision = get_precision(config.precision)
        stack.enter_context(precision.enabled())
        console = console or create_console()
        stack.callback(console.close)
        mesh = create_training_mesh(config)
        with clock.phase("read_data"), console.phase(f"reading {config.data.source} data"):
            dataset = load_dataset(config, console.say)
        feed = create_feed(config, dataset, mesh, precision.param_dtype)
        stack.callback(feed.close)
        program = build_program(config, mesh, feed.steps_per_epoch)
        program.check()
        document = {
            "config": dataclasses.asdict(config),
            "parameters": program.num_parameters(),
            "data": {
                "description": dataset.description,
                "cache": dataset.cache,
                "feed": feed.name,
                "encoded": dataset.encoded,
                "train_examples": len(dataset.train),
                "num_threads": feed.num_threads,
                "num_workers": feed.num_workers,
                "jpeg_decoder": feed.jpeg_decoder,
                "sent_bytes_per_step": feed.sent_bytes_per_step,
            },
        }
        stages: list[dict[str, Any]] = []
        with recording(workdir, config, mesh, document, console) as recorder:
            recorder.summarize = functools.partial(_summarize, clock, mesh, feed, stages)
            rates = _measure(config, program, feed, clock, console)
            for name, windows_R in rates.items():
                record = _describe_stage(name, windows_R, config, mesh)
                stages.append(record)
                recorder.writers.write(record)
        console.say(recorder.summary["verdict"])
        return Result(stages, recorder.summary, recorder.run_dir)


def _measure(
    config: Config, program: Program, feed: StreamFeed, clock: Clock, console: Console
) -> dict[str, list[float]]:
    """Returns images per second of every window, by stage."""
    with clock.phase("init"), console.phase("initialising the parameters"):
        state = jax.block_until_ready(program.place_train_state())
    row = next(feed.train_rows(0, 1))
    with console.phase(f"compiling train_step for {program.mesh.num_devices} device(s)"):
        compile_step("train_step", program.train_step, state, feed.train_data, row, clock=clock)

    def train() -> Iterator[jax.Array]:
        nonlocal state
        while True:
            state, metrics = program.train_step(state, feed.train_data, row)
            yield metrics

    makers: dict[str, Callable[[], Iterator[Any]]] = {
        "prepare": lambda: feed.host_rows(0, _ENDLESS),
        "prepare_and_send": lambda: feed.train_rows(0, _ENDLESS),
        "train_step": train,
    }
    images = config.batch_size * config.num_models(program.mesh.num_devices)
    counts: dict[str, int] = {}
    rates: dict[str, list[float]] = {name: [] for name in makers}
    with clock.phase("measure"):
        # The first round finds out how long a window must be, and is thrown away.
        for number in range(_ROUNDS + 1):
            for name, make in makers.items():
                with contextlib.closing(make()) as batches:
                    _take(batches, config.data.prefetch_batches + 2)  # the pipeline fills
                    count = counts.get(name, 3)
                    watch = Stopwatch()
                    _take(batches, count)
                    elapsed_s = watch.elapsed_s()
                feed.close()  # or it would work ahead in the next stage's time
                if number:
                    rates[name].append(images * count / elapsed_s)
                else:
                    counts[name] = max(3, math.ceil(_WINDOW_S * count / elapsed_s))
            console.progress("measuring", number, _ROUNDS, "rounds")
    return rates


def _take(batches: Iterator[Any], count: int) -> None:
    """Takes so many batches; what they hold on devices has been computed when it returns."""
    for _ in range(count):
        batch = next(batches)
    jax.block_until_ready(batch)


def _describe_stage(
    name: str, windows_R: list[float], config: Config, mesh: DataMesh
) -> dict[str, Any]:
    rate, low, high = median_interval(windows_R)
    record = {
        "kind": "input",
        "stage": name,
        "images_per_s": rate,
        "images_per_s_low": low,
        "images_per_s_high": high,
        "windows_images_per_s": windows_R,
        "batch_size": config.batch_size,
        "num_devices": mesh.num_devices,
        "cores": available_cores(),
    }
    if name != "train_step":
        record["images_per_s_per_core"] = rate / record["cores"]
    return record


def _summarize(
    clock: Clock, mesh: DataMesh, feed: StreamFeed, stages: list[dict[str, Any]], status: str
) -> dict[str, Any]:
    phases_s = clock.totals_s()
    return {
        "kind": "summary",
        "status": status,
        "verdict": _verdict({record["stage"]: record for record in stages}),
        "damaged": feed.damaged,
        "peak_memory_bytes": peak_memory_bytes(mesh.devices),
        "host_peak_memory_bytes": host_peak_memory_bytes(),
        "phases_s": phases_s,
        "wall_s": sum(phases_s.values()),
    }


def _verdict(stages: dict[str, dict[str, Any]]) -> str | None:
    """Which side bounds a run, said only where the intervals do not overlap."""
    if len(stages) < 3:
        return None
    host, device = stages["prepare_and_send"], stages["train_step"]
    told = (
        f"the host can feed {host['images_per_s']:,.1f} images/s, "
        f"the device(s) can take {device['images_per_s']:,.1f}: "
    )
    if host["images_per_s_high"] < device["images_per_s_low"]:
        return told + "the host is the bottleneck"
    if device["images_per_s_high"] < host["images_per_s_low"]:
        return told + "the device(s) are the bottleneck"
    return told + "no difference can be told"
