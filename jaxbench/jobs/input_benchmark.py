"""Measures what the host can feed and what the devices can take, each by itself.

Three stages, in turn, so that what drifts hits all alike: preparing batches on the host; preparing
and sending them; training on one batch that is already there. The slower of the last two bounds a
run. Letters: R rounds.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbench.analysis.statistics import median_interval
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.distributed.mesh import DataMesh, peak_memory_bytes
from jaxbench.errors import BadInput
from jaxbench.hardware.environment import available_cores, host_peak_memory_bytes
from jaxbench.hardware.storage import drop_from_page_cache, storage_read_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs.setup import Job, StagesResult, setup_job
from jaxbench.records.recorder import recording
from jaxbench.records.writers.console import Console

_ROUNDS = 7
# A window holds as many batches as take about so long.
_WINDOW_S = 1.0
# More batches than are ever taken: epoch after epoch, as training reads them.
_ENDLESS = 2**40


def measure_input(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    page_cache: str = "as_is",
    telemetry_s: float = INTERVAL_S,
) -> StagesResult:
    """Measures the three stages of a streamed experiment.

    Args:
      config: the experiment; `data.feed` must be `stream`.
      workdir: a new or empty folder for the records; None makes `runs/NAME/TIME`.
      console: where progress is shown; None picks one for standard output.
      page_cache: `cold` has the system forget the training images before every window.
      telemetry_s: seconds between readings of the hardware, 0 for none.

    Raises:
      BadInput: before anything is written.
    """
    config.validate()
    if config.data.feed != "stream":
        raise BadInput(
            f"--mode=input with data.feed={config.data.feed!r}: the host prepares nothing then; "
            "it goes with data.feed=stream"
        )
    with setup_job(config, workdir, console) as job:
        files = _files(job) if page_cache == "cold" else None
        stages: list[dict[str, Any]] = []
        document = job.document() | {"mode": "input", "page_cache": page_cache}
        with recording(
            workdir, config, job.mesh, document, job.console, job.clock, telemetry_s
        ) as recorder:
            recorder.summarize = functools.partial(_summarize, job, stages)
            windows = _measure(job, files)
            for name, windows_R in windows.items():
                record = _describe_stage(name, windows_R, config, job.mesh)
                stages.append(record)
                recorder.writers.write(record)
        job.console.say(recorder.summary["verdict"])
        return StagesResult(stages, recorder.summary, recorder.run_dir)


def _files(job: Job) -> Sequence[str]:
    """The files whose images are read in training."""
    if not job.dataset.encoded or not job.dataset.train.files():
        raise BadInput(
            f"--page_cache=cold: {job.dataset.description} lies in memory, nothing is read from "
            "storage; it is for images decoded as they are needed"
        )
    return job.dataset.train.files()


@dataclasses.dataclass(frozen=True)
class _Window:
    """One measurement: images per second, and bytes that storage gave meanwhile, if counted."""

    images_per_s: float
    storage_read_bytes: int | None


def _measure(job: Job, cold_files: Sequence[str] | None) -> dict[str, list[_Window]]:
    """Returns the windows of every stage, R each; has these files forgotten where they are read."""
    config, feed, program = job.config, job.feed, job.program
    state = job.place_train_state()
    batch = next(feed.train_batches(0, 1))
    job.compile("train_step", program.train_step, state, feed.train_data, batch)

    def train(start: int) -> Iterator[jax.Array]:
        nonlocal state
        while True:
            state, metrics = program.train_step(state, feed.train_data, batch)
            yield metrics

    # Each window goes on to other images, as training does, as far as the set has others.
    makers: dict[str, Callable[[int], Iterator[Any]]] = {
        "prepare": lambda start: feed.host_batches(0, _ENDLESS, start),
        "prepare_and_send": lambda start: feed.train_batches(0, _ENDLESS, start),
        "train_step": train,
    }
    images = program.geometry.images_per_step
    fill = config.data.prefetch_batches + 2
    counts: dict[str, int] = {}
    windows: dict[str, list[_Window]] = {name: [] for name in makers}
    start = 0
    with job.clock.phase("measure"):
        # The first round finds out how long a window must be, and is thrown away.
        for number in range(_ROUNDS + 1):
            for name, make in makers.items():
                if cold_files is not None and name != "train_step":
                    drop_from_page_cache(cold_files)
                count = counts.get(name, 3)
                with contextlib.closing(make(start)) as batches:
                    _take(batches, fill)  # the pipeline fills
                    before_bytes, watch = storage_read_bytes(), Stopwatch()
                    _take(batches, count)
                    elapsed_s = watch.elapsed_s()
                    after_bytes = storage_read_bytes()
                feed.close()  # or it would work ahead in the next stage's time
                start += fill + count if name != "train_step" else 0
                if number:
                    counted = before_bytes is not None and after_bytes is not None
                    read_bytes = max(0, after_bytes - before_bytes) if counted else None
                    windows[name].append(_Window(images * count / elapsed_s, read_bytes))
                else:
                    counts[name] = max(3, math.ceil(_WINDOW_S * count / elapsed_s))
            job.console.progress("measuring", number, _ROUNDS, "rounds")
    return windows


def _take(batches: Iterator[Any], count: int) -> None:
    """Takes so many batches; what they hold on devices has been computed when it returns."""
    for _ in range(count):
        batch = next(batches)
    jax.block_until_ready(batch)


def _describe_stage(
    name: str, windows_R: list[_Window], config: Config, mesh: DataMesh
) -> dict[str, Any]:
    rates_R = [window.images_per_s for window in windows_R]
    rate, low, high = median_interval(rates_R)
    record = {
        "kind": "input",
        "stage": name,
        "images_per_s": rate,
        "images_per_s_low": low,
        "images_per_s_high": high,
        "windows_images_per_s": rates_R,
        "batch_size": config.batch_size,
        "num_devices": mesh.num_devices,
        "cores": available_cores(),
    }
    if name != "train_step":
        record["images_per_s_per_core"] = rate / record["cores"]
        # 0: the page cache had all of it.
        record["windows_storage_read_bytes"] = [window.storage_read_bytes for window in windows_R]
    return record


def _summarize(job: Job, stages: list[dict[str, Any]], status: str) -> dict[str, Any]:
    phases_s = job.clock.totals_s()
    return {
        "kind": "summary",
        "status": status,
        "verdict": _verdict({record["stage"]: record for record in stages}),
        "corrupt": job.feed.corrupt,
        "peak_memory_bytes": peak_memory_bytes(job.mesh.devices),
        "host_peak_memory_bytes": host_peak_memory_bytes(),
        "phases_s": phases_s,
        "wall_s": job.clock.wall_s(),
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
