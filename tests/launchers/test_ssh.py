"""Sweeps over ssh: hosts that die, come back and are taken up again. No process is started."""

import fcntl
import io
import json
import os
import pathlib
import tarfile
import threading
from unittest import mock

import jax
import pytest

from jaxbench.clock import wait_until
from jaxbench.errors import BadInput, Unreachable
from jaxbench.launchers import remote, ssh, ssh_check
from jaxbench.launchers.connection import Closed, Connection
from jaxbench.launchers.hosts import Host
from jaxbench.launchers.launcher import LOST, Limits, TrialJob, create_launcher, read_json
from jaxbench.records.writers.console import Console
from jaxbench.sweeps.sweep_dir import open_sweepdir
from jaxbench.sweeps.trials import TrialRunner, run_trials
from tests.sweeps.test_sweep import make

END = {"status": "exited", "reason": None, "exit_code": 0, "wall_s": 2.0, "host": "node"}


class Hosts:
    """What answers for the hosts, in this process.

    Attributes:
      folders: {host: its folder}.
      down: hosts that nobody can reach.
      holding: hosts whose trials do not end before `finish`.
      asked: (host, verb) of each request that was answered.
      failures: how many more requests get no answer.
    """

    def __init__(self, folder: pathlib.Path):
        self.folders = {name: folder / name for name in ("one", "two")}
        self.down, self.holding, self.asked, self.failures = set(), set(), [], 0
        self.said, self._locks, self._connections = [], {}, []

    def call(self, connection, verb, request, output):
        name = connection.host.name
        if self.failures:
            self.failures -= 1
            output.write(b"x" * 10_000)
            return "Connection timed out"
        if name in self.down or connection._closed.is_set():
            return "No route to host"
        output.write(b"Welcome!\n")
        try:
            remote.answer(verb, json.loads(request), output)
        except OSError as error:
            return str(error)
        output.write(b"Goodbye!\n")
        self.asked.append((name, verb))
        return None

    def spawn(self, folder, lock):
        """Stands for the process that runs the trial."""
        self._locks[folder] = os.dup(lock)
        if folder.parent.parent.name not in self.holding:
            self.finish(folder)
        return 2**22 + 1  # no process has it

    def finish(self, folder, end=END):
        (folder / "log").write_text("compiling\nall done\n")
        (folder / "run").mkdir()
        (folder / "run" / "metrics.jsonl").write_text("")
        if end:
            (folder / "end.json").write_text(json.dumps(end))
        os.close(self._locks.pop(folder))

    def trial(self, host):
        """The only attempt that a host has."""
        wait_until(lambda: [*self.folders[host].glob("trials/*/pid")])
        [pid] = self.folders[host].glob("trials/*/pid")
        return pid.parent

    def close(self):
        """Ends the threads of all launchers, which would ask real hosts after the test."""
        for connection in self._connections:
            connection.close()
        for thread in threading.enumerate():
            if "_work" in thread.name:
                thread.join()

    def launcher(self, lost_after_s=0.05):
        connections = [
            Connection(Host(name, name, folder=str(folder)), None)
            for name, folder in self.folders.items()
        ]
        self._connections += connections
        return ssh.SshLauncher(connections, "tpu", Limits(), self.said.append, lost_after_s)


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    made = Hosts(tmp_path)
    monkeypatch.setattr(Connection, "call", lambda *given: made.call(*given))
    monkeypatch.setattr(remote, "_spawn", made.spawn)
    monkeypatch.setattr(remote, "_POLL_S", 0.01)
    monkeypatch.setattr(ssh, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(ssh, "_STATE_WAIT_S", 0.02)
    yield made
    made.close()


def job_of(tmp_path, key="a"):
    folder = tmp_path / "s" / key
    folder.mkdir(parents=True, exist_ok=True)
    return TrialJob(key, ("--experiment=x",), folder / "run1", folder / "run1.log")


def first_of(launcher):
    ended = []
    wait_until(lambda: ended.extend(launcher.wait()) or ended)
    [only] = ended
    return only


def test_a_trial_runs_on_a_host_and_its_files_come_here(hosts, tmp_path):
    hosts.holding.add("one")
    launcher, job = hosts.launcher(), job_of(tmp_path)
    assert launcher.slots == 2
    launcher.start(job)
    # Meanwhile the host knows what it runs, and its log is seen here.
    folder = hosts.trial("one")
    started = read_json(folder / "job.json")
    assert started["arguments"] == ["--experiment=x", f"--workdir={folder / 'run'}"]
    assert started["variables"]["JAX_PLATFORMS"] == os.environ["JAX_PLATFORMS"]
    (folder / "log").write_text("step 1\n\nstep 2\n\n")
    wait_until(lambda: launcher.last_line("a") == "step 2")
    assert launcher.wait() == [] and launcher.slots == 2
    hosts.finish(folder)
    ended = first_of(launcher)
    assert (ended.key, ended.host, ended.process.status, ended.process.wall_s) == (
        *("a", "one", "exited"),
        2.0,
    )
    assert job.log.read_text() == "compiling\nall done\n"
    assert [path.name for path in job.run_path.iterdir()] == ["metrics.jsonl"]
    assert not folder.exists() and read_json(job.note_path)["end"] == END
    assert [path.name for path in sorted(job.log.parent.iterdir())] == [
        *("run1", "run1.job.json", "run1.log")
    ]


def test_a_lost_connection_loses_no_trial(hosts, tmp_path):
    hosts.holding.add("one")
    launcher, job = hosts.launcher(lost_after_s=0.5), job_of(tmp_path)
    launcher.start(job)
    folder = hosts.trial("one")
    hosts.failures = 2
    wait_until(lambda: hosts.failures == 0)
    hosts.finish(folder)
    assert first_of(launcher).process.status == "exited" and not hosts.said


@pytest.mark.parametrize("dies", ["unreachable", "trial killed"])
def test_the_trial_of_a_dead_host_runs_on_another(hosts, tmp_path, dies):
    hosts.holding.add("one")
    launcher, said = hosts.launcher(), io.StringIO()

    def kill():
        folder = hosts.trial("one")
        if dies == "unreachable":
            hosts.down.add("one")
        else:
            hosts.finish(folder, end=None)

    threading.Thread(target=kill).start()
    trials = [trial.on(launcher.hardware) for trial in make("seed=0,1,2")]
    with open_sweepdir(tmp_path / "sweep") as folder:
        run_trials(TrialRunner(folder, Console(said), launcher), trials)
        results = [folder.results[trial.key] for trial in trials]
    # These trials have no run.json.
    assert [result.exit_code for result in results] == [0, 0, 0]
    assert [result.log.rpartition("/")[2] for result in results] == ["run2.log"] + ["run1.log"] * 2
    assert len(hosts.said) == 1 and hosts.said[0].startswith("one: is left out from here on: ")
    assert launcher.slots == 1 and said.getvalue().count("lost with one") == 1
    assert "[1/3] seed=0: lost with one (" in said.getvalue()


def test_a_sweep_without_hosts_ends(hosts, tmp_path):
    launcher, trials = hosts.launcher(), make("seed=0,1,2")
    hosts.down |= {"one", "two"}
    with (
        open_sweepdir(tmp_path / "sweep") as folder,
        pytest.raises(Unreachable, match="3 are to run"),
    ):
        run_trials(TrialRunner(folder, Console(io.StringIO()), launcher), trials)
    assert not folder.results


def test_a_new_sweep_takes_up_what_a_killed_one_has_started(hosts, tmp_path):
    """Whatever the trial came to meanwhile; and a trial that is nowhere is run again."""
    hosts.holding |= {"one", "two"}
    killed, job, other = hosts.launcher(), job_of(tmp_path), job_of(tmp_path, "b")
    killed.start(job)
    killed.start(other)
    one, two = hosts.trial("one"), hosts.trial("two")
    for run in killed._running.values():
        run.connection.close()
    threads = [thread for thread in threading.enumerate() if "_work" in thread.name]
    for thread in threads:
        thread.join()
    assert not hosts.launcher().attach(job_of(tmp_path, "never started"))
    # One still runs, the other has ended.
    hosts.finish(two)
    taken = hosts.launcher()
    assert taken.attach(job) and taken.attach(other) and taken.slots == 2
    assert first_of(taken).key == "b"
    hosts.finish(one)
    assert first_of(taken).key == "a"
    assert sorted(asked for asked in hosts.asked if asked[1] == "start") == [
        *(("one", "start"), ("two", "start"))
    ]
    # Its files are here and its end is noted: no host is needed.
    hosts.down |= {"one", "two"}
    again = hosts.launcher()
    assert again.attach(job)
    [ended] = again.wait()
    assert ended.process.wall_s == 2.0 and again.slots == 2


def test_what_is_nowhere_is_not_taken_up(hosts, tmp_path):
    hosts.holding.add("one")
    killed, job = hosts.launcher(), job_of(tmp_path)
    killed.start(job)
    folder = hosts.trial("one")
    hosts.finish(folder, end=None)  # the host was restarted
    launcher = hosts.launcher()
    assert not launcher.attach(job) and launcher.slots == 2
    hosts.down.add("one")
    assert not launcher.attach(job) and launcher.slots == 1
    assert hosts.said[-1] == "one: is left out: No route to host"


def test_a_sweep_that_ends_ends_its_trials(hosts, tmp_path):
    hosts.holding |= {"one", "two"}
    launcher, job, other = hosts.launcher(), job_of(tmp_path), job_of(tmp_path, "b")
    launcher.start(job)
    launcher.start(other)
    folder = hosts.trial("one")
    hosts.trial("two")
    hosts.down.add("two")
    launcher.close()
    assert ("one", "end") in hosts.asked and not job.note_path.exists()
    # Nobody knows what the other does: it may be taken up.
    assert hosts.said == ["two: its trial was not ended and may go on: No route to host"]
    assert other.note_path.exists()
    # A request to start that comes late starts nothing.
    late = {"folder": str(hosts.folders["one"]), "id": "late"}
    remote.answer("end", late, io.BytesIO())
    remote.answer("start", late | {"arguments": [], "limits": {}, "variables": {}}, io.BytesIO())
    assert not (hosts.folders["one"] / "trials" / "late" / "pid").exists() and folder.exists()


def test_what_has_ended_by_itself_outlives_the_end_of_its_sweep(hosts, tmp_path):
    launcher, job = hosts.launcher(), job_of(tmp_path)
    launcher.start(job)
    wait_until(lambda: "end" in read_json(job.note_path))
    launcher.close()
    assert hosts.launcher().attach(job) and ("one", "end") not in hosts.asked


def test_a_host_writes_nowhere_else(hosts, tmp_path, monkeypatch):
    job = job_of(tmp_path)

    def send(folder, output):
        with tarfile.open(fileobj=output, mode="w|") as archive:
            archive.addfile(tarfile.TarInfo("../../../evil"), io.BytesIO())

    monkeypatch.setattr(remote, "_send_files", send)
    launcher = hosts.launcher()
    launcher.start(job)
    ended = first_of(launcher)
    assert ended.process.status == LOST and "files came damaged" in ended.process.reason
    assert not (tmp_path / "evil").exists() and not (tmp_path / "s" / "evil").exists()


def checked(monkeypatch, hosts, kinds=(None, None), **answers):
    """Checks the two hosts, which answer so; returns the kind of their hardware."""
    same = {"backend": "gpu", "cpu": "some", "device_kind": "H100", "num_devices": 8}

    def call(connection, verb, request, output):
        answer = answers.get(connection.host.name, {})
        if isinstance(answer, str):
            return answer
        if not isinstance(answer, bytes):
            answer = json.dumps(same | {"versions": CODE} | answer).encode()
        output.write(remote.MARK + answer)

    monkeypatch.setattr(Connection, "call", call)
    monkeypatch.setattr("jaxbench.hardware.environment.describe_code", lambda: CODE)
    connections = [
        Connection(Host(name, name, kind=kind), None)
        for name, kind in zip(hosts.folders, kinds, strict=True)
    ]
    usable, kind = ssh_check.check_hosts("hosts.txt", connections, hosts.said.append)
    return [connection.host.name for connection in usable], kind


CODE = {"jax": "0.10.2", "jaxbench's source (SHA-256)": "abc"}


def test_hosts_are_checked_first(hosts, monkeypatch):
    assert checked(monkeypatch, hosts) == (["one", "two"], "8 x H100")
    assert hosts.said == ["2 of 2 hosts, each with 8 x H100"]
    assert checked(monkeypatch, hosts, one="No module named jaxbench") == (["two"], "8 x H100")
    assert hosts.said[1] == "one: is left out: No module named jaxbench"
    cpu = {"backend": "cpu", "device_kind": "cpu"}
    assert checked(monkeypatch, hosts, one=cpu, two=cpu)[1] == "8 x cpu (some)"
    with pytest.raises(BadInput, match="one has 8 x H100; two has 4 x H100; give each kind"):
        checked(monkeypatch, hosts, two={"num_devices": 4})
    assert checked(monkeypatch, hosts, ("a", "a"), two={"num_devices": 4})[1] == "a"
    # Not what this version answers.
    for answer, told in {
        b"[1,": "is damaged: b'[1,'",
        b'"a"': "is damaged",
        b"{}": "'backend'",
    }.items():
        assert checked(monkeypatch, hosts, two=answer) == (["one"], "8 x H100")
        assert "two: is left out: its " in hosts.said[-2] and told in hosts.said[-2]
    with pytest.raises(BadInput, match=r"hosts\.txt: none of its 2 hosts can be used"):
        checked(monkeypatch, hosts, one="no", two="no")
    del hosts.said[:]
    checked(monkeypatch, hosts, two={"versions": CODE | {"jax": "0.9.0"}})
    assert len(hosts.said) == 2 and "the hosts differ in jax: 0.10.2 on " in hosts.said[0]


def test_a_host_that_is_busy_is_known_from_before(hosts, tmp_path, monkeypatch):
    folder = tmp_path / "host"

    def check(**variables):
        output = io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote.os, "environ", dict(os.environ))
            remote.answer("check", {"folder": str(folder), "variables": variables}, output)
        return json.loads(output.getvalue().splitlines()[-1])

    before = check()
    assert (before["backend"], before["num_devices"]) == ("cpu", jax.device_count())
    assert before["versions"]["jax"] == jax.__version__
    in_use = mock.Mock(side_effect=RuntimeError("the TPU is in use by another process"))
    monkeypatch.setattr(jax, "devices", in_use)
    with open(folder / "lock", "a") as lock:
        with pytest.raises(RuntimeError):  # by whom nobody knows
            check()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert check() == before
        with pytest.raises(RuntimeError):
            check(XLA_FLAGS="--xla_force_host_platform_device_count=3")


