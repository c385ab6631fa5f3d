"""Run the same command in several processes of one run on this machine.

For machines with a process for each GPU, for sweeps, and for trying out multi-host training.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from jaxbench.errors import Terminated
from jaxbench.parallel.child import LAUNCHER
from jaxbench.parallel.signals import defer_signals, grace_period_s, reason_of
from jaxbench.terminal import warn

# Seconds that processes have from the end of their grace period, at which each exits, to SIGKILL.
_MARGIN_S = 10.0
_OWN_FLAG = re.compile(r"^--?local_processes(=.*)?$")


def run_local_processes(command: Sequence[str], count: int) -> int:
    """Run this command in several processes, which connect on a free port.

    Process 0 prints the run's output. The end of the others' output is printed where the run fails.
    Process i sees GPU i. Return the exit code of process 0 if that is not 0, else of the first
    process that failed.
    """
    command = _without_own_flag([sys.executable, *command[1:]])
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        logs = [pathlib.Path(folder, f"process-{index}") for index in range(count)]
        children: list[subprocess.Popen] = []
        try:
            with defer_signals():
                for index, log in enumerate(logs):
                    children.append(_start(command, port, count, index, log))
            codes = [child.wait() for child in children]
        except (KeyboardInterrupt, Terminated) as error:
            ctrl_c = isinstance(reason_of(error), KeyboardInterrupt)
            codes = _stop(children, signal.SIGINT if ctrl_c else signal.SIGTERM)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
        if codes[0] not in (0, 2, 130, 143):
            for index, log in enumerate(logs[1:], 1):
                for line in log.read_text(errors="replace").splitlines()[-20:]:
                    warn(f"process {index}: {line}")
    codes = [code if code >= 0 else 128 - code for code in codes]
    return next(filter(None, codes), 0)


def _start(
    command: Sequence[str], port: int, count: int, index: int, log: pathlib.Path
) -> subprocess.Popen:
    """Start one of the processes; on Linux it ends with this one."""
    own = [f"--coordinator_address=localhost:{port}", f"--num_processes={count}"]
    with open(log, "wb") as output:
        quiet = {"stdout": output, "stderr": subprocess.STDOUT} if index else {}
        return subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), "0", *command, *own, f"--process_id={index}"],
            # Ctrl-C in the terminal goes to this process alone, which passes it on.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"JAX_LOCAL_DEVICE_IDS": str(index)},
            **quiet,
        )


def _stop(children: Sequence[subprocess.Popen], number: signal.Signals) -> list[int]:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
    for child in children:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace_period_s() + _MARGIN_S)
        except (KeyboardInterrupt, Terminated):  # a second Ctrl-C: they end at once, too
            return _stop(children, signal.SIGINT)
        if child.poll() is None:
            child.kill()
    return [child.wait() for child in children]


def _without_own_flag(command: Sequence[str]) -> list[str]:
    rest, skip = [], False
    for argument in command:
        match = _OWN_FLAG.match(argument)
        if not match and not skip:
            rest.append(argument)
        skip = bool(match) and match[1] is None
    return rest
