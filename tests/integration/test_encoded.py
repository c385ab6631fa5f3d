"""Folders decoded by worker processes, and for long: no pixel, process or byte is left over.

Copies of encoded images that two processes make at once; --mode=input on files that the system has
forgotten.
"""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.conftest import ROOT, run_json
from tests.data.encoded_images import check_tfds_images, spoil, write_folder
from tests.integration.conftest import program, run_program, wait_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("images"))


def test_a_worker_process_decodes_tfds_images_of_any_size(tmp_path):
    check_tfds_images(tmp_path, num_workers=1)


_HASHES = """
import hashlib, sys
sys.path.insert(0, ".")
import numpy as np
from jaxbench.errors import RunFailed
from tests.data.encoded_images import config_of, feed_of, global_batches

if __name__ == "__main__":
    for fields in ({}, {"num_workers": 2, "num_threads": 2}):
        feed = feed_of(config_of(sys.argv[1], epochs=3, **fields))
        told = hashlib.sha256()
        for epoch in range(3):
            for batch in global_batches(feed.train_batches(epoch, feed.steps_per_epoch)):
                for name in sorted(batch):
                    told.update(batch[name].tobytes())
        feed.close()
        print(told.hexdigest())
    feed = feed_of(config_of(sys.argv[2], num_workers=1, batch_size=22))
    try:
        list(feed.train_batches(0, 1))
    except RunFailed as error:
        print(error)
    feed.close()
"""


def test_worker_processes_change_no_pixel_and_name_a_corrupt_image(folder, tmp_path):
    script = tmp_path / "hashes.py"
    root = spoil(folder, tmp_path / "corrupt", ["train/bee/005.jpg"])
    script.write_text(_HASHES)
    done = run_program([sys.executable, str(script), str(folder), str(root)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    one, other, named = done.stdout.splitlines()
    assert one == other and named.startswith(f"{root}/train/bee/005.jpg: ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "ended_by", ["ctrl-c", "a worker killed", pytest.param("killed", marks=pytest.mark.slow)]
)
def test_worker_processes_end_with_the_run(folder, tmp_path, ended_by):
    """Ctrl-C as a terminal sends it, to all processes of the job; or one of them is killed."""
    data = f"source=folder feed=stream path={folder} eval_split=val num_classes=2 crop_padding=0"
    fields = [f"data.{field}" for field in f"{data} random_resized_crop num_workers=2".split()]
    fields += ["batch_size=8", "num_devices=1", "epochs=9999"]
    flags = (f"--experiment.{field}" for field in fields)
    child = subprocess.Popen(
        program("--experiment=vgg_cifar10:tiny", *flags, f"--workdir={tmp_path / 'run'}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and '"epoch"' in metrics.read_text(), child)
    workers = psutil.Process(child.pid).children(recursive=True)
    assert len(workers) >= 2
    if ended_by == "ctrl-c":
        os.killpg(child.pid, signal.SIGINT)
        _, told = child.communicate(timeout=60)
        assert child.returncode == 130, told
        assert told.strip() == "jaxbench: interrupted"
        assert run_json(tmp_path / "run")["status"] == "interrupted"
    elif ended_by == "killed":
        child.kill()
        child.communicate()
    else:
        decoding = [worker for worker in workers if "spawn_main" in " ".join(worker.cmdline())]
        decoding[0].kill()
        _, told = child.communicate(timeout=60)
        assert child.returncode == 1
        assert told.startswith("jaxbench: a worker process") and told.count("\n") == 1, told
        assert run_json(tmp_path / "run")["status"] == "failed"
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


_EPOCHS = """
import sys
sys.path.insert(0, ".")
import jax
from tests.data.encoded_images import config_of, feed_of
from jaxbench.hardware.environment import process_memory_bytes

config = config_of(sys.argv[1], image_shape=(256, 256, 3), epochs=80)
feed = feed_of(config)
images = 0
for epoch in range(80):
    for batch in [*feed.train_batches(epoch, feed.steps_per_epoch), *feed.eval_batches()]:
        images += jax.block_until_ready(batch["images"]).shape[1]
    print(process_memory_bytes(), images)
"""


def test_memory_is_steady_over_many_epochs(folder):
    """The feed keeps no batch, neither of training nor of evaluation."""
    done = run_program([sys.executable, "-c", _EPOCHS, str(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    used, shown = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    # Allocators settle in the first 20 epochs, each evaluation's threads cost some 60 kB; 60 epochs
    # later 200 MB of pixels have gone through.
    assert (shown[-1] - shown[19]) * 256 * 256 * 3 > 200e6
    assert used[-1] - used[19] < 40e6, used


def test_two_processes_make_one_copy(tmp_path):
    own = write_folder(tmp_path / "images")
    code = (
        "import sys, json; sys.path.insert(0, '.'); from pathlib import Path;"
        "import tests.data.encoded_images as t;"
        f"made = t.load(t.resized(Path({str(own)!r}), Path({str(tmp_path)!r})))[0].cache;"
        "print(json.dumps([made[name]['made'] for name in ('train', 'eval')]))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    made = [json.loads(child.communicate(timeout=120)[0].splitlines()[-1]) for child in children]
    for split in zip(*made, strict=True):
        assert sorted(split) == ["before", "now"]
