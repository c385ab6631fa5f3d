"""Find the run that a training run resumes, and restore its checkpoint in every process."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np

from jaxbench.checkpoints.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    read_checkpoint,
    read_newest,
)
from jaxbench.checkpoints.kept_records import read_epochs
from jaxbench.checkpoints.point import check_point
from jaxbench.checkpoints.resume import CHECKPOINTS, Resume, check_same, find_resume
from jaxbench.config import Config
from jaxbench.distributed import coordination
from jaxbench.distributed.mesh import broadcast_arrays
from jaxbench.errors import BadInput
from jaxbench.jobs.setup import Job
from jaxbench.training.program import Program


@contextlib.contextmanager
def run_to_resume(workdir: str | None, resume: str, config: Config) -> Iterator[Resume | None]:
    """Hold the run to resume, in the first process only; None where a new run begins."""
    resumed = find_resume(workdir, resume, config.name) if coordination.is_primary() else None
    try:
        if resumed:
            check_same(resumed, config)
        yield resumed
    finally:
        if resumed:
            resumed.close()


def restore(job: Job, resumed: Resume | None, workdir: str | None) -> Checkpoint | None:
    """Return the checkpoint to resume from, in every process; None where the run begins."""
    with job.clock.phase("restore"):
        saved = _read_saved(job, resumed, workdir) if resumed else None
        if coordination.count() > 1:
            saved = _broadcast_checkpoint(saved, job.program)
    if saved:
        job.clock.add(saved.point["totals_s"])
    return saved


def _read_saved(job: Job, resumed: Resume, workdir: str | None) -> Checkpoint | None:
    """Read the checkpoint to resume from; None where the run begins again."""
    path, say = resumed.run.path, job.console.say
    folder, target = path / CHECKPOINTS, job.program.abstract_placed_state()
    with job.console.phase("reading the checkpoint"):
        if resumed.checkpoint:
            try:
                found = read_checkpoint(folder, resumed.checkpoint, target)
            except CorruptCheckpointError as error:
                raise BadInput(f"{folder / resumed.checkpoint}: is corrupt: {error}") from error
        else:
            found = read_newest(folder, target, say, set_aside=workdir is None or resumed.again)
    if found is None:
        if not resumed.again:
            raise BadInput(
                f"{path}: has no checkpoint that can be read; "
                f"--workdir={path} --resume=auto begins again"
            )
        say(f"{path} has no checkpoint that can be read: beginning again")
        return None
    shape = (job.program.geometry.num_models, job.feed.steps_per_epoch)
    check_point(folder / found.name, found.point, job.program.task.metrics, *shape)
    # As they were recorded: those of later epochs are done again.
    return found._replace(point=found.point | {"epochs": read_epochs(path, found.point)})


def _broadcast_checkpoint(saved: Checkpoint | None, program: Program) -> Checkpoint | None:
    """Send every process the checkpoint of the first; the others need not see its disk."""
    found = coordination.broadcast_value(saved and [saved.name, saved.point])
    if found is None:
        return None
    name, point = found
    target = program.abstract_placed_state()
    state = saved.state if saved else jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), target)
    return Checkpoint(name, broadcast_arrays(state), point, saved.corrupt if saved else {})
