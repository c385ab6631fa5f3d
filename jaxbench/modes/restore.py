"""Find the run that a training run resumes, and restore its checkpoint in every process."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np

from jaxbench.checkpoints.checkpoint import Checkpoint, read_checkpoint, read_newest
from jaxbench.checkpoints.resume import CHECKPOINTS, Resume, check_same, find_resume, read_epochs
from jaxbench.config import Config
from jaxbench.errors import BadInput
from jaxbench.modes.setup import RunSetup
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import broadcast_arrays
from jaxbench.training.program import Program
from jaxbench.training.run import RunProgress


@contextlib.contextmanager
def run_to_resume(workdir: str | None, resume: str, config: Config) -> Iterator[Resume | None]:
    """Hold the run to resume, in the first process only; None if a new run begins."""
    resumed = find_resume(workdir, resume, config.name) if processes.is_primary() else None
    with contextlib.closing(resumed) if resumed else contextlib.nullcontext():
        if resumed:
            check_same(resumed, config)
        yield resumed


def restore(setup: RunSetup, resumed: Resume | None, workdir: str | None) -> Checkpoint | None:
    """Return the checkpoint to resume from, in every process; None if the run begins."""
    with setup.clock.phase("restore"):
        checkpoint = _read(setup, resumed, workdir) if resumed else None
        if processes.count() > 1:
            checkpoint = _broadcast(checkpoint, setup.program)
    if checkpoint:
        setup.clock.add(checkpoint.metadata["totals_s"])
    return checkpoint


def _read(setup: RunSetup, resumed: Resume, workdir: str | None) -> Checkpoint | None:
    """Read the checkpoint to resume from, with the epochs up to it; None if the run begins again.

    They are as they were recorded: those of later epochs are done again.
    """
    path, state, say = resumed.path, setup.program.abstract_placed_state(), setup.console.say
    folder, set_aside = path / CHECKPOINTS, workdir is None or resumed.restart_allowed
    with setup.console.phase("reading the checkpoint"):
        if resumed.checkpoint:
            checkpoint = read_checkpoint(folder, resumed.checkpoint, state)
        else:
            checkpoint = read_newest(folder, state, say, set_aside=set_aside)
    if checkpoint is None:
        if not resumed.restart_allowed:
            raise BadInput(
                f"{path}: has no checkpoint that can be read; "
                f"--workdir={path} --resume=auto begins again"
            )
        say(f"{path} has no checkpoint that can be read: beginning again")
        return None
    try:
        metadata = checkpoint.metadata | {"epochs": read_epochs(path, checkpoint.metadata)}
        RunProgress.from_json(metadata)
        float(sum(metadata["totals_s"].values()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"{folder / checkpoint.name}: its metadata cannot be read: {why}") from error
    return checkpoint._replace(metadata=metadata)


def _broadcast(checkpoint: Checkpoint | None, program: Program) -> Checkpoint | None:
    """Send every process the checkpoint of the first; the others need not see its disk."""
    shared = processes.broadcast_value(checkpoint and [checkpoint.name, checkpoint.metadata])
    if shared is None:
        return None
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), program.abstract_placed_state())
    state = broadcast_arrays(checkpoint.state if checkpoint else zeros)
    return Checkpoint(shared[0], state, shared[1], checkpoint.corrupt if checkpoint else {})
