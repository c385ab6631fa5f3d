"""Sweeps on a real Ray: one of several nodes, which are all on this machine, and a local one."""

import ipaddress
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from jaxbench.clock import wait_until
from tests.conftest import MICRO, ROOT, run_json, table
from tests.integration.conftest import run_program, wait_for
from tests.integration.test_sweep import results, run_sweep, sweep, write_experiments

pytest.importorskip("ray", reason="needs Ray: pip install 'jaxbench[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Cluster:
    """A Ray of this user's: a node on which no trial runs, and others."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = NODE | {"num_cpus": 0, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = []
        self.shutdown = self._cluster.shutdown

    def flags(self, *args):
        return (f"--ray_address={self._cluster.address}", "--launcher=ray", "--sweepdir=s", *args)

    def add(self, **options):
        self.nodes.append(self._cluster.add_node(**NODE, **options))
        return self.nodes[-1]

    def remove(self, node, graceful=True):
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=graceful)

    def trials(self):
        """The processes of trials that run: {id: node}."""
        return {pid: node for node in self.nodes for pid in trials_of(raylet(node))}


def raylet(node):
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


def runs(process):
    """Whether a process has not ended; nobody may have asked how it did."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def trials_of(process):
    """The ids of the processes of trials below another."""
    found = []
    for child in process.children(recursive=True):
        try:
            found += [child.pid] if "jaxbench.main" in child.cmdline() else []
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        # The devices of a node, and of the sweep.
        flags = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
        patch.setenv("XLA_FLAGS", flags)
        made = Cluster()
        try:
            for _ in range(3):
                made.add()
            yield made
        finally:
            made.shutdown()


def test_every_end_is_a_result(tmp_path, cluster):
    names = write_experiments(
        tmp_path,
        micro="epochs = 2",
        large="model.hidden = (10**6, 10**6)",
        long="epochs = 10**6",
        wide="num_devices = 4",
    )
    args = (f"--grid=experiment={names}", "--timeout_s=25", "--telemetry_s=0")
    done = run_sweep(tmp_path, *cluster.flags(*args))
    rows = {pathlib.Path(row["experiment"]).stem: row for row in table(tmp_path / "s/sweep.csv")}
    found = {name: row["status"] for name, row in rows.items()}
    ends = {"micro": "done", "large": "oom", "long": "timeout", "wide": "failed"}
    assert (done.returncode, found) == (1, ends), done.stdout
    assert "num_devices=4: " in rows["wide"]["reason"]
    assert run_json(tmp_path / "s" / rows["micro"]["run"])["status"] == "done"
    assert not cluster.trials()


def test_a_trial_has_several_hosts_and_ends_with_its_sweep(tmp_path, cluster):
    args = cluster.flags("--ray_hosts=2", "--grid=seed=0", f"--experiment={MICRO}")
    args += ("--experiment.num_devices=0", "--telemetry_s=0")
    done = run_sweep(tmp_path, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = results(tmp_path / "s")
    environment = run_json(tmp_path / "s" / result["run"])["environment"]
    assert (environment["num_processes"], environment["num_devices"]) == (2, 2)
    assert len([*(tmp_path / "s").glob("trials/*/run1*.log")]) == 2
    args += ("--experiment.epochs=1000000",)
    with subprocess.Popen(
        sweep(*args), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        wait_for(lambda: len(cluster.trials()) == 2, process)
        assert len({id(node) for node in cluster.trials().values()}) == 2
        # The third node is another sweep's meanwhile.
        args = (f"--experiment={MICRO}", "--experiment.num_devices=1", "--grid=seed=0")
        assert run_sweep(tmp_path, *cluster.flags(*args, "--sweepdir=t")).returncode == 0
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "resume: " in output, output
    assert not cluster.trials()


def test_a_node_with_other_code_is_refused(tmp_path, cluster):
    shutil.copytree(ROOT / "jaxbench", tmp_path / "other" / "jaxbench")
    with open(tmp_path / "other" / "jaxbench" / "clock.py", "a") as file:
        file.write("# another version\n")
    nodes = [cluster.add(env_vars={"PYTHONPATH": str(tmp_path / "other")})]
    # An accelerator that only Ray believes in.
    nodes.append(cluster.add(num_gpus=1, resources={"accelerator_type:H100": 1}))
    try:
        args = cluster.flags("--grid=seed=0", f"--experiment={MICRO}", "--ray_resources=CPU:1")
        done = run_sweep(tmp_path, *args)
        assert done.returncode == 2 and "2 of 5 nodes are refused" in done.stderr, done.stderr
        assert done.stdout.count("is refused: jaxbench's source (SHA-256) ") == 1
        assert ": is refused: resources CPU:1,accelerator_type:H100:0.001, not" in done.stdout
        assert not (tmp_path / "s").exists()
    finally:
        for node in nodes:
            cluster.remove(node)


def test_a_node_and_the_sweep_are_killed(tmp_path, cluster):
    args = ("--grid=seed=0,1,2,3,4", f"--experiment={MICRO}", "--experiment.num_devices=1")
    args += ("--experiment.epochs=50", "--telemetry_s=0")
    command = sweep(*cluster.flags(*args))
    path, log = tmp_path / "s" / "results.jsonl", tmp_path / "log"
    with open(log, "w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file) as process:
        wait_for(lambda: path.exists() and results(tmp_path / "s"), process)
        wait_for(cluster.trials, process)
        cluster.remove(next(iter(cluster.trials().values())), graceful=False)
        wait_for(lambda: ": lost with " in log.read_text(), process)
        wait_for(cluster.trials, process)
        process.kill()
    output = log.read_text()
    assert output.count(": lost with ") == 1 and "(raylet)" not in output, output
    before = results(tmp_path / "s")
    wait_until(lambda: not cluster.trials())
    done = run_program(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(before)} of them are done already" in done.stdout
    after = results(tmp_path / "s")
    assert after[: len(before)] == before and len({result["key"] for result in after}) == 5
    # What a local sweep has, too.
    assert run_sweep(tmp_path, *args[1:], "--grid=seed=0", "--sweepdir=here").returncode == 0
    names = ("seed", "status", "eval_top1", "epochs_done", "training_flops")
    tables = [table(tmp_path / name / "sweep.csv") for name in ("s", "here")]
    rows, local_rows = ([[row[name] for name in names] for row in rows] for rows in tables)
    assert [row[:2] for row in rows] == [[seed, "done"] for seed in "01234"]
    assert rows[:1] == local_rows


FOLDER = """
import pathlib, signal, sys
from jaxbench.launchers.ray import trial_folder
with trial_folder() as name:
    pathlib.Path(name, "file").touch()
    print(name, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, 0])
def test_a_trial_leaves_no_folder_however_it_ends(number):
    process = subprocess.Popen(
        [sys.executable, "-c", FOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = pathlib.Path(process.stdout.readline().strip())
    assert (folder / "file").exists()
    if number:
        process.send_signal(number)
    process.communicate()
    assert process.returncode == -number
    wait_until(lambda: not folder.exists())


def test_a_local_ray_is_for_this_machine_only(tmp_path):
    args = ("--launcher=ray", "--sweepdir=s", f"--experiment={MICRO}", "--grid=seed=0")
    process = subprocess.Popen(sweep(*args, "--experiment.epochs=1000000"), cwd=tmp_path)
    try:
        sweeping = psutil.Process(process.pid)
        wait_for(lambda: trials_of(sweeping), process)
        processes = {one: one.name() for one in (sweeping, *sweeping.children(recursive=True))}
        listening = {
            connection.laddr.ip
            for connection in psutil.net_connections()
            if connection.status == psutil.CONN_LISTEN
            and connection.pid in {one.pid for one in processes}
        }
        addresses = [ipaddress.ip_address(ip) for ip in listening]
        assert addresses
        assert all((getattr(ip, "ipv4_mapped", None) or ip).is_loopback for ip in addresses)
    finally:
        process.kill()
        process.wait()
    # Ray's agents notice it a minute later.
    wait_until(lambda: not any(runs(one) for one, name in processes.items() if "Agent" not in name))


def test_a_cluster_that_is_not_there(tmp_path):
    args = ("--launcher=ray", f"--experiment={MICRO}", "--grid=seed=0")
    done = run_sweep(tmp_path, *args, "--ray_address=127.0.0.1:1")
    assert done.returncode == 2 and not os.listdir(tmp_path)
    [line] = done.stderr.splitlines()
    assert "--ray_address=127.0.0.1:1: no Ray that can be used: " in line
