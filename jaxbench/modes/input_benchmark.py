"""Measure what the host can feed and what the devices can take, each alone: --mode=input.

Three stages take turns over R rounds, so that drift hits all alike: preparing batches on the host,
preparing and sending them, and training on one batch that is on the devices already. The slower of
the last two bounds a run.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbench.analysis.rate import apart, estimate, of_windows
from jaxbench.clock import Stopwatch
from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.hardware.peaks import flops_limit
from jaxbench.hardware.system import available_cores, storage_read_bytes
from jaxbench.hardware.telemetry.sampler import INTERVAL_S
from jaxbench.metrics import plain
from jaxbench.modes.runner import prepare_run, record_run
from jaxbench.modes.windows import ENDLESS, StepWindows, window_warnings
from jaxbench.records.recorder import Recorder
from jaxbench.records.validity import impossible_arithmetic
from jaxbench.records.writers.console import Console
from jaxbench.records.writers.rows import noun
from jaxbench.schema import InputRecord, InputSummary, Record

# Fewer rounds do not show whether they are independent. A window holds as many batches as take
# about `_WINDOW_S`, and no fewer than `_FEWEST`.
_ROUNDS, _WINDOW_S, _FEWEST = 8, 1.0, 3


def measure_input(
    config: Config,
    workdir: str | None = None,
    console: Console | None = None,
    *,
    telemetry_s: float = INTERVAL_S,
) -> Recorder:
    """Measure the three stages of an experiment whose `data.feed` is `stream`."""
    config.validate()
    if config.data.feed != "stream":
        raise BadInput(
            f"--mode=input with data.feed={config.data.feed!r}: the host prepares nothing then; "
            "it needs data.feed=stream"
        )

    def summarize(status: str, records: Sequence[Record]) -> InputSummary:
        stages = [record for record in records if isinstance(record, InputRecord)]
        warnings, invalid = [], []
        for stage in stages:
            median = stage.images_per_s or 0.0
            # A window is as long at the median rate.
            times_s = [_WINDOW_S * median / rate for rate in stage.windows_images_per_s]
            warnings += window_warnings(stage.stage, times_s)
            if stage.stage == "train_step":
                flops_per_s = median * setup.network.analysis.training_flops
                limit = flops_limit(setup.mesh.devices)
                invalid = impossible_arithmetic(flops_per_s / stage.num_devices, limit)
        return InputSummary(
            status=status, verdict=verdict(stages), invalid=invalid, warnings=warnings
        )

    with (
        prepare_run(config, workdir, console) as setup,
        record_run(
            setup, "input", workdir, summarize=summarize, telemetry_s=telemetry_s
        ) as recorder,
    ):
        config, step = setup.config, setup.program.train_step
        feed: Any = setup.feed  # a StreamFeed
        state, batch = setup.place_train_state(), next(feed.train_batches(0, 1))
        recorder.write(setup.compile("train_step", step, state, feed.train_data, batch))
        train = StepWindows("train_step", setup, state, _WINDOW_S, step, itertools.repeat(batch))
        # Each window reads other images than the last one, as long as the data set has others.
        stages: dict[str, Callable[..., Any]] = {
            "prepare": functools.partial(feed.host_batches, 0, ENDLESS),
            "prepare_and_send": functools.partial(feed.train_batches, 0, ENDLESS),
            "train_step": lambda _: (train.queue() for _ in itertools.count()),
        }
        next_batch, fill = 0, config.data.prefetch_batches + 2

        def time_window(name: str, count: int) -> tuple[float, int | None]:
            """Return a window's seconds, and the bytes that storage gave meanwhile, if counted."""
            nonlocal next_batch
            with contextlib.closing(stages[name](next_batch)) as batches:
                if name != "train_step":
                    next_batch += fill + count
                _take(batches, fill)  # the pipeline fills
                before_bytes, watch = storage_read_bytes(), Stopwatch()
                _take(batches, count)
                elapsed_s, after_bytes = watch.elapsed_s(), storage_read_bytes()
            feed.close()  # or it would work ahead in the next stage's time
            if before_bytes is None or after_bytes is None:
                return elapsed_s, None
            return elapsed_s, max(0, after_bytes - before_bytes)

        windows: dict[str, list[tuple[float, int | None]]] = {name: [] for name in stages}
        with setup.clock.phase("measure"):
            counts = {}
            for name in stages:
                elapsed_s, _ = time_window(name, _FEWEST)
                counts[name] = max(_FEWEST, math.ceil(_WINDOW_S * _FEWEST / elapsed_s))
            for number in range(1, _ROUNDS + 1):
                for name in stages:
                    windows[name].append(time_window(name, counts[name]))
                setup.console.progress("measuring", number, _ROUNDS, "rounds")
        cores, tokens = available_cores(), config.data.sequence_length
        for name, windows_R in windows.items():
            images = counts[name] * setup.program.layout.images_per_step
            on_host = name != "train_step"
            rates_R = [images / elapsed_s for elapsed_s, _ in windows_R]
            rate = estimate(rates_R)
            median = rate.span[0]
            record = InputRecord(
                stage=name,
                **rate.fields("images_per_s"),
                windows_images_per_s=rates_R,
                batch_size=config.batch_size,
                num_devices=setup.mesh.num_devices,
                cores=cores,
                images_per_s_per_core=median / cores if on_host else None,
                tokens_per_s=median * tokens if tokens else None,
                # 0 if the page cache had everything.
                windows_storage_read_bytes=[read for _, read in windows_R] if on_host else None,
            )
            recorder.write(record)
    return recorder


def _take(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        batch = next(batches)
    jax.block_until_ready(batch)


def verdict(records: Sequence[InputRecord]) -> str | None:
    """Return which side bounds a run; None unless all stages were measured."""
    if len(records) < 3:
        return None
    _, host, device = records
    outcome = {
        1: "the host is the bottleneck",
        -1: "the device(s) are the bottleneck",
        0: "no significant difference",
    }[apart(*(of_windows(one, "images_per_s") for one in (host, device)))]
    return (
        f"the host can feed {plain(host.images_per_s)} {noun(host.tokens_per_s)}/s, "
        f"the device(s) can take {plain(device.images_per_s)}: {outcome}"
    )
