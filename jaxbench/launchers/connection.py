"""Ask a host by the user's own ssh program."""

import json
import pathlib
import shlex
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

from jaxbench.clock import Stopwatch
from jaxbench.files import unpack
from jaxbench.launchers.hosts import Host
from jaxbench.launchers.remote import MARK

# A connection to a machine that is gone ends after 15 s. No connection outlives its request, which
# the user's own settings may ask for: whoever reads its output would wait for it.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": 10,
    "ControlMaster": "no",
    "LogLevel": "ERROR",
    "ServerAliveCountMax": 3,
    "ServerAliveInterval": 5,
}
# What a host's shell may print before an answer.
_PREAMBLE_BYTES = 100_000
_LONGEST_RETRY_S = 5.0
_CALL_S = 300.0


class HostLost(Exception):
    """A host has not answered for too long; the message says what ssh said."""


class Closed(Exception):
    """The sweep has ended while a host was asked."""


class Connection:
    """Sends requests to one host.

    Args:
      ssh_config: for `ssh -F`, None for the user's own.
    """

    def __init__(self, host: Host, ssh_config: str | None):
        self.host, self._ssh_config = host, ssh_config
        self._closed = threading.Event()
        self._process: subprocess.Popen | None = None
        self._ssh = ["ssh", "-T"]
        self._ssh += ["-F", ssh_config] if ssh_config else []
        self._ssh += [f"-o{name}={value}" for name, value in _OPTIONS.items()]
        self._ssh += ["-p", host.port] if host.port else []

    def ask(self, verb: str, request: Mapping[str, Any], patience_s: float = 0) -> dict[str, Any]:
        """Return the answer to a request, see `remote`.

        Args:
          patience_s: how long to try again where the host does not answer.

        Raises:
          HostLost: it did not.
          Closed: `close` was called.
        """
        with tempfile.TemporaryFile(buffering=0) as output:
            self._ask(verb, request, patience_s, output)
            # What the host's shell prints after it is no part of the answer either.
            line = output.readline()
            try:
                return dict(json.loads(line))
            except (TypeError, ValueError) as error:
                raise HostLost(f"its answer is damaged: {line[:80]!r}") from error

    def fetch(
        self, request: Mapping[str, Any], folder: pathlib.Path, patience_s: float = 0
    ) -> None:
        """Copy an attempt's files into a new folder; raises what `ask` raises."""
        folder.mkdir()
        with tempfile.TemporaryFile(buffering=0, dir=folder) as output:
            self._ask("files", request, patience_s, output)
            try:
                unpack(output, folder)
            except (tarfile.TarError, FileExistsError) as error:
                raise HostLost(f"its files came damaged: {error}") from error

    def _ask(
        self, verb: str, request: Mapping[str, Any], patience_s: float, output: BinaryIO
    ) -> None:
        """Write an answer to a file without a buffer, and go to its beginning."""
        silent = None  # since the first failure
        while not self._closed.is_set():
            output.seek(0)
            output.truncate()
            error = self.call(verb, json.dumps(request).encode(), output)
            output.seek(0)
            start = output.read(_PREAMBLE_BYTES).find(MARK)
            if error is None and start >= 0:
                output.seek(start + len(MARK))
                return
            error = error or f"{self.host.python} did not answer"
            silent = silent or Stopwatch()
            if silent.elapsed_s() >= patience_s:
                raise HostLost(error)
            self._closed.wait(min(_LONGEST_RETRY_S, patience_s / 5))
        raise Closed

    def call(self, verb: str, request: bytes, output: BinaryIO) -> str | None:
        """Run ssh once; return None, or what went wrong."""
        python = self.host.python
        # The host's shell is to replace a ~.
        home, rest = ("~/", python[2:]) if python.startswith("~/") else ("", python)
        remote = f"{home}{shlex.quote(rest)} -m jaxbench.launchers.remote {verb}"
        with subprocess.Popen(
            [*self._ssh, self.host.address, remote],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
            # Ctrl-C in the terminal goes to the sweep alone.
            start_new_session=True,
        ) as process:
            self._process = process
            if self._closed.is_set():
                process.kill()
            try:
                _, said = process.communicate(request, None if verb == "files" else _CALL_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"did not answer in {_CALL_S:g} s"
        if process.returncode == 0:
            return None
        lines = [line.strip(" .") for line in said.decode(errors="replace").splitlines()]
        return next(filter(None, reversed(lines)), f"{python}: exit code {process.returncode}")

    def close(self) -> None:
        """Give up what is being asked, in another thread; nothing is asked after this."""
        self._closed.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def again(self) -> "Connection":
        """Return another connection to the same host."""
        return Connection(self.host, self._ssh_config)
