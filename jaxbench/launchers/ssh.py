"""Run trials on other machines by ssh, one at a time on each.

Each running trial has a thread here, which asks its host how it stands and brings its files here.
"""

import concurrent.futures
import contextlib
import dataclasses
import queue
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.launchers.connection import Closed, Connection, HostLost
from jaxbench.launchers.hosts import read_hosts
from jaxbench.launchers.launcher import LOST, Ended, Limits, TrialJob, read_json, write_json
from jaxbench.launchers.ssh_check import check_hosts, forwarded_variables
from jaxbench.parallel.child import ProcessResult
from jaxbench.paths import user_path

_POLL_S = 0.5
# A host answers when the trial ends, or after this; the first time sooner, to have a line to show.
_STATE_WAIT_S, _FIRST_WAIT_S = 30.0, 1.0
_LOST_AFTER_S = 180.0


@dataclasses.dataclass
class _Run:
    """An attempt on a host.

    Attributes:
      request: names the attempt on the host.
      error: what ended the thread that follows it, where that was no answer of the host.
    """

    job: TrialJob
    connection: Connection
    request: dict[str, str]
    line: str = ""
    error: Exception | None = None

    @property
    def host(self) -> str:
        return self.connection.host.name


class SshLauncher:
    """See `Launcher`.

    Args:
      connections: to the hosts, which are of one kind.
      kind: that of their hardware.
      lost_after_s: seconds after which a host that does not answer is lost.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        kind: str,
        limits: Limits,
        say: Callable[[str], None],
        lost_after_s: float,
    ):
        self.hardware = ("launcher=ssh", f"kind={kind}")
        self._idle = [*connections]
        self._limits, self._say, self._lost_after_s = limits, say, lost_after_s
        self._running: dict[str, _Run] = {}
        self._ended: queue.SimpleQueue[tuple[_Run | None, Ended]] = queue.SimpleQueue()

    @property
    def slots(self) -> int:
        return len(self._idle) + len(self._running)

    def start(self, job: TrialJob) -> None:
        connection = self._idle.pop(0)
        run_id = f"{job.log.parent.name}-{job.log.stem}-{uuid.uuid4().hex[:8]}"
        request = {"folder": connection.host.folder, "id": run_id}
        write_json(job.note_path, {"launcher": "ssh", "host": connection.host.name, **request})
        self._follow(_Run(job, connection, request), starts=True)

    def attach(self, job: TrialJob) -> bool:
        note = read_json(job.note_path)
        if "end" in note:
            end = note["end"]
            self._ended.put((None, Ended(job.key, _process_result(end), note["host"])))
            return True
        connection = next((c for c in self._idle if c.host.name == note.get("host")), None)
        if connection is None or note.get("launcher") != "ssh":
            return False
        run = _Run(job, connection, {"folder": note["folder"], "id": note["id"]})
        try:
            state = self._ask(run, "state", wait_s=0)["state"]
        except HostLost as error:
            self._leave_out(connection, error)
            return False
        if state != "gone":
            self._idle.remove(connection)
            self._follow(run, starts=False)
        return state != "gone"

    def wait(self) -> list[Ended]:
        try:
            run, ended = self._ended.get(timeout=_POLL_S)
        except queue.Empty:
            return []
        if run is None:  # it had ended before this sweep began
            return [ended]
        del self._running[ended.key]
        if run.error is not None:
            raise run.error
        if ended.process.status == LOST:
            self._say(f"{run.host}: is left out from here on: {ended.process.reason}")
        else:
            self._idle.append(run.connection)
        return [ended]

    def last_line(self, key: str) -> str:
        return self._running[key].line if key in self._running else ""

    def close(self) -> None:
        runs = [*self._running.values()]
        self._running.clear()
        for run in runs:
            run.connection.close()
        with concurrent.futures.ThreadPoolExecutor(len(runs) or 1) as pool:
            for line in filter(None, pool.map(_end, runs)):
                self._say(line)

    def _follow(self, run: _Run, starts: bool) -> None:
        self._running[run.job.key] = run
        threading.Thread(target=self._work, args=(run, starts), daemon=True).start()

    def _work(self, run: _Run, starts: bool) -> None:
        """Follow an attempt to its end, on a thread of its own."""
        result = None
        try:
            if starts:
                self._ask(
                    run,
                    "start",
                    arguments=run.job.arguments,
                    limits=self._limits._asdict(),
                    variables=forwarded_variables(),
                )
            result = self._result(run)
        except Closed:
            return
        except HostLost as error:
            result = ProcessResult(LOST, str(error), None, 0.0)
        except Exception as error:  # raised by the sweep's own thread
            run.error = error
            result = ProcessResult(LOST, None, None, 0.0)
        self._ended.put((run, Ended(run.job.key, result, run.host)))

    def _result(self, run: _Run) -> ProcessResult:
        wait_s = _FIRST_WAIT_S
        while (reply := self._ask(run, "state", wait_s=wait_s))["state"] == "running":
            run.line, wait_s = reply["line"], _STATE_WAIT_S
        if reply["state"] == "gone":
            raise HostLost("the trial's process was killed there")
        self._fetch(run)
        note = read_json(run.job.note_path) | {"end": reply["end"]}
        write_json(run.job.note_path, note)
        with contextlib.suppress(HostLost):
            run.connection.ask("forget", run.request)
        return _process_result(reply["end"])

    def _fetch(self, run: _Run) -> None:
        """Bring an attempt's files here, to where a trial of this machine would have them."""
        job = run.job
        partial = job.run_path.with_name(f"{job.run_path.name}.partial")
        for folder in (partial, job.run_path):  # of a sweep that was killed meanwhile
            shutil.rmtree(folder, ignore_errors=True)
        run.connection.fetch(run.request, partial, self._lost_after_s)
        for name, path in (("log", job.log), ("run", job.run_path)):
            if (partial / name).exists():
                (partial / name).rename(path)
        shutil.rmtree(partial)

    def _ask(self, run: _Run, verb: str, **fields: Any) -> dict[str, Any]:
        return run.connection.ask(verb, run.request | fields, self._lost_after_s)

    def _leave_out(self, connection: Connection, error: Exception) -> None:
        self._idle.remove(connection)
        self._say(f"{connection.host.name}: is left out: {error}")


