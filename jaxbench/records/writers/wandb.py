"""A training run's curves, fields, sample images and summary for Weights & Biases.

The package wandb is imported only where `--wandb` asks for it. Whether what it is given is sent
or kept for later (WANDB_MODE), to whom and as whom, is its own business and the user's.
"""

import functools
import pathlib
import queue
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from jaxbench.distributed.signals import defer_signals
from jaxbench.errors import BadInput, WandbFailed
from jaxbench.records.run_dir import finite
from jaxbench.records.writers.curves import Curves

# The first release whose login() can be told not to ask for a key.
_OLDEST = (0, 31)
_MODES_WITHOUT_KEY = ("offline", "dryrun", "disabled")
_PROJECT = re.compile(r"[^/\\#?%:]{1,128}")
# wandb gives up sending after the first, seconds after the run's end; the second is for a wandb
# that does not. Less than what a process may take from a signal to its end.
_SENDING_S, _LONGEST_CLOSE_S = 12.0, 15.0
_SERVICE = "wandb-core"


@functools.cache
def check_wandb(project: str) -> None:
    """Finds out, before anything is written, whether wandb can be used; it never asks for a key.

    Raises:
      BadInput: no such package or project name, or wandb cannot log in.
    """
    given = f"--wandb={project}"
    if not _PROJECT.fullmatch(project):
        raise BadInput(rf"{given}: must be a project's name: 1 to 128 characters, none of /\#?%:")
    wandb = _import_wandb(given)
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
        # Or the processes of a sweep would share this one's service, which ends with it.
        wandb.teardown()
    raise BadInput(f"{given}: {reason}; WANDB_MODE=offline keeps the records for `wandb sync`")


def _import_wandb(given: str) -> Any:
    with defer_signals():  # a broken off import is a riddle
        try:
            import wandb
        except ImportError:
            wandb = None
    # Without the package, a folder `wandb` in the working directory is imported in its place.
    if not hasattr(wandb, "init"):
        raise BadInput(
            f"{given}: the package wandb is not installed: pip install 'jaxbench[wandb]'"
        )
    version = tuple(int(part) for part in re.findall(r"\d+", wandb.__version__)[:2])
    if version < _OLDEST:
        raise BadInput(
            f"{given}: the package wandb is {wandb.__version__}, must be "
            f"{'.'.join(map(str, _OLDEST))} or later: pip install --upgrade 'jaxbench[wandb]'"
        )
    return wandb


class WandbWriter:
    """Hands wandb a run's records, in a thread of its own: a wandb that hangs holds up nothing.

    Neither does one that fails: it is said once, and the run goes on without it.

    Args:
      folder: the run's; gets a folder `wandb`, its last two names become the run's.
      project: where the run belongs.
      train_figures, eval_figures: names of a task's figures, without their `train_`, `eval_`.
      config: the experiment's fields, dictionaries within dictionaries.
      say: prints a line.

    Raises:
      WandbFailed: it could not begin.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        project: str,
        train_figures: Sequence[str],
        eval_figures: Sequence[str],
        config: Mapping[str, Any],
        say: Callable[[str], None],
    ):
        self._folder = folder
        self._curves = Curves(train_figures, eval_figures)
        self._say = say
        self._status = "failed"  # unless the summary says better
        self._failure: Exception | None = None
        self._told = False
        begin = functools.partial(_begin, folder, project, finite(dict(config)))
        # The main thread must not wait for a lock that another thread holds; these are C.
        self._begun: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, args=(begin,), name="wandb writer", daemon=True
        )
        self._thread.start()
        failure = self._begun.get()
        if failure is not None:
            raise WandbFailed(f"--wandb={project}: {_one_line(failure)}") from failure

    def _work(self, begin: Callable[[], Any]) -> None:
        try:
            run = begin()
        except Exception as error:
            self._begun.put(error)
            return
        self._begun.put(None)
        while (call := self._calls.get()) is not None:
            try:
                call(run)
            except Exception as error:
                self._failure = error

    def write(self, record: Mapping[str, Any]) -> None:
        points = self._curves.points(record)
        if points:
            step, ends = record["step"], record["kind"] == "epoch"
            # The last step's record and its epoch's are one row; the latter ends it.
            self._call(lambda run: run.log(points, step=step, commit=ends))
        if record["kind"] == "summary":
            self._status = record["status"]
            figures = {
                key: value
                for key, value in finite(dict(record)).items()
                if key != "kind" and value is not None
            }
            self._call(lambda run: run.summary.update(figures))

    def add_images(self, tag: str, images_NxHxWxC: np.ndarray, step: int) -> None:
        """Shows a few images side by side.

        Args:
          tag: what they are.
          images_NxHxWxC: uint8, one channel or three.
          step: when.
        """
        row_HxWxC = np.concatenate(list(images_NxHxWxC), axis=1)

        def log(run: Any) -> None:
            import wandb

            run.log({tag: wandb.Image(row_HxWxC)}, step=step)

        self._call(log)

    def _call(self, call: Callable[[Any], None]) -> None:
        self._tell()
        if self._failure is None:
            self._calls.put(call)

    def _tell(self) -> None:
        if self._failure is not None and not self._told:
            self._told = True
            self._say(f"wandb failed, the run goes on without it: {_one_line(self._failure)}")

    def flush(self) -> None:
        """What wandb has, it has in files of its own."""

    def close(self) -> None:
        exit_code = 0 if self._status == "done" else 1
        self._calls.put(lambda run: run.finish(exit_code=exit_code))
        self._calls.put(None)
        self._thread.join(_LONGEST_CLOSE_S)
        self._tell()
        if self._thread.is_alive():
            self._say(
                f"wandb did not end in {_LONGEST_CLOSE_S:g} s, cut short; what it has is in "
                f"{self._folder / 'wandb'}: `wandb sync` sends it"
            )
            _end_service()


def _begin(folder: pathlib.Path, project: str, config: Mapping[str, Any]) -> Any:
    import wandb

    # Only what this writer hands over is sent: neither output, code, commit, command line nor
    # host; nor does wandb sample the hardware beside our own telemetry.
    settings = wandb.Settings(
        console="off",
        disable_git=True,
        finish_timeout=_SENDING_S,
        host="",
        label_disable=True,
        save_code=False,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    name = "/".join(folder.absolute().parts[-2:])
    # A run that goes on after its process's end goes on there too.
    own_id = folder / "wandb" / "run-id"
    if own_id.exists():
        again = {"id": own_id.read_text().strip(), "resume": "allow"}
    else:
        again = {"id": uuid.uuid4().hex[:12]}
        own_id.parent.mkdir(parents=True, exist_ok=True)
        own_id.write_text(again["id"])
    return wandb.init(
        project=project, name=name, dir=str(folder), config=dict(config), settings=settings, **again
    )


def _end_service() -> None:
    """Ends wandb's service, for which it would wait, without end, when Python exits."""
    for child in psutil.Process().children():
        try:
            if child.name() == _SERVICE:
                child.kill()
        except psutil.Error:  # it has ended by itself
            continue


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
