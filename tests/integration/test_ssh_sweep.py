"""Sweeps over several hosts, which are sshd processes on loopback; each has a folder of its own."""

import csv
import getpass
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from jaxbench.clock import wait_until
from tests.conftest import MICRO, ROOT, run_json

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="needs OpenSSH's ssh and sshd"
)
ARGS = (f"--experiment={MICRO}", "--launcher=ssh", "--hosts=hosts.txt", "--ssh_config=ssh_config")


class FakeHost:
    """An sshd of this user on a port of its own, and the folder of the trials that it runs."""

    def __init__(self, folder: pathlib.Path, keys: pathlib.Path):
        folder.mkdir()
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {keys / 'host'}\n"
            f"AuthorizedKeysFile {keys / 'user.pub'}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        self.sshd = subprocess.Popen(
            [SSHD, "-D", "-f", str(config), "-E", str(folder / "sshd.log")],
            env={"PATH": os.environ["PATH"]},
        )

    def trials(self, name: str) -> list[pathlib.Path]:
        """The files of this name that its attempts have."""
        return sorted(self.folder.glob(f"trials/*/{name}"))

    def kill(self) -> None:
        """Ends the host: nobody can connect, nothing of its trials runs."""
        processes = [self.sshd.pid, *(int(path.read_text()) for path in self.trials("pid"))]
        for pid in processes:
            if psutil.pid_exists(pid):
                process = psutil.Process(pid)
                for one in (process, *process.children(recursive=True)):
                    one.kill()
        self.sshd.wait()


@pytest.fixture
def hosts(tmp_path):
    """Two hosts, named in hosts.txt beside one that has no jaxbench."""
    if os.geteuid() == 0:
        try:  # sshd wants it, of root alone
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        except OSError as error:
            pytest.skip(f"sshd as root needs /run/sshd: {error.strerror}")
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(make, check=True)
    python = tmp_path / "python"
    cache = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
    variables = cache | {"PYTHONPATH": str(ROOT)}
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    python.write_text(f'#!/bin/sh\necho "a banner"\nexec env {words} {sys.executable} "$@"\n')
    python.chmod(0o755)
    made = [FakeHost(tmp_path / name, keys) for name in ("one", "two")]
    (tmp_path / "ssh_config").write_text(
        f"Host *\n  User {getpass.getuser()}\n  IdentityFile {keys / 'user'}\n"
        f"  IdentitiesOnly yes\n  StrictHostKeyChecking accept-new\n"
        f"  UserKnownHostsFile {keys / 'known_hosts'}\n"
        f"Host one\n  HostName 127.0.0.1\n  Port {made[0].port}\n"
    )
    (tmp_path / "hosts.txt").write_text(
        f"# two that work\none folder={made[0].folder} python={python}\n"
        f"127.0.0.1:{made[1].port} folder={made[1].folder} python={python}\n"
        f"localhost:{made[0].port} folder={tmp_path / 'three'} python=/usr/bin/false\n"
    )
    yield made
    for host in made:
        host.kill()


def command(*args):
    return [sys.executable, "-m", "jaxbench.sweep", *ARGS, "--sweepdir=s", *args]


def start(tmp_path, *args):
    return subprocess.Popen(command(*args), cwd=tmp_path, stdout=subprocess.PIPE, text=True)


def run(tmp_path, *args):
    done = subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_sweep_over_hosts_survives_the_death_of_one(tmp_path, hosts):
    one, two = hosts
    sweep = start(tmp_path, "--grid=seed=0,1", "--lost_after_s=1")
    wait_until(lambda: two.trials("run/run.json"))
    two.kill()
    output, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, output
    assert f"localhost:{one.port}: is left out: " in output
    assert f"127.0.0.1:{two.port}: is left out from here on: " in output
    rows = list(csv.DictReader((tmp_path / "s" / "sweep.csv").read_text().splitlines()))
    assert [(row["seed"], row["status"]) for row in rows] == [(seed, "done") for seed in "01"]
    # The lost one ran once more, elsewhere.
    attempts = {row["seed"]: pathlib.Path(row["run"]).name for row in rows}
    assert attempts == {"0": "run1", "1": "run2"}
    for row in rows:
        assert run_json(tmp_path / "s" / row["run"])["status"] == "done"
    assert not one.trials("*")  # nothing is left on a host that answers


def test_a_killed_sweep_takes_up_what_runs_and_what_has_ended(tmp_path, hosts):
    one, two = hosts
    args = ("--grid=epochs=1,200",)
    killed = start(tmp_path, *args)
    wait_until(lambda: all(host.trials("run/run.json") for host in hosts))
    killed.kill()
    killed.communicate()
    pids = {run_json(path.parent)["pid"] for host in hosts for path in host.trials("run/run.json")}
    wait_until(lambda: one.trials("end.json"))
    assert not (tmp_path / "s" / "results.jsonl").exists()
    assert "2 of 2 trials ended" not in run(tmp_path, *args)
    found = results(tmp_path / "s")
    assert [result["status"] for result in found] == ["done", "done"]
    assert {run_json(tmp_path / "s" / result["run"])["pid"] for result in found} == pids


def test_ctrl_c_ends_the_trials_and_a_timeout_is_a_result(tmp_path, hosts):
    args = ("--grid=seed=0", "--experiment.epochs=100000")
    interrupted = start(tmp_path, *args)
    one = hosts[0]
    wait_until(lambda: one.trials("run/run.json"))
    [trial] = [run_json(path.parent)["pid"] for path in one.trials("run/run.json")]
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130 and "resume: " in output
    wait_until(lambda: not psutil.pid_exists(trial) and not one.trials("*"))
    run(tmp_path, *args, "--timeout_s=1")
    [result] = results(tmp_path / "s")
    assert (result["status"], result["reason"]) == ("timeout", "took longer than 1 s")