def _end(run: _Run) -> str | None:
    """End an attempt, so that nobody takes it up again; return a line where it may go on.

    One that has ended on its own is left to the next sweep.
    """
    if "end" in read_json(run.job.note_path):
        return None
    try:
        if not run.connection.again().ask("end", run.request)["ended"]:
            run.job.note_path.unlink()
    except HostLost as error:
        return f"{run.host}: its trial was not ended and may go on: {error}"
    return None


def _process_result(end: dict[str, Any]) -> ProcessResult:
    return ProcessResult(*(end.get(name) for name in ProcessResult._fields))


def create(
    limits: Limits,
    say: Callable[[str], None],
    *,
    hosts: str | None = None,
    ssh_config: str | None = None,
    lost_after_s: float = _LOST_AFTER_S,
) -> SshLauncher:
    """Check the hosts of a hosts file, and make a launcher of those that can be used.

    Raises:
      BadInput: the file is not as it must be, or no host can be used.
    """
    if not hosts:
        raise BadInput("--launcher=ssh: give --hosts=FILE, a line for each host")
    if ssh_config is not None and not user_path(ssh_config).is_file():
        raise BadInput(f"--ssh_config={ssh_config}: there is no such file")
    if not lost_after_s > 0:  # nan, too
        raise BadInput(f"--lost_after_s={lost_after_s}: must be more than 0")
    listed = read_hosts(hosts)
    if shutil.which("ssh") is None:
        raise BadInput("--launcher=ssh: there is no program ssh on PATH")
    config = ssh_config and str(user_path(ssh_config))
    connections, kind = check_hosts(hosts, [Connection(host, config) for host in listed], say)
    return SshLauncher(connections, kind, limits, say, lost_after_s)
