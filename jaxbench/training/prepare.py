"""Place the state and compile both steps, before the first of them runs."""

from jaxbench.clock import wait_until
from jaxbench.distributed.coordination import barrier_before_first_step
from jaxbench.distributed.mesh import all_ready
from jaxbench.training.loss_scale import LossScales
from jaxbench.training.program import compile_step
from jaxbench.training.run import TrainRun
from jaxbench.training.train_step import TrainState


def prepare(run: TrainRun, saved_state: TrainState | None = None) -> TrainState:
    """Return the state on the devices; both steps are compiled for it.

    Args:
      run: the run.
      saved_state: on the host, from a checkpoint; None initialises the parameters.
    """
    program, feed, progress = run.program, run.feed, run.progress
    is_resumed = saved_state is not None
    what = "placing the saved state" if is_resumed else "initialising the parameters"
    with run.clock.phase("init"), run.console.phase(what):
        state = (
            program.place_saved_state(saved_state) if is_resumed else program.place_train_state()
        )
        del saved_state
        wait_until(lambda: all_ready(state))
        run.loss_scales = LossScales(
            getattr(state, "loss_scale", None), run.seeds_R, run.console.say
        )
    with run.clock.phase("place_data"):
        # Where only the last evaluation is left, the shapes of the last step's batch are enough.
        step = min(progress.step, run.plan.total_steps - 1)
        batch = run.batches.peek(*divmod(step, run.plan.steps_per_epoch))
        eval_batch = next(feed.eval_batches())
    steps = {
        "train_step": (program.train_step, feed.train_data, batch),
        "eval_step": (program.eval_step, feed.eval_data, eval_batch),
    }
    for name, (function, data, batch) in steps.items():
        with run.console.phase(f"compiling {name} for {program.mesh.num_devices} device(s)"):
            record = compile_step(name, function, state, data, batch, clock=run.clock)
        if not is_resumed:  # else the run has its records of it
            progress.compile_s += record.lower_s + record.compile_s
            progress.compile_cache.append(record.compile_cache)
            run.write(record)
    barrier_before_first_step(run.clock)
    return state
