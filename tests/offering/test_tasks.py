"""The tasks that are written for SkyPilot, read again."""

import dataclasses
import shlex
import subprocess

import pytest
import yaml

from jaxbench.offering import folder
from jaxbench.offering.accelerators import parse_accelerators
from jaxbench.offering.tasks import Work, skypilot_task
from tests.conftest import refusal

WORK = Work(
    label="cnn10:tiny",
    module="jaxbench.main",
    arguments=["--experiment=cnn10:tiny", "--xla_flags=--a=1 --b=2"],
    folder_flag="--workdir",
    extras=["prepare"],
    requirement=None,
    idle_minutes=7,
)
GPU, TPU = parse_accelerators(["V100:4", "tpu-v5e-8"])


def task_of(accelerator, **changes):
    return skypilot_task(dataclasses.replace(WORK, **changes), accelerator)


@pytest.mark.parametrize("accelerator", ["V100:4", "tpu-v5e-8"])
def test_the_task_of_an_accelerator(accelerator, snapshot):
    """Read it for: the archive's installation with the accelerator's extra, a folder of results for
    each launch, autostop, and how results are fetched and the machine is ended."""
    task = task_of(parse_accelerators([accelerator])[0])
    text = task.text("title")
    assert yaml.safe_load(text) == task.document
    assert text == snapshot
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert [line.removeprefix("#   ") for line in head[-3:]] == [*task.commands]
    script = shlex.split(task.document["run"])
    assert "--experiment=cnn10:tiny" in script and "--xla_flags=--a=1 --b=2" in script


def test_pip_is_given_a_source_of_the_users_own():
    source = "git+https://git.example.com/you/jaxbench.git@v1"
    text = task_of(TPU, requirement=source, extras=()).text("")
    assert f"pip install -q 'jaxbench[tpu] @ {source}'" in text and "jaxbench.tar.gz" not in text


def test_every_setting_has_its_own_machine():
    name, other = (task_of(GPU, arguments=[f"--seed={n}"]).document["name"] for n in range(2))
    assert name != other and name == task_of(GPU, arguments=["--seed=0"]).document["name"]


@pytest.mark.parametrize("text", ["a\nrun: evil", "a\r- b", "a\x1b[0m", "a\u2028b: c", "'\" : # "])
def test_whatever_a_flag_holds_stays_in_it(text):
    arguments = [f"--xla_flags={text}"]
    task = task_of(GPU, arguments=arguments)
    document = yaml.safe_load(task.text(f"H100:1: jaxbench offers {arguments[0]}"))
    assert document == task.document and arguments[0] in shlex.split(document["run"])


@pytest.mark.parametrize("label", ["my_own-NETWORK.of many words and more", "10", "Ä"])
def test_names_are_what_clouds_take(label):
    [longest] = parse_accelerators(["A100-80GB:16"])
    name = task_of(longest, label=label).document["name"]
    assert name.isascii() and name == name.lower() and len(name) <= 41
    assert all(one.isalnum() or one == "-" for one in name) and "--" not in name


@pytest.mark.parametrize("somebody_elses", [False, True])
def test_without_a_checkout_a_source_is_asked_for(monkeypatch, tmp_path, somebody_elses):
    """Else the files of whose repository jaxbench is installed in would be sent."""
    installed = tmp_path / "site-packages"
    (installed / "jaxbench" / "offering").mkdir(parents=True)
    (installed / "jaxbench" / "offering" / "folder.py").touch()
    if somebody_elses:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(folder, "_CHECKOUT", installed)
    assert "give --source" in refusal(folder.changed_files, told="no git checkout of jaxbench")
