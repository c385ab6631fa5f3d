"""The command that writes offers."""

import functools
import json
import pathlib
import re

import pytest
import yaml

from tests.conftest import MICRO

# A source that needs no archive.
FLAGS = ("--out=offers", "--source=git+https://git.example.com/jaxbench.git")


@pytest.fixture
def write(run_cli):
    return functools.partial(run_cli, *FLAGS, module="jaxbench.offers")


def test_a_folder_of_offers(write, tmp_path):
    accelerators = "--accelerator=H100:2,tpu-v6e-4"
    done = write(accelerators, "--experiment=quickstart:tiny", "--experiment.batch_size=256")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "offers"
    assert {path.name for path in out.iterdir()} == {
        *("h100-2.sky.yaml", "tpu-v6e-4.sky.yaml", "sent", "offers.json"),
    }
    # Else a .gitignore above keeps what is sent.
    assert {path.read_text() for path in (out / "sent").iterdir()} == {"!*\n"}
    document = json.loads((out / "offers.json").read_text())
    assert document["label"] == "quickstart:tiny" and accelerators in document["command"]
    assert [own["target"] for own in document["offers"]] == ["gpu:h100:2", "tpu:v6e:2x2"]
    run = yaml.safe_load((out / "h100-2.sky.yaml").read_text())["run"]
    assert "--experiment=quickstart:tiny --experiment.batch_size=256 --workdir=" in run
    # Each file's commands are printed.
    lines = done.stdout.splitlines()
    assert "cd offers" in lines and any(
        re.fullmatch("sky down jb-quickstart-ti-[0-9a-f]{6}-h100-2", line) for line in lines
    )
    assert sum(line.startswith("sky launch") for line in lines) == 2


def test_the_machine_that_is_expected_to_be_cheapest_comes_first(write, tmp_path):
    head = "offer,hardware,devices,usd_per_hour,date,source\n"
    mine = ("a,NVIDIA H100 80GB HBM3,1,90,2026,web\n", "b,L4,1,0.9,2026,web\n")
    (tmp_path / "prices.csv").write_text(head + "".join(mine))
    experiment = ("--experiment=resnet50:synthetic", "--experiment.batch_size=128")
    done = write("--accelerator=H100,L4,T4", *experiment, "--prices=prices.csv")
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert rows[rows.index(["1", "L4:1"]) + 1] == ["2", "H100:1"]
    assert "T4:1: not predicted, because Tesla T4 has no bf16 units" in done.stdout
    launched = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("sky la")]
    assert launched == ["l4-1.sky.yaml", "h100-1.sky.yaml", "t4-1.sky.yaml"]
    assert "--prices" not in (tmp_path / "offers/l4-1.sky.yaml").read_text().split("run:")[1]
    offers = json.loads((tmp_path / "offers/offers.json").read_text())["offers"]
    assert offers[0]["predicted"]["usd_per_hour"] == 0.9 and "bf16" in offers[2]["not_predicted"]


def test_an_experiment_of_ones_own_is_sent(write, tmp_path):
    done = write("--accelerator=L4", f"--experiment={MICRO}", "--experiment.num_devices=0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "offers/sent/micro.py").read_text() == pathlib.Path(MICRO).read_text()
    assert "--experiment=micro.py --experiment.num_devices=0" in (
        (tmp_path / "offers/l4-1.sky.yaml").read_text()
    )


def test_qualify(write, tmp_path):
    assert write("--accelerator=L4", "--qualify").returncode == 0
    run = yaml.safe_load((tmp_path / "offers/l4-1.sky.yaml").read_text())["run"]
    assert run.split()[1:5] == ["-u", "-m", "jaxbench.qualify", '--out="$HOME/results/$(date']


@pytest.mark.parametrize(
    ("flags", "installed"),
    [
        (("--mode=throughput",), "jaxbench[cuda12] @"),
        (("--mode=throughput", "--feed=resident"), "jaxbench[cuda12,prepare] @"),
        ((), "jaxbench[cuda12,prepare] @"),
    ],
)
def test_what_prepares_data_is_installed_where_data_are_read(write, tmp_path, flags, installed):
    assert write("--accelerator=L4", "--experiment=cnn10", *flags).returncode == 0
    assert installed in (tmp_path / "offers/l4-1.sky.yaml").read_text()


def test_data_of_this_machine_are_not_there(write):
    done = write("--accelerator=L4", "--experiment=cnn10", "--experiment.data.path=/here")
    assert done.returncode == 0 and "/here: has to be on the rented machines" in done.stderr


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--experiment=cnn10",), "give --accelerator="),
        (("--accelerator=H10", "--experiment=cnn10"), "did you mean 'H100'"),
        (("--accelerator=L4",), "give --experiment=NAME"),
        (("--accelerator=L4", "--experiment=cnn10", "--epochs=1"), "--experiment.epochs"),
        (("--accelerator=L4", f"--experiment={MICRO}"), "L4:1: num_devices=2: it has 1"),
        (
            ("--accelerator=V100", "--experiment=gpt_bytes", "--experiment.model.attention=cudnn"),
            "--accelerator=V100:1: model.attention='cudnn': it is for NVIDIA GPUs of compute",
        ),
        (("--accelerator=L4", "--qualify", "--source=jaxbench==1"), "must be a URL"),
        (("--accelerator=L4", "--experiment=cnn10", "--mode=describe"), "runs nothing"),
        (("--accelerator=L4", "--experiment=vit_s16"), "data.source=folder reads files"),
        (("--accelerator=L4", "--experiment=cnn10", "--workdir=x"), "--workdir: is for one run"),
        (("--accelerator=L4", "--experiment=cnn10", "--usd_per_hour=1"), "--usd_per_hour: is for"),
        (("--accelerator=L4", "--qualify", "--experiment=cnn10"), "with --qualify"),
        (("--accelerator=L4", "--qualify", "--out="), "give --out=FOLDER"),
        (("--accelerator=L4", "--qualify", "--idle_minutes=0"), "--idle_minutes=0"),
    ],
)
def test_bad_input_is_refused(refused, flags, told):
    refused(*FLAGS, *flags, told=told, module="jaxbench.offers")


@pytest.mark.parametrize("out", ["full", "file", "file/below"])
def test_nothing_is_overwritten(refused, tmp_path, out):
    (tmp_path / "full" / "mine").mkdir(parents=True)
    (tmp_path / "file").touch()
    args = (f"--out={out}", "--accelerator=L4", "--qualify")
    refused(*FLAGS, *args, told=f"--out={out}: ", module="jaxbench.offers")
