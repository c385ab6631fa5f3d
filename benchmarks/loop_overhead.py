"""Measure what the training loop, or telemetry, costs beside the bare compiled step.

    python benchmarks/loop_overhead.py --experiment=quickstart [--rounds=51] [--min_ratio=0.97]
        [--telemetry]

Each round trains the same number of steps on the same state and data twice, interleaved: once by
calling the compiled step in a bare loop closed by one barrier, once through the training loop's
`train_epoch` with its progress, its records on disk and its divergence check. With --telemetry the
second time is the bare loop while telemetry takes a sample every 0.02 s, 50 times as often as in a
run by default. Exit code 1 if the ratio of the two rates is below --min_ratio by more than its 95 %
interval.
"""

import functools
import os
import pathlib
import statistics
import tempfile

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput

_ROUNDS = flags.DEFINE_integer("rounds", 51, "Pairs of measurements.", lower_bound=5)
_STEPS = flags.DEFINE_integer("steps", 0, "Steps a measurement; 0 takes one epoch.", lower_bound=0)
_MIN_RATIO = flags.DEFINE_float("min_ratio", 0.97, "The fraction of the rate that must remain.")
_TELEMETRY = flags.DEFINE_bool("telemetry", False, "Measure telemetry, not the training loop.")
_SAMPLE_S = 0.02


def main(spec: str | None, overrides: list[str]) -> int:
    import jax

    from jaxbench.analysis.statistics import median_interval
    from jaxbench.clock import Stopwatch
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.hardware.telemetry.sampler import Telemetry, create_readers
    from jaxbench.modes.runner import prepare_run
    from jaxbench.modes.train import compile_and_place
    from jaxbench.parallel.signals import graceful_stop
    from jaxbench.records.writers import Writers
    from jaxbench.records.writers.console import Console
    from jaxbench.records.writers.files import CsvWriter, JsonlWriter
    from jaxbench.records.writers.tensorboard import TensorBoardWriter
    from jaxbench.schema import EpochRecord
    from jaxbench.train import Loop, train_epoch
    from jaxbench.training.loss_scale import LossScales
    from jaxbench.training.run import EpochSums, RunProgress, TrainPlan

    config = entry_point.load_experiment(spec, overrides)
    prepare_backend()
    # Long enough that the loop never reaches the end of its schedule.
    config.epochs, config.max_steps = max(config.epochs, _ROUNDS.value + 2), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as quiet,
        prepare_run(config, folder, Console(quiet)) as setup,
    ):
        mesh, feed, program, console = setup.mesh, setup.feed, setup.program, setup.console
        steps = _STEPS.value or feed.steps_per_epoch
        if steps > feed.steps_per_epoch:
            raise BadInput(f"--steps={steps}: an epoch has {feed.steps_per_epoch}")
        path = pathlib.Path(folder)
        writers = Writers(
            JsonlWriter(path),
            CsvWriter(path / "epochs.csv", EpochRecord),
            TensorBoardWriter(path),
            console,
        )
        names = program.network.epoch_sums
        beginning = functools.partial(
            EpochSums.beginning, names=names, num_models=len(setup.seeds_R)
        )
        progress = RunProgress(sums=beginning(0))
        batch = next(feed.train_batches(0, 1))
        state, _ = compile_and_place(setup, progress, batch)
        run = Loop(
            program=program,
            feed=feed,
            plan=TrainPlan(config.num_steps(steps), steps),
            clock=setup.clock,
            console=console,
            progress=progress,
            loss_scales=LossScales(state.loss_scale, setup.seeds_R, console.say),
            writer=writers,
        )

        def bare() -> float:
            nonlocal state
            batches = feed.train_batches(0, steps)
            watch = Stopwatch()
            for batch in batches:
                state, _ = program.train_step(state, feed.train_data, batch)
            jax.block_until_ready(state)
            return watch.elapsed_s()

        def loop(epoch: int) -> float:
            nonlocal state
            run.progress.sums = beginning(epoch)
            watch = Stopwatch()
            with graceful_stop() as stop_requested:
                state = train_epoch(run, state, stop_requested)
            return watch.elapsed_s()

        def watched(_: int) -> float:
            readers = create_readers(mesh.devices)
            telemetry = Telemetry(path / "telemetry.csv", _SAMPLE_S, setup.clock, readers)
            telemetry.start()
            elapsed_s = bare()
            telemetry.stop()
            return elapsed_s

        other = watched if _TELEMETRY.value else loop
        bare()
        other(0)  # both warm
        print(
            f"{config.name}, {mesh.num_devices} x {mesh.devices[0].device_kind}, "
            f"batch {config.batch_size}, {config.precision}, {steps} steps a measurement"
        )
        pairs = []
        for epoch in range(1, _ROUNDS.value + 1):
            # A B, then B A: what drifts hits both alike.
            if epoch % 2:
                pairs.append((bare(), other(epoch)))
            else:
                other_s = other(epoch)
                pairs.append((bare(), other_s))
        writers.close()

    images, name = steps * config.batch_size, "telemetry" if _TELEMETRY.value else "loop"
    ratio, low, high = median_interval([bare_s / other_s for bare_s, other_s in pairs])
    for row, times_s in zip(("bare step", name), zip(*pairs, strict=True), strict=True):
        print(f"{row:<16} {images / statistics.median(times_s):10,.1f} images/s")
    print(
        f"{name + ' / bare':<16} {ratio:.3f}  (median of {len(pairs)} rounds, "
        f"95 % interval {low:.3f} to {high:.3f})"
    )
    if high < _MIN_RATIO.value:
        print(f"that is less than {_MIN_RATIO.value:.0%} of the bare rate")
        return 1
    return 0


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
