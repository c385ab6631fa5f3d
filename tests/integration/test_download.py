"""Official files fetched by real processes: the real images, two at once, Ctrl-C in the middle."""

import os
import signal
import subprocess

import pytest

from tests.conftest import MICRO
from tests.data.file_server import Server, cifar10_archive
from tests.integration.conftest import program, wait_for

CIFAR10 = "cifar-10-binary.tar.gz"
RUN = (f"--experiment={MICRO}", "--experiment.num_devices=1", "--experiment.epochs=1")
RUN += ("--experiment.data.source=tfds", "--experiment.data.name=cifar10")
RUN += ("--experiment.data.image_shape=(32,32,3)", "--experiment.batch_size=16")
RUN += ("--experiment.data.train_examples=48", "--experiment.data.eval_examples=16")


@pytest.fixture
def server():
    server = Server({CIFAR10: cifar10_archive()})
    yield server
    server.close()


@pytest.fixture
def start(server, tmp_path):
    """Starts a run of a user who has nothing yet; its folder is named after the run."""

    def start(name, *ways):
        table = server.write_table(tmp_path / "table.csv", *ways)
        env = os.environ | {"JAXBENCH_DOWNLOADS": table, "JAXBENCH_DOWNLOAD": "1"}
        env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "no_proxy": "127.0.0.1"}
        env |= {"TFDS_DATA_DIR": str(tmp_path / "none")}
        (tmp_path / name).mkdir()
        return subprocess.Popen(
            program(*RUN, "--workdir=run"),
            cwd=tmp_path / name,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_two_processes_fetch_once(server, start):
    server.files = {CIFAR10: cifar10_archive(compresslevel=0) + bytes(2**20)}
    children = [start(name, "slow") for name in ("one", "other")]
    outs = []
    for child in children:
        out, err = child.communicate(timeout=240)
        assert child.returncode == 0, err
        outs.append(out)
    assert len(server.requests) == 1
    assert sum("waiting for another process that fetches" in out for out in outs) == 1


def test_ctrl_c_in_the_middle_leaves_nothing(server, start, tmp_path):
    child = start("stopped", "stalled")
    wait_for(lambda: server.requests, child)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "jaxbench: interrupted\n")
    folder = tmp_path / "cache" / "jaxbench" / "data" / "cifar10"
    assert [*folder.glob("*")] == [*folder.glob("*.lock")]
    child = start("again", "whole")
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    assert (folder / CIFAR10).read_bytes() == server.files[CIFAR10]
