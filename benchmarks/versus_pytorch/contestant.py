"""The processes that train in turns."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from jaxbench.errors import OUT_OF_MEMORY
from jaxbench.parallel.child import LAUNCHER

_SERVER = pathlib.Path(__file__).with_name("step_server.py").resolve()


class Contestant:
    """A process that runs nothing but in its turns.

    Attributes:
      name: as it is printed.
      facts: what it said when it was ready.
      failed: why it is out, None while it is in.
      windows_s: its measurements.
    """

    def __init__(self, name: str, python: str, task: dict[str, Any], folder: pathlib.Path):
        self.name = name
        self.facts: dict[str, Any] = {}
        self.failed: str | None = None
        self.windows_s: list[float] = []
        self.last_loss: float | None = None
        self.calls = 0
        self._log = folder / f"{name.replace(' ', '-')}.log"
        caches = str(folder / name.replace(" ", "-"))
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                # The launcher has it killed with this process, however that ends.
                [*LAUNCHER, str(os.getpid()), "0", python, str(_SERVER), json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # torch.compile's workers are stopped with it
                env=os.environ
                | {
                    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                    "TORCHINDUCTOR_CACHE_DIR": caches,
                    "TRITON_CACHE_DIR": caches,
                },
            )
        self.facts = self._answer() or {}

    def turn(self, steps: int) -> float | None:
        """Trains `steps` steps; returns their seconds, None if it failed."""
        answer = self._ask(steps)
        if answer is None:
            return None
        self.last_loss = answer["loss"]
        return answer["elapsed_s"]

    def finish(self) -> None:
        """Take down its peak memory and let it end."""
        self.facts |= self._ask(0) or {}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # what it was asked and did not read
            self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, steps: int) -> dict[str, Any] | None:
        if self.failed:
            return None
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        line = self._process.stdout.readline()
        if line:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)
            return json.loads(line)
        lines = [x.strip() for x in self._log.read_text(errors="replace").splitlines() if x.strip()]
        said = [x for x in lines if OUT_OF_MEMORY.search(x)] or lines or ["it said nothing"]
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (by the system, if it was out of memory)"
        self.failed = f"{how}: {said[-1][:300]}"
        return None


@contextlib.contextmanager
def contestants() -> Iterator[list[Contestant]]:
    """Yield a list for contestants, all of whom are gone at the end of the `with`."""
    found: list[Contestant] = []
    try:
        yield found
    finally:
        for contestant in found:
            contestant.kill()
