"""The tasks that are written for SkyPilot and dstack, read again."""

import dataclasses
import re
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
    name = document["name"]
    assert re.fullmatch("jb-cnn10-tiny-[0-9a-f]{6}-v100-4", name) and document["workdir"] == "sent"
    assert document["resources"] == {
        "accelerators": "V100:4",
        "autostop": {"idle_minutes": 7, "down": True},
    }
    # On what is sent: its archive is unpacked and installed, with the GPU's extra.
    assert "tar -xzf jaxbench.tar.gz -C src\n" in document["setup"]
    assert document["setup"].splitlines()[-1].endswith(" -e 'src[cuda12,prepare]'")
    ran = shlex.split(document["run"])
    results = "--workdir=$HOME/results/$(date +%Y%m%d-%H%M%S)"  # launched again: another one
    assert ran[1:] == ["-u", "-m", "jaxbench.main", *WORK.arguments, results]
    launch, fetch, down = task.commands
    assert launch == f"sky launch -c {name} v100-4.sky.yaml"
    assert fetch == f"rsync -a {name}:results/ v100-4/"
    assert down == f"sky down {name}"


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


def test_every_setting_has_its_own_machine():
    for one, other in zip(both(GPU), both(GPU, arguments=["--seed=1"]), strict=True):
        assert one.document["name"] != other.document["name"]
    names = [[one.document["name"] for one in both(GPU)] for _ in range(2)]
    assert names[0] == names[1]


@pytest.mark.parametrize("text", ["a\nrun: evil", "a\r- b", "a\x1b[0m", "a\u2028b: c", "'\" : # "])
def test_whatever_a_flag_holds_stays_in_it(text):
    arguments = [f"--xla_flags={text}"]
    for task in both(GPU, arguments=arguments):
        document = yaml.safe_load(task.text(f"H100:1: jaxbench offers {arguments[0]}"))
        assert document == task.document
        script = document.get("run") or document["commands"][0]
        assert arguments[0] in shlex.split(script)


@pytest.mark.parametrize("label", ["my_own-NETWORK.of many words and more", "10", "Ä"])
def test_names_are_what_both_engines_take(label):
    [longest] = parse_accelerators(["A100-80GB:16"])
    for task in both(longest, label=label):
        name = task.document["name"]
        assert name.isascii() and name == name.lower() and len(name) <= 41
        assert all(one.isalnum() or one == "-" for one in name) and "--" not in name
