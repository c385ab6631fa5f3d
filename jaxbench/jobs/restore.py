"""Find the run to resume and read its checkpoint, in every process."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from jaxbench.checkpoints.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    read_checkpoint,
    read_newest,
)
from jaxbench.checkpoints.resume import (
    CHECKPOINTS,
    Resume,
    check_same,
    find_resume,
    resume_run_dir,
)
from jaxbench.config import Config
from jaxbench.distributed import coordination
from jaxbench.distributed.mesh import broadcast_arrays
from jaxbench.errors import BadInput
from jaxbench.jobs.setup import Job
from jaxbench.records.run_dir import RunDir
from jaxbench.records.schema.document import RunDocument
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
        saved = _share(_read_saved(job, resumed, workdir) if resumed else None, job.program)
    if saved:
        job.clock.add(saved.point["totals_s"])
    return saved


def resume_into(
    resumed: Resume | None, saved: Checkpoint | None, workdir: str | None, config: Config
) -> Callable[[RunDocument], RunDir] | None:
    """Return the function that opens the folder of a resumed run; None for a new run."""
    if resumed is None:
        return None
    without_state = saved and saved._replace(state=None)
    return functools.partial(resume_run_dir, resumed, without_state, workdir, config.name)


def _read_saved(job: Job, resumed: Resume, workdir: str | None) -> Checkpoint | None:
    """Read the checkpoint to resume from; None where the run begins again.

    Raises:
      BadInput: there is none, or it is another model's.
    """
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
            raise BadInput(f"{path}: has no checkpoint that can be read")
        say(f"{path} has no checkpoint that can be read: beginning again")
        return None
    # As they were recorded: those of later epochs are done again.
    epochs = resumed.run.of_kind("epoch")[: found.point["epochs_done"]]
    return found._replace(point=found.point | {"epochs": epochs})


def _share(saved: Checkpoint | None, program: Program) -> Checkpoint | None:
    """Send every process the checkpoint of the first; the others need not see its disk."""
    if coordination.count() == 1:
        return saved
    found = coordination.broadcast_value(saved and [saved.name, saved.point])
    if found is None:
        return None
    name, point = found
    target = program.abstract_placed_state()
    state = saved.state if saved else jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), target)
    return Checkpoint(name, broadcast_arrays(state), point, saved.corrupt if saved else {})
