"""A real Slurm of one node on this machine: munged, slurmctld and slurmd of a test module's own.

The daemons listen on loopback, and trust only those who can read the key. They end with the test
process, however that ends. The node has 12 CPUs and 4 GPUs for Slurm to give away, whatever the
machine has.
"""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time

import pytest

from jaxbench.parallel.child import LAUNCHER

_DAEMONS = ("munged", "slurmctld", "slurmd")
# A requeued job waits for `cred_expire`, 2 minutes by default.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={slurmctld_port}
SlurmdPort={slurmd_port}
CommunicationParameters=NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
PlugStackConfig={folder}/plugstack.conf
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=20
MinJobAge=3600
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
# JAX's port is made of the job's number, and another cluster may run beside this one.
FirstJobId={first_job}
NodeName={host} NodeAddr=127.0.0.1 CPUs=12 Gres=gpu:4
PartitionName=test Nodes=ALL Default=YES
"""
# Any four device files make four GPUs.
_GPUS = "".join(f"Name=gpu File=/dev/{name}\n" for name in ("full", "null", "random", "zero"))


class Cluster:
    """A Slurm that runs.

    Attributes:
      environment: variables with which Slurm's commands find it.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder, self._running = folder, []
        host = socket.gethostname().partition(".")[0]
        slurmctld_port, slurmd_port = _free_ports(2)
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                host=host,
                slurmctld_port=slurmctld_port,
                slurmd_port=slurmd_port,
                first_job=slurmctld_port,
            )
        )
        (folder / "gres.conf").write_text(_GPUS)
        (folder / "plugstack.conf").touch()
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        # The tests themselves may run under Slurm.
        outside = {name: text for name, text in os.environ.items() if name[:5] != "SLURM"}
        self.environment = outside | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons; return when the node takes jobs."""
        # Without --force it refuses a socket that other users cannot reach.
        munge = [
            f"--{option}={self._folder}/munge.{name}"
            for option, name in {
                **{"key-file": "key", "socket": "socket", "pid-file": "pid"},
                **{"seed-file": "seed", "log-file": "log"},
            }.items()
        ]
        self._start("munged", "--foreground", "--force", *munge)
        self._wait((self._folder / "munge.socket").exists)
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._wait(lambda: self.run("sinfo", "-h", "-o%T", check=False).strip() == "idle")

    def _start(self, *command: str) -> None:
        path = _path_of(command[0])
        with open(self._folder / f"{command[0]}.out", "wb") as output:
            self._running.append(
                subprocess.Popen(
                    [*LAUNCHER, str(os.getpid()), "0", path, *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=self.environment,
                )
            )

    def _wait(self, ready) -> None:
        deadline_s = time.monotonic() + 60
        while not ready():
            ended = [p.args for p in self._running if p.poll() is not None]
            if ended or time.monotonic() > deadline_s:
                logs = {p.name: p.read_text()[-2000:] for p in self._folder.glob("*.out")}
                pytest.fail(f"Slurm does not start: {ended} {logs}")
            time.sleep(0.05)

    def end(self) -> None:
        """End all jobs and the daemons."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", check=False)
            deadline_s = time.monotonic() + 30
            while self.run("squeue", "-h", check=False) and time.monotonic() < deadline_s:
                time.sleep(0.1)
        for process in reversed(self._running):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def run(self, *command, check=True) -> str:
        """Returns what one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 or not check, (command, done.stdout, done.stderr)
        return done.stdout

    def job(self, number) -> dict[str, str]:
        """Returns what Slurm knows of a job: {JobState: RUNNING, Restarts: 0, ...}."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "-o", "show", "job", number)))

    def wait_for(self, number, *states) -> dict[str, str]:
        """Returns what Slurm knows of a job as soon as it is in one of these states."""
        deadline_s = time.monotonic() + 120
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline_s, job
            time.sleep(0.1)
        return job


def _path_of(daemon: str) -> str | None:
    # Users other than root may lack the folder in their PATH.
    return shutil.which(daemon, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster for the tests of a module; skips them where there is none to be had."""
    missing = [daemon for daemon in _DAEMONS if not _path_of(daemon)]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (Debian's packages slurm-wlm and munge)")
    if os.geteuid() != 0:
        pytest.skip("only root can start slurmd")
    slurm = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.end()