def test_two_that_ask_do_not_take_each_other_for_a_trial(tmp_path):
    (tmp_path / "lock").write_text("")
    with open(tmp_path / "lock", "r+") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # as another request does for a moment
        assert not remote._is_locked(tmp_path)
        fcntl.flock(asking, fcntl.LOCK_EX)
        assert remote._is_locked(tmp_path)


def test_hardware_is_part_of_a_key_elsewhere(hosts):
    [here] = make("seed=0")
    there = here.on(hosts.launcher().hardware)
    assert here.on(()).key == here.key != there.key
    assert there.with_field("batch_size", 64).key != here.with_field("batch_size", 64).key


def test_a_launcher_that_there_is_not_is_told():
    with pytest.raises(BadInput, match="one of local, .*ssh; did you mean 'ssh'"):
        create_launcher("shh", Limits(), print, {})
    with pytest.raises(BadInput, match="--gpus with --launcher=ssh: there is no such option"):
        create_launcher("ssh", Limits(), print, {"gpus": 1})


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--launcher=shh"], "local"),
        (["--launcher=ssh"], "give --hosts=FILE"),
        (["--hosts=x"], "--hosts with --launcher=local: it needs --launcher=ssh"),
        (["--launcher=ssh", "--hosts=x"], "--hosts=x: No such file"),
        (["--launcher=ssh", "--hosts=x", "--ssh_config=y"], "--ssh_config=y: there is no such"),
        (["--launcher=ssh", "--hosts=x", "--lost_after_s=0"], "lost_after_s"),
    ],
)
def test_bad_flags_are_told(run_cli, tmp_path, args, told):
    quick = ("--experiment=quickstart:tiny", "--mode=memory", "--grid=seed=1")
    done = run_cli(*quick, *args, module="jaxbench.sweep")
    assert done.returncode == 2 and told in done.stderr and not os.listdir(tmp_path)


def test_ctrl_c_does_not_wait_for_a_host_that_is_asked():
    class Silent(Connection):
        def ask(self, *_):
            assert self._closed.wait(30)
            raise Closed

    class Interrupted(Connection):
        ask = mock.Mock(side_effect=KeyboardInterrupt)

    connections = [made(Host("a", "a"), None) for made in (Silent, Interrupted)]
    with pytest.raises(KeyboardInterrupt):
        ssh_check.check_hosts("hosts.txt", connections[::-1], print)
    assert connections[0]._closed.is_set()
