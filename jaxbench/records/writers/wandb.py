"""Send a training run's curves, fields, sample images and summary to Weights & Biases.

The package wandb is imported only with `--wandb`. wandb's own settings say whether it sends what it
gets or keeps it (WANDB_MODE), and to which account.
"""

import contextlib
import functools
import importlib
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxbench.errors import BadInput
from jaxbench.parallel.signals import defer_signals
from jaxbench.records.run_dir import finite
from jaxbench.records.writers import Writer
from jaxbench.schema import EpochRecord, Record, Summary, value_of

_MODES_WITHOUT_KEY = ("offline", "dryrun", "disabled")
_PROJECT = re.compile(r"[^/\\#?%:]{1,128}")
# wandb gives up uploading so long after the run's end: less than the time that a process has
# between a signal and its end. What it has not sent stays on disk, for `wandb sync`.
_UPLOAD_TIMEOUT_S = 12.0


@functools.cache
def check_wandb(project: str) -> None:
    """Check, before anything is written, that wandb can be used; never ask for a key.

    Raises:
      BadInput: wandb is not installed, cannot log in, or takes no project of that name.
    """
    flag = f"--wandb={project}"
    if not _PROJECT.fullmatch(project):
        raise BadInput(rf"{flag}: must be a project's name: 1 to 128 characters, none of /\#?%:")
    with defer_signals():  # an interrupted import fails later, without a reason
        wandb: Any = None
        with contextlib.suppress(ImportError):
            wandb = importlib.import_module("wandb")
    # Without the package, a folder `wandb` in the working directory is imported in its place.
    if not hasattr(wandb, "init"):
        raise BadInput(f"{flag}: the package wandb is not installed: pip install 'jaxbench[wandb]'")
    try:
        # Both of them start wandb's service.
        if wandb.setup().settings.mode in _MODES_WITHOUT_KEY:
            return
        if wandb.login(prompt=False):
            return
    except Exception as error:
        reason = f"wandb cannot log in: {_one_line(error)}"
    else:
        reason = "wandb has no API key: run `wandb login`, or set WANDB_API_KEY"
    finally:
        # wandb leaves its service's address in the environment: a sweep's trials would share it.
        wandb.teardown()
    raise BadInput(f"{flag}: {reason}; WANDB_MODE=offline keeps the records for `wandb sync`")


class WandbWriter(Writer):
    """Log a run's records with wandb. Where wandb fails, print one warning and log no more.

    The run directory gets a folder `wandb`, and its last two names become the run's.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        project: str,
        config: Mapping[str, Any],
        say: Callable[[str], None],
    ):
        self._say = say
        self._status = "failed"  # until the summary says better
        self._has_failed = False
        self._run: Any = None
        with self._failing_softly():
            import wandb

            # Send the records alone: no output, code, commit, command line, host or hardware
            # readings.
            settings = wandb.Settings(
                console="off",
                disable_git=True,
                finish_timeout=_UPLOAD_TIMEOUT_S,
                host="",
                label_disable=True,
                save_code=False,
                x_disable_machine_info=True,
                x_save_requirements=False,
            )
            self._run = wandb.init(
                project=project,
                name="/".join(folder.absolute().parts[-2:]),
                dir=str(folder),
                config=finite(dict(config)),
                settings=settings,
                # wandb continues the folder's last run if that did not end with exit code 0.
                resume="auto",
            )

    @contextlib.contextmanager
    def _failing_softly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                self._say(f"warning: wandb failed, the run continues: {_one_line(error)}")
            self._has_failed = True

    def write(self, record: Record) -> None:
        if isinstance(record, Summary):
            self._status = record.status
        if self._has_failed:
            return
        with self._failing_softly():
            if points := record.points():
                # The last step and its epoch share a step number: the epoch's record completes it.
                self._run.log(
                    points, step=value_of(record, "step"), commit=isinstance(record, EpochRecord)
                )
            if isinstance(record, Summary):
                figures = {k: v for k, v in finite(record.to_json()).items() if v is not None}
                del figures["kind"]
                self._run.summary.update(figures)

    def add_images(self, tag: str, images_NxHxWxC: np.ndarray, step: int) -> None:
        """Log images side by side: uint8, one channel or three."""
        if self._has_failed:
            return
        with self._failing_softly():
            import wandb

            row_HxWxC = np.concatenate(list(images_NxHxWxC), axis=1)
            self._run.log({tag: wandb.Image(row_HxWxC)}, step=step)

    def close(self) -> None:
        if self._run is not None:
            with self._failing_softly():
                self._run.finish(exit_code=0 if self._status == "done" else 1)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
