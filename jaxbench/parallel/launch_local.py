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
from typing import Any

from jaxbench.errors import Terminated
from jaxbench.parallel.child import LAUNCHER
from jaxbench.parallel.signals import defer_signals, grace_period_s, reason_of
from jaxbench.terminal import warn

# Seconds that processes have from the end of their grace period, at which each exits, to SIGKILL.
_MARGIN_S = 10.0


def run_local_processes(command: Sequence[str], count: int) -> int:
    """Run this command in several processes, which connect on a free port; return the exit code.

    Process 0 prints the run's output. If the run fails, the end of the others' output is printed.
    Process i sees GPU i. The exit code is that of process 0 if it is not 0, else that of the first
    process that failed.
    """
    text = re.sub(r"\0--?local_processes(=[^\0]*|\0[^\0]*)", "", "\0".join(["", *command[1:]]))
    arguments = text.split("\0")[1:]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    shared = [*arguments, f"--coordinator_address={address}", f"--num_processes={count}"]
    with tempfile.TemporaryDirectory(prefix="jaxbench-") as folder:
        logs = [pathlib.Path(folder, f"process-{index}") for index in range(count)]
        children: list[subprocess.Popen] = []
        try:
            with defer_signals():
                for index, log in enumerate(logs):
                    children.append(_start([*shared, f"--process_id={index}"], index, log))
            codes = [child.wait() for child in children]
        except (KeyboardInterrupt, Terminated) as error:
            ctrl_c = isinstance(reason_of(error), KeyboardInterrupt)
            for child in children:
                child.send_signal(signal.SIGINT if ctrl_c else signal.SIGTERM)
            for child in children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(grace_period_s() + _MARGIN_S)
                child.kill()
            codes = [child.wait() for child in children]
        for index, code in enumerate(codes):
            if code < 0:
                warn(f"jaxbench: process {index} was killed by {signal.Signals(-code).name}")
        # The others' output says only that process 0 is gone if it was killed.
        if codes[0] not in (0, 2, 130, 143, -signal.SIGKILL):
            for index, log in enumerate(logs[1:], 1):
                for line in log.read_text(errors="replace").splitlines()[-20:]:
                    warn(f"process {index}: {line}")
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _start(arguments: Sequence[str], index: int, log: pathlib.Path) -> subprocess.Popen:
    """Start one of the processes; on Linux it ends with this one."""
    with open(log, "wb") as output:
        quiet: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT} if index else {}
        return subprocess.Popen(
            [*LAUNCHER, str(os.getpid()), "0", sys.executable, *arguments],
            # Ctrl-C in the terminal goes to this process only, which passes it on.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"JAX_LOCAL_DEVICE_IDS": str(index)},
            **quiet,
        )
