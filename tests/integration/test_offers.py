"""Offers, read by SkyPilot itself, and a rented machine's part run here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
import yaml

from tests.conftest import ROOT
from tests.integration.conftest import program, run_program

# A Python that has SkyPilot.
SKY = os.environ.get("JAXBENCH_TEST_SKY")
ACCELERATORS = "H100:1,A100-80GB:8,V100:4,tpu-v5e-8,tpu-v2-8"
_READ = """
import json, sky
for file in files:
    task = sky.Task.from_yaml(file)
    [resources] = task.resources
    stop = resources.autostop_config
    [(name, count)] = resources.accelerators.items()
    read[file] = [task.name, name, count, stop.down and stop.idle_minutes, task.workdir]
print(json.dumps(read))
"""


def read_by_skypilot(folder):
    """Returns what SkyPilot reads in its files of a folder, by their accelerators."""
    if not SKY:
        pytest.skip("JAXBENCH_TEST_SKY names no Python that has it")
    files = [path.name for path in folder.glob("*.sky.yaml")]
    # Its own files and settings stay as they are.
    variables = {"HOME": str(folder.parent), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [SKY, "-c", f"files, read = {files!r}, {{}}\n{_READ}"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    # A hash of all flags is a part of the name.
    names = {file: re.sub("-[0-9a-f]{6}-", "-", found[0]) for file, found in read.items()}
    return {file.partition(".")[0]: [names[file], *found[1:]] for file, found in read.items()}


def write(folder, *flags):
    done = run_program(program(f"--out={folder}", *flags, command="offers"))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def offers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offers") / "out"
    write(folder, "--experiment=cnn10", f"--accelerator={ACCELERATORS}")
    return folder


def test_skypilot_takes_them(offers):
    assert read_by_skypilot(offers) == {
        "h100-1": ["jb-cnn10-h100-1", "H100", 1, 30, "sent"],
        "a100-80gb-8": ["jb-cnn10-a100-80gb-8", "A100-80GB", 8, 30, "sent"],
        "v100-4": ["jb-cnn10-v100-4", "V100", 4, 30, "sent"],
        "tpu-v5e-8": ["jb-cnn10-tpu-v5e-8", "tpu-v5litepod-8", 1, 30, "sent"],
        "tpu-v2-8": ["jb-cnn10-tpu-v2-8", "tpu-v2-8", 1, 30, "sent"],
    }


def test_their_scripts_are_what_shells_read(offers):
    scripts = []
    for path in offers.glob("*.yaml"):
        task = yaml.safe_load(path.read_text())
        scripts += [task["setup"], task["run"]]
    assert len(scripts) == 10
    for script in scripts:
        checked = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


def test_a_machine_runs_what_is_sent_and_the_report_finds_what_came_back(tmp_path):
    """The task's own `run`, in a home folder in which its environment is a stand-in."""
    folder, home = tmp_path / "offers", tmp_path / "home"
    flags = ("--mode=throughput", "--rounds=7", "--window_s=0.05")
    write(folder, "--experiment=quickstart:tiny", "--accelerator=T4,L4", *flags)
    shutil.copytree(folder / "sent", home / "sky_workdir")
    with tarfile.open(home / "sky_workdir" / "jaxbench.tar.gz") as archive:
        archive.extractall(home / "sky_workdir" / "src", filter="data")
    python = home / "jaxbench-env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PWD/src" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    task = yaml.safe_load((folder / "t4-1.sky.yaml").read_text())
    # No checkout of git is above it, so that the commit is the archive's.
    env = {"HOME": str(home), "XLA_FLAGS": ""}
    done = run_program(["bash", "-c", task["run"]], home / "sky_workdir", env)
    assert done.returncode == 0, done.stderr
    head = run_program(["git", "rev-parse", "HEAD"], cwd=ROOT)
    document = json.loads((next((home / "results").iterdir()) / "run.json").read_text())
    assert document["environment"]["git"]["commit"] == head.stdout.strip()
    shutil.copytree(home / "results", folder / "t4-1")
    done = run_program(program(folder, f"--out={tmp_path / 'a.md'}", command="report"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "a.md").read_text()
    assert re.search(r"^\| R1 \| t4-1/.*\| done \| quickstart:tiny \|", text, re.MULTILINE)
