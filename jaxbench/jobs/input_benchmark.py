"""Measures what the host can feed and what the devices can take, each alone: --mode=input.

Three stages take turns, so that drift hits all alike: preparing batches on the host, preparing and
sending them, and training on one batch that is on the devices already. The slower of the last two
bounds a run. Letters: R rounds.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbench.analysis.statistics import median_interval
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.hardware.environment import available_cores
from jaxbench.hardware.storage import drop_from_page_cache, storage_read_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.jobs.runner import JobResult, Measurement, run_job
from jaxbench.jobs.setup import Job, setup_job
from jaxbench.records.recorder import Recorder
from jaxbench.records.schema import InputRecord, InputSummary
from jaxbench.records.writers.console import Console
from jaxbench.training.dispatch import DispatchLimiter

_ROUNDS = 7
# A window holds as many batches as take about this long.
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
) -> JobResult:
    """Measure the three stages of a streamed experiment.

    Args:
      config: the experiment; `data.feed` must be `stream`.
      workdir, telemetry_s: see `run_job`.
      console: where progress is shown; None picks one for standard output.
      page_cache: `cold` has the system forget the training images before every window.

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
        result = run_job(job, InputBenchmark(job, page_cache), workdir, telemetry_s=telemetry_s)
        job.console.say(result.summary["verdict"])
    return result


class InputBenchmark(Measurement):
    """Takes batches from every stage, window after window."""

    mode = "input"

    def __init__(self, job: Job, page_cache: str):
        self._job = job
        self._page_cache = page_cache
        self._cold_files = _files(job) if page_cache == "cold" else []
        self._next_batch = 0

    def document(self) -> dict[str, Any]:
        return {"page_cache": self._page_cache}

    def measure(self, recorder: Recorder) -> None:
        job, feed, step = self._job, self._job.feed, self._job.program.train_step
        state, batch = job.place_train_state(), next(feed.train_batches(0, 1))
        job.compile("train_step", step, state, feed.train_data, batch)

        limiter = DispatchLimiter(job.mesh.devices)

        def train(first_batch: int) -> Iterator[Any]:
            nonlocal state
            while True:
                state, metrics = step(state, feed.train_data, batch)
                limiter.add(metrics)
                yield metrics

        # Each window reads other images than the last one, as long as the data set has others.
        stages: dict[str, Callable[[int], Iterator[Any]]] = {
            "prepare": lambda first_batch: feed.host_batches(0, _ENDLESS, first_batch),
            "prepare_and_send": lambda first_batch: feed.train_batches(0, _ENDLESS, first_batch),
            "train_step": train,
        }
        counts = dict.fromkeys(stages, 3)
        windows: dict[str, list[tuple[float, int | None]]] = {name: [] for name in stages}
        with job.clock.phase("measure"):
            for number in range(_ROUNDS + 1):
                for name, create in stages.items():
                    elapsed_s, read_bytes = self._time(name, create, counts[name])
                    if number:
                        windows[name].append((counts[name] / elapsed_s, read_bytes))
                    else:  # this round only finds out how many batches a window holds
                        counts[name] = max(3, math.ceil(_WINDOW_S * counts[name] / elapsed_s))
                job.console.progress("measuring", number, _ROUNDS, "rounds")
        for name, windows_R in windows.items():
            recorder.write(self._describe(name, windows_R))

    def _time(
        self, name: str, create: Callable[[int], Iterator[Any]], count: int
    ) -> tuple[float, int | None]:
        """Return a window's seconds, and the bytes that storage gave meanwhile, if counted."""
        fill = self._job.config.data.prefetch_batches + 2
        if self._cold_files and name != "train_step":
            drop_from_page_cache(self._cold_files)
        with contextlib.closing(create(self._next_batch)) as batches:
            _take(batches, fill)  # the pipeline fills
            before_bytes, watch = storage_read_bytes(), Stopwatch()
            _take(batches, count)
            elapsed_s, after_bytes = watch.elapsed_s(), storage_read_bytes()
        self._job.feed.close()  # or it would work ahead in the next stage's time
        if name != "train_step":
            self._next_batch += fill + count
        counted = before_bytes is not None and after_bytes is not None
        return elapsed_s, max(0, after_bytes - before_bytes) if counted else None

    def _describe(self, name: str, windows_R: list[tuple[float, int | None]]) -> InputRecord:
        images = self._job.program.geometry.images_per_step
        rates_R = [images * batches_per_s for batches_per_s, _ in windows_R]
        rate, low, high = median_interval(rates_R)
        cores, on_host = available_cores(), name != "train_step"
        return InputRecord(
            stage=name,
            images_per_s=rate,
            images_per_s_low=low,
            images_per_s_high=high,
            windows_images_per_s=rates_R,
            batch_size=self._job.config.batch_size,
            num_devices=self._job.mesh.num_devices,
            cores=cores,
            images_per_s_per_core=rate / cores if on_host else None,
            # 0 where the page cache had everything.
            windows_storage_read_bytes=[read for _, read in windows_R] if on_host else None,
        )

    def summarize(self, status: str, records: Sequence[InputRecord]) -> InputSummary:
        corrupt = self._job.feed.corrupt
        return InputSummary(status=status, verdict=verdict(records), corrupt=corrupt)


def _files(job: Job) -> Sequence[str]:
    """Return the files whose images are read in training; raise BadInput where it reads none."""
    if not job.dataset.encoded or not job.dataset.train.files():
        raise BadInput(
            f"--page_cache=cold: {job.dataset.description} is in memory, nothing is read from "
            "storage; it is for images decoded on the fly"
        )
    return job.dataset.train.files()


def _take(batches: Iterator[Any], count: int) -> None:
    """Take this many batches; return once what they hold on devices has been computed."""
    for _ in range(count):
        batch = next(batches)
    jax.block_until_ready(batch)


def verdict(records: Sequence[InputRecord]) -> str | None:
    """Return which side bounds a run; None unless all stages were measured."""
    stages = {record.stage: record for record in records}
    if len(stages) < 3:
        return None
    host, device = stages["prepare_and_send"], stages["train_step"]
    text = (
        f"the host can feed {host.images_per_s:,.1f} images/s, "
        f"the device(s) can take {device.images_per_s:,.1f}: "
    )
    # Only where the intervals do not overlap is there a bottleneck.
    if host.images_per_s_high < device.images_per_s_low:
        return text + "the host is the bottleneck"
    if device.images_per_s_high < host.images_per_s_low:
        return text + "the device(s) are the bottleneck"
    return text + "no significant difference"
