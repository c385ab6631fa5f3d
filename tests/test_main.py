"""The entry point: what it lists, describes and refuses."""

import importlib
import inspect
import json
import pathlib

import pytest

from jaxbench.cli import registry
from jaxbench.distributed.mesh import create_training_mesh
from jaxbench.jobs.describe import list_layers
from jaxbench.records.schema.base import MODES
from jaxbench.training.program import build_program
from tests.conftest import MICRO, needs_devices, records, run_json
from tests.in_process import fresh_process_state

# Of the shipped experiments those that need no integration test to run in :tiny.
QUICK = ("conv2d",)


def test_every_mode_has_a_job_that_takes_its_flags():
    with fresh_process_state():  # it defines flags
        from jaxbench import main

        jobs, sources = main._JOBS, {*main.flags.FLAGS, *main._COMPUTED}
    assert set(jobs) == set(MODES)
    for module, function, names in jobs.values():
        job = getattr(importlib.import_module(f"jaxbench.jobs.{module}"), function)
        of_all = {"config", "workdir", "console", "telemetry_s"}
        assert set(inspect.signature(job).parameters) == {*names, *of_all}
        assert set(names) <= sources


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("name", QUICK)
def test_experiments_run_tiny(run_cli, tmp_path, name, devices):
    """All others do in the integration half."""
    check_runs_tiny(run_cli, tmp_path, name, devices)


def check_runs_tiny(run_cli, tmp_path, name, devices):
    needs_devices(devices)
    done = run_cli(
        f"--experiment={name}:tiny",
        f"--experiment.num_devices={devices}",
        "--workdir=run",
    )
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["status"] == "done" and document["experiment"] == f"{name}:tiny"
    assert document["environment"]["num_devices"] == devices
    if document["mode"] != "train":
        return  # tests of its own look further
    epochs = records(tmp_path / "run", "epoch")
    assert epochs[-1]["eval_count"] == document["data"]["eval_examples"]
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    for word in ("compiling", "images/s", "lr"):
        assert word in done.stdout
    assert ("Dice" if document["task"] == "segmentation" else "top-1") in done.stdout


def test_list_names_every_experiment(run_cli):
    done = run_cli("--experiment=list")
    assert done.returncode == 0
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed == registry.available()


def test_describe_tells_without_training(run_cli, tmp_path):
    flags = (
        "--experiment=cnn10",
        "--mode=describe",
        "--experiment.num_devices=1",
        "--experiment.batch_size=8",
        "--experiment.model.channels=(4,8)",
    )
    done = run_cli(*flags, "--json")
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    assert description["config"]["model"] == {"channels": [4, 8]}
    assert description["parameters"] == sum(row["parameters"] for row in description["layers"])
    assert description["forward_macs_per_image"] == sum(
        row["forward_macs_per_image"] for row in description["layers"]
    )
    assert description["planned_memory_per_device"]["total_bytes"] > 2**20
    table = run_cli(*flags).stdout
    for row in description["layers"]:
        assert row["layer"] in table and f"{row['parameters']:,}" in table
    for word in (f"{description['parameters']:,}", "MAC", "MiB", "batch_size"):
        assert word in table
    assert list(tmp_path.iterdir()) == []


def test_a_layer_is_named_by_its_path():
    config = registry.load("quickstart")
    config.num_devices = 1
    program = build_program(config, create_training_mesh(config), steps_per_epoch=1)
    macs = program.forward_macs()
    rows = {row["layer"]: row for row in list_layers(program, macs)}
    assert rows["group1_block1/conv1"]["forward_macs_per_image"] > 0
    assert sum(row["parameters"] for row in rows.values()) == program.num_parameters() == 77_562
    assert sum(row["forward_macs_per_image"] for row in rows.values()) == sum(macs.values())


def test_an_experiment_of_ones_own(run_cli, tmp_path):
    tiny = "\n\ndef tiny(config):\n    config.epochs = 1\n    return config\n"
    (tmp_path / "mine.py").write_text(pathlib.Path(MICRO).read_text() + tiny)
    done = run_cli("--experiment=mine.py:tiny", "--experiment.seed=3", "--workdir=run")
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["experiment"] == "mine:tiny" and document["config"]["seed"] == 3
    assert document["summary"]["epochs_done"] == 1


