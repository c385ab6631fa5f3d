"""What a sweep asks of a host by ssh: `python -m jaxbench.launchers.remote VERB`, request on stdin.

The trial runs under a process of its own on that host, so that it survives a lost connection and
its end can be asked for later. Each attempt has a folder there: job.json, lock, log, run/ (its
records) and, once it has ended, end.json.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from jaxbench.clock import Stopwatch, pause
from jaxbench.errors import Terminated, first_line
from jaxbench.launchers.launcher import read_json, write_json
from jaxbench.launchers.run_job import run_job, write_job
from jaxbench.parallel.child import last_line
from jaxbench.parallel.signals import raise_on_signals
from jaxbench.terminal import warn

# What the host's shell prints before it is no part of an answer.
MARK = b"jaxbench-reply\n"
_POLL_S = 0.5


def answer(verb: str, request: Mapping[str, Any], output: BinaryIO) -> None:
    """Answer a request: `files` with a tar file, any other with a line of JSON."""
    if verb == "check":
        reply = _check(request)
    else:
        folder = _folder(request) / "trials" / request["id"]
        if verb == "files":
            output.write(MARK)
            return _send_files(folder, output)
        reply = {"start": _start, "state": _state, "end": _end, "forget": _forget}[verb](
            folder, request
        )
    output.write(MARK + json.dumps(reply).encode() + b"\n")


def _folder(request: Mapping[str, Any]) -> pathlib.Path:
    return pathlib.Path(request["folder"]).expanduser().absolute()


def _check(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make the folder; return versions, devices and processor."""
    folder, variables = _folder(request), request["variables"]
    folder.mkdir(parents=True, exist_ok=True)
    # Not to take memory from other programs of the devices.
    os.environ.update({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | variables)
    # Imported here: only this verb needs JAX, and its variables must be set before.
    import jax

    from jaxbench.hardware.environment import describe_code, describe_environment

    found = read_json(folder / "devices.json")
    # A trial that a killed sweep has left here may have the devices to itself.
    if not _is_locked(folder) or found.get("variables") != variables:
        environment = describe_environment(jax.devices())
        names = ("backend", "cpu", "device_kind", "num_devices")
        found = {name: environment[name] for name in names} | {"variables": variables}
        write_json(folder / "devices.json", found)
    return found | {"versions": describe_code()}


def _start(folder: pathlib.Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Start an attempt, once: the request may come again after its answer was lost."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return {}
    write_job(
        folder / "job.json",
        request["arguments"],
        request["limits"],
        request["variables"],
        run_path=folder / "run",
        log=folder / "log",
        end=folder / "end.json",
    )
    # The process gets the lock with its first breath, so nobody finds it without.
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = _spawn(folder, lock)
    os.close(lock)
    (folder / "pid").write_text(str(pid))
    return {}


def _spawn(folder: pathlib.Path, lock: int) -> int:
    """Start the process that runs the trial of a folder; return its id."""
    with open(folder / "supervisor.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxbench.launchers.remote", "supervise", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
            cwd=folder.parent.parent,
        ).pid


def _supervise(folder: pathlib.Path) -> None:
    """Run the trial of a folder, after any other of this host that a sweep has started there."""
    raise_on_signals()
    try:
        with open(folder.parent.parent / "lock", "a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            run_job(folder / "job.json")
    except (KeyboardInterrupt, Terminated):
        shutil.rmtree(folder, ignore_errors=True)  # its sweep has ended it


def _state(folder: pathlib.Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether an attempt is running, ended or gone, after `wait_s` where it is running."""
    watch = Stopwatch()
    while (running := _is_locked(folder)) and watch.elapsed_s() < request["wait_s"]:
        pause(_POLL_S)
    # Read after the lock was looked at: the process writes it before it ends.
    if end := read_json(folder / "end.json"):
        return {"state": "ended", "end": end}
    log = folder / "log"
    line = last_line(log) if log.exists() else "waits for another trial on this host"
    return {"state": "running" if running else "gone", "line": line}


def _is_locked(folder: pathlib.Path) -> bool:
    try:
        with open(folder / "lock", "r+") as lock:
            # Shared: another that asks at the same time is none that runs.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _send_files(folder: pathlib.Path, output: BinaryIO) -> None:
    with tarfile.open(fileobj=output, mode="w|") as archive:
        for name in ("log", "run"):
            if (folder / name).exists():
                archive.add(folder / name, name)


def _end(folder: pathlib.Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """End an attempt; it cannot be started after this. Return whether it had ended already."""
    folder.mkdir(parents=True, exist_ok=True)
    if _is_locked(folder):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
            os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    return {"ended": (folder / "end.json").exists()}


def _forget(folder: pathlib.Path, request: Mapping[str, Any]) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    return {}


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        _supervise(pathlib.Path(sys.argv[2]))
    else:
        try:
            answer(sys.argv[1], json.load(sys.stdin), sys.stdout.buffer)
        except Exception as error:  # whoever asks gets one line
            warn(f"{type(error).__name__}: {first_line(error)}")
            sys.exit(1)
