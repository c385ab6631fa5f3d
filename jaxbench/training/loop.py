"""The training loop."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxbench.clock import Stopwatch, wait_until
from jaxbench.distributed.mesh import all_ready
from jaxbench.distributed.signals import graceful_stop
from jaxbench.errors import Terminated
from jaxbench.training.evaluation import evaluate
from jaxbench.training.run import TrainRun
from jaxbench.training.run_progress import EpochMetrics
from jaxbench.training.step_meter import StepMeter, count_step
from jaxbench.training.train_records import write_epoch_record, write_step_record
from jaxbench.training.train_step import TrainState


def train(run: TrainRun, state: TrainState) -> TrainState:
    """Train and evaluate the epochs that are left; return the state after them.

    Raises:
      Diverged: no model has a finite loss any more.
      KeyboardInterrupt, Terminated: Ctrl-C or SIGTERM came. Where the run writes checkpoints, there
        is one of all that was done; after a second Ctrl-C there may be none.
    """
    meter, is_whole = StepMeter(run), True
    try:
        while not run.is_done:
            epoch = len(run.progress.epochs)
            with run.clock.phase("train"):
                batches = begin_epoch(run, meter, epoch)
                with graceful_stop() as stop_requested:
                    is_whole = False  # each step donates the state before it
                    state = train_epoch(run, meter, state, batches, stop_requested)
                    is_whole = True
            evaluation = evaluate(run, state) if run.plan.is_evaluated(epoch) else None
            write_epoch_record(run, evaluation)
            if run.checkpoint_due(epoch + 1, last=run.is_done):
                run.save_checkpoint(state)
    except (KeyboardInterrupt, Terminated):
        # The other processes, whose parts it needs, may not be where this one is.
        if is_whole and not run.program.is_state_across_processes:
            run.save_checkpoint(state)
        raise
    return state


def begin_epoch(run: TrainRun, meter: StepMeter, epoch: int) -> Iterator[Any]:
    """Return the batches of the steps that are left of an epoch."""
    progress = run.progress
    if progress.epoch_metrics is None:  # else the run is resumed in the middle of it
        names = run.program.task.metrics
        progress.epoch_metrics = EpochMetrics.zeros(epoch, names, len(run.seeds_R))
    first_step = progress.epoch_metrics.steps
    with meter.timed(), run.clock.phase("data_wait"):
        return run.batches.take(epoch, len(run.plan.steps(epoch)) - first_step, first_step)


def train_epoch(
    run: TrainRun,
    meter: StepMeter,
    state: TrainState,
    batches: Iterator[Any],
    stop_requested: Callable[[], bool],
) -> TrainState:
    """Train the steps that are left of an epoch; a request to stop ends them early."""
    epoch = run.progress.epoch_metrics
    steps = run.plan.steps(epoch.epoch)[epoch.steps :]
    profiled_steps = run.profiler.steps if run.profiler else range(0)
    for profiled, group in itertools.groupby(steps, profiled_steps.__contains__):
        if stop_requested():
            break
        if profiled:
            state = profile_steps(run, state, batches, list(group))
        else:
            state = train_steps(run, meter, state, batches, list(group), stop_requested)
    return state


def train_steps(
    run: TrainRun,
    meter: StepMeter,
    state: TrainState,
    batches: Iterator[Any],
    steps: Sequence[int],
    stop_requested: Callable[[], bool],
) -> TrainState:
    """Train some steps of an epoch; write a checkpoint between two of them when it is due."""
    with meter.timed(steps[-1]):
        for step in steps:
            with run.clock.phase("data_wait"):
                batch = next(batches)
            watch = Stopwatch()
            # The old state is donated: from here on only the new one may be read.
            state, metrics = run.program.train_step(state, run.feed.train_data, batch)
            meter.push(metrics)
            if step == 1:
                meter.drain(state)
                run.progress.end_first_step(watch.elapsed_s(), run.clock.wall_s())
            if stop_requested():
                break
            if step != steps[-1] and run.checkpoint_due():
                meter.drain(state)
                with meter.paused():
                    run.save_checkpoint(state)
        meter.drain(state)
    return state


def profile_steps(
    run: TrainRun, state: TrainState, batches: Iterator[Any], steps: Sequence[int]
) -> TrainState:
    """Train some steps under JAX's profiler.

    All of their time, waiting for data included, is in the phase `profile` and in no other figure.
    """

    def train_step(batch: Any) -> jax.Array:
        nonlocal state
        state, metrics = run.program.train_step(state, run.feed.train_data, batch)
        return metrics

    what = f"profiling steps {steps[0]} to {steps[-1]}"
    with run.clock.phase("profile"), run.console.phase(what):
        wait_until(lambda: all_ready(state))
        results = run.profiler.trace(steps, batches, train_step)
        wait_until(lambda: all_ready(state))
    for packed in results:
        count_step(run, run.program.train_metrics(packed))
    run.progress.epoch_metrics.profiled_steps += len(steps)
    write_step_record(run, profiled=True)
    return state
