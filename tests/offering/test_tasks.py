"""The tasks that are written for SkyPilot and dstack, read again."""

import dataclasses
import shlex

import pytest
import yaml

from jaxbench.offering.accelerators import parse_accelerators
from jaxbench.offering.tasks import Work, dstack_task, skypilot_task

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


def both(accelerator, **changes):
    work = dataclasses.replace(WORK, **changes)
    return skypilot_task(work, accelerator), dstack_task(work, accelerator)


def test_skypilot():
    task = skypilot_task(WORK, GPU)
    document = yaml.safe_load(task.text("title"))
    assert document == task.document
    assert document["name"] == "jb-cnn10-tiny-v100-4" and document["workdir"] == "sent"
    assert document["resources"] == {
        "accelerators": "V100:4",
        "autostop": {"idle_minutes": 7, "down": True},
    }
    # On what is sent: its archive is unpacked and installed, with the GPU's extra.
    assert "tar -xzf jaxbench.tar.gz -C src\n" in document["setup"]
    assert document["setup"].splitlines()[-1].endswith(" -e 'src[cuda12,prepare]'")
    ran = shlex.split(document["run"])
    assert ran[1:] == ["-u", "-m", "jaxbench.main", *WORK.arguments, "--workdir=$HOME/results"]
    launch, fetch, down = task.commands
    assert launch == "sky launch -c jb-cnn10-tiny-v100-4 v100-4.sky.yaml"
    assert fetch == "rsync -a jb-cnn10-tiny-v100-4:results/ v100-4/"
    assert down == "sky down jb-cnn10-tiny-v100-4"


def test_a_tpu_has_its_own_image_and_extra():
    sky, dstack = both(TPU)
    resources = sky.document["resources"]
    assert resources["accelerators"] == "tpu-v5litepod-8:1" and resources["infra"] == "gcp"
    assert resources["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert dstack.document["resources"]["gpu"] == "tpu:v5litepod-8"
    for task in (sky, dstack):
        assert "src[tpu,prepare]" in task.text("")


def test_dstack_waits_for_its_results_to_be_fetched():
    task = dstack_task(WORK, GPU)
    document = yaml.safe_load(task.text("title"))
    assert document == task.document
    assert document["type"] == "task" and document["resources"]["gpu"] == "V100:16GB:4"
    [script] = document["commands"]
    lines = script.splitlines()
    # A failed installation ends the run at once: nothing is to be fetched.
    assert lines[0].endswith("|| exit 1")
    assert shlex.split(lines[2])[3:-3] == ["jaxbench.main", *WORK.arguments]
    assert lines[2].endswith(" --workdir=/results || code=$?")
    assert lines[-2:] == ["sleep 420", "exit $code"]
    launch, fetch, stop = task.commands
    assert launch == "dstack apply -f v100-4.dstack.yaml"
    # The run itself says how.
    assert all(f'echo "  {own}"' in lines for own in (fetch, stop))


def test_pip_is_given_a_source_of_the_users_own():
    source = "git+https://git.example.com/you/jaxbench.git@v1"
    for task in both(TPU, requirement=source, extras=()):
        assert f"pip install -q 'jaxbench[tpu] @ {source}'" in task.text("")
        assert "jaxbench.tar.gz" not in task.text("")


def test_the_head_says_how_to_launch_fetch_and_tear_down():
    for task in both(GPU):
        head = [line for line in task.text("H100:1: it").splitlines() if line.startswith("#")]
        assert head[0] == "# H100:1: it"
        assert [line.removeprefix("#   ") for line in head[-3:]] == [*task.commands]


@pytest.mark.parametrize("label", ["my_own-NETWORK.of many words and more", "10", "Ä"])
def test_names_are_what_both_engines_take(label):
    [longest] = parse_accelerators(["A100-80GB:16"])
    for task in both(longest, label=label):
        name = task.document["name"]
        assert name.isascii() and name == name.lower() and len(name) <= 41
        assert all(one.isalnum() or one == "-" for one in name) and "--" not in name