FILES = {
    "broken.py": "import jaxbench\ndef get_config():\n    return 1 / 0\n",
    "syntax.py": "def get_config(:\n",
    "empty.py": "",
    "wrong.py": """from __future__ import annotations
import dataclasses
from jaxbench.config import Config, DataConfig
from jaxbench.models.wide_resnet import WideResNetConfig

@dataclasses.dataclass(kw_only=True)
class MyWideResNetConfig(WideResNetConfig):
    def create(self, **types):
        raise ValueError("not today")

def get_config():
    return Config(model=MyWideResNetConfig(), data=DataConfig(image_shape=(8, 8, 1)))
""",
    "other.py": "def get_config():\n    return {'batch_size': 3}\n",
    "occupied/run.json": "{}",
    "corrupt.npz": "not an archive",
}
Q = "--experiment=quickstart"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "give --experiment=NAME"),
        (["wrn28_10"], "did you mean --experiment=wrn28_10?"),
        (["--experimnt=quickstart"], "did you mean '--experiment'?"),
        ([Q, Q], "is given 2 times"),
        ([Q, "cnn10"], "flags begin with --"),
        (["--experiment=quikstart"], "did you mean 'quickstart'?"),
        (["--experiment="], "no experiment ''"),
        (["--experiment=quickstart:small"], "no variant 'small'"),
        (["--experiment=nowhere.py"], "no such file nowhere.py"),
        (["--experiment=./corrupt.npz"], "an experiment of your own is a .py file"),
        (["--experiment=wrong.py"], "not today"),
        ([Q, f"--workdir={'a' * 300}"], "File name too long"),
        ([Q, "--experiment.data.path=x"], "does nothing with data.source='digits'"),
        (["--experiment=cnn10:tiny", "--experiment.data.image_shape=(2,2,3)"], "cannot be built"),
        (["--experiment=cnn10:tiny", "--experiment.model.channels=()"], "must hold at least one"),
        (["--experiment=cnn10:tiny", "--experiment.data.train_examples=100000000000"], "not fit"),
        ([Q, "--experiment.data.image_shape=(8,8,1.5)"], "must be whole numbers in parentheses"),
        ([Q, "--experiment.epochs=1000000000"], "more than"),
        (["--experiment=broken.py"], "broken.py:3: the experiment file fails with ZeroDivisionErr"),
        (["--experiment=syntax.py"], "syntax.py:1: the experiment file fails with SyntaxError"),
        (["--experiment=empty.py"], "has no function get_config()"),
        (["--experiment=other.py"], "returned dict, expected a jaxbench.config.Config"),
        ([Q, "--experiment.batchsize=3"], "did you mean 'batch_size'?"),
        ([Q, "--experiment.model=3"], "no field 'model'"),
        ([Q, "--experiment.name=../x"], "no field 'name'"),
        ([Q, "--experiment.batch_size=many"], "=many: must be a whole number"),
        ([Q, "--experiment.batch_size=1.5"], "=1.5: must be a whole number"),
        ([Q, "--experiment.data.flip=perhaps"], "=perhaps: must be true or false"),
        ([Q, "--experiment.optimizer.momentum=x"], "=x: must be a number"),
        ([Q, "--experiment.optimizer.decay_epochs=3,x"], "must be whole numbers in parentheses"),
        ([Q, "--experiment.batch_size"], "Missing value"),
        (["--experiment.batch_size=0", Q], "must be at least 1"),
        ([Q, "--experiment.precision=fp23"], "did you mean 'fp32'?"),
        ([Q, "--experiment.num_devices=9"], "num_devices=9: this machine has 8 cpu device(s)"),
        ([Q, "--experiment.batch_size=100"], "over 8 devices; the nearest that do: 96 and 104"),
        ([Q, "--experiment.batch_size=1440"], "has only 1437 training examples"),
        ([Q, "--profile=5:3"], "START must be below STOP"),
        ([Q, "--profile=a:b"], "must be START:STOP"),
        ([Q, "--profile=0:100000"], "the first step is 1"),
        ([Q, "--profile=170:178"], "the last step of this run is 176, so STOP is at most 177"),
        ([Q, "--mode=describe", "--profile=1:3"], "it goes with --mode=train or throughput"),
        ([Q, "--mode=throughput", "--profile=1000:1003"], "measurement is 1,000, so STOP"),
        ([Q, "--mode=trian"], "--mode=trian"),
        ([Q, "--json"], "it goes with --mode=describe"),
        ([Q, "--mode=describe", "--workdir=x"], "it goes with --mode=train or"),
        ([Q, "--telemetry_s=0.01"], "--telemetry_s=0.01: must be seconds from 0.1 to 3600, or 0"),
        ([Q, "--telemetry_s=nan"], "--telemetry_s=nan: must be seconds"),
        ([Q, "--telemetry_s=often"], "--telemetry_s=often"),
        ([Q, "--mode=describe", "--telemetry_s=2"], "it goes with --mode=train or"),
        ([Q, "--workdir=occupied"], "is not empty; nothing is overwritten"),
        ([Q, "--workdir=corrupt.npz"], "is a file"),
        ([Q, "--workdir=corrupt.npz/run"], "cannot write in"),
        ([Q, "--workdir="], "must name a folder"),
        ([Q, "--workdir=/proc/run"], "--workdir=/proc/run"),
        ([Q, "--experiment.data.source=npz"], "needs the path of an .npz file"),
        (
            [Q, "--experiment.data.source=npz", "--experiment.data.path=corrupt.npz"],
            "corrupt.npz: cannot be read as .npz",
        ),
        (["--experiment=cnn10", "--experiment.data.path=nowhere"], "'nowhere': no such folder"),
        (["--experiment=cnn10", "--experiment.data.path=occupied"], "three ways on"),
        # Names of before.
        ([Q, "--stop_at_top1=0.9"], "--stop_at_top1: is called --target_accuracy now"),
        ([Q, "--mode=fit"], "--mode=fit: is called --mode=memory now"),
        ([Q, "--experiment.data.dir=x"], "is called --experiment.data.path now"),
        ([Q, "--experiment.optimizer.beta1", "0.8"], "is called --experiment.optimizer.b1 now"),
        ([Q, "-experiment.accumulate_steps=2"], "experiment.gradient_accumulation_steps now"),
        (
            [Q, "--experiment.replicas=together"],
            "--experiment.replicas=together: is called --experiment.replicas=data_parallel now",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run_cli, tmp_path, flags, told):
    if " 8 " in told or "8 devices" in told:
        needs_devices(8)
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    before = snapshot(tmp_path)
    done = run_cli(*flags)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("jaxbench: "), done.stderr
    assert told in lines[0]
    assert snapshot(tmp_path) == before


def snapshot(folder: pathlib.Path) -> dict:
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def test_help_is_no_failure(run_cli):
    done = run_cli("--help")
    assert done.returncode == 0
    assert "--experiment=list" in done.stdout
