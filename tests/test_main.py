"""The entry point as people start it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import OPTIMIZED, ROOT, needs_devices, program, records, run_json

from jaxbench import catalog

# On one device, a job of each kind; the others are slow: what they differ in is tried on eight.
_ON_ONE = ("quickstart", "conv2d")


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param(
            name,
            devices,
            marks=[pytest.mark.slow] if devices == 1 and name not in _ON_ONE else [],
        )
        for name in catalog.available()
        for devices in (1, 8)
    ],
)
def test_every_experiment_runs_tiny(run_main, tmp_path, name, devices):
    needs_devices(devices)
    done = run_main(
        f"--experiment={name}:tiny",
        f"--experiment.num_devices={devices}",
        "--workdir=run",
    )
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    assert document["status"] == "done" and document["experiment"] == f"{name}:tiny"
    assert document["environment"]["num_devices"] == devices
    if document["job"] != "train":
        return  # tests of its own look further
    epochs = records(tmp_path / "run", "epoch")
    assert epochs[-1]["eval_count"] == document["data"]["eval_examples"]
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    for word in ("compiling", "images/s", "lr"):
        assert word in done.stdout
    assert ("Dice" if document["task"] == "segmentation" else "top-1") in done.stdout


def test_quickstart_reaches_97_percent(run_main, tmp_path):
    done = run_main("--experiment=quickstart", env=OPTIMIZED)
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "runs" / "quickstart").iterdir()
    summary = run_json(folder)["summary"]
    assert summary["eval_count"] == 360
    assert summary["eval_top1"] >= 0.97


def test_real_cifar10_is_learned(run_main, tmp_path, test_data):
    done = run_main(
        "--experiment=cnn10",
        f"--experiment.data.dir={test_data / 'tfds'}",
        "--experiment.model.channels=(8,16,32)",
        "--experiment.data.train_examples=5000",
        "--experiment.epochs=2",
        "--experiment.optimizer.schedule=constant",
        "--workdir=run",
        env=OPTIMIZED,
    )
    assert done.returncode == 0, done.stderr
    summary = run_json(tmp_path / "run")["summary"]
    assert summary["eval_count"] == 10_000
    assert summary["eval_top1"] > 0.25


def test_list_names_every_experiment(run_main):
    done = run_main("--experiment=list")
    assert done.returncode == 0
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed == catalog.available()


def test_describe_tells_without_training(run_main, tmp_path):
    done = run_main(
        "--experiment=wrn28_10",
        "--mode=describe",
        "--experiment.num_devices=1",
        "--experiment.batch_size=2",
        "--experiment.model.width=2",
        "--experiment.model.depth=10",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    assert description["config"]["model"] == {"depth": 10, "width": 2}
    assert description["parameters"] == sum(row["parameters"] for row in description["layers"])
    assert description["forward_macs_per_image"] == sum(
        row["forward_macs_per_image"] for row in description["layers"]
    )
    assert description["planned_memory_per_device"]["total_bytes"] > 2**20
    table = run_main("--experiment=quickstart", "--mode=describe")
    for word in ("group1_block1/conv1", "77,562", "GMAC", "MiB", "batch_size"):
        assert word in table.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_of_ones_own(run_main, tmp_path):
    (tmp_path / "mine.py").write_text(
        (ROOT / "experiments" / "quickstart.py").read_text().replace("epochs=16", "epochs=1")
    )
    done = run_main("--experiment=mine.py:tiny", "--experiment.epochs=1", "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path / "run")["experiment"] == "mine:tiny"


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
    "damaged.npz": "not an archive",
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
        (["--experiment=./damaged.npz"], "an experiment of your own is a .py file"),
        (["--experiment=wrong.py"], "not today"),
        ([Q, f"--workdir={'a' * 300}"], "File name too long"),
        ([Q, "--experiment.data.dir=x"], "does nothing with data.source='digits'"),
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
        ([Q, "--workdir=damaged.npz"], "is a file"),
        ([Q, "--workdir=damaged.npz/run"], "cannot write in"),
        ([Q, "--workdir="], "must name a folder"),
        ([Q, "--workdir=/proc/run"], "--workdir=/proc/run"),
        ([Q, "--experiment.data.source=npz"], "needs the path of an .npz file"),
        (
            [Q, "--experiment.data.source=npz", "--experiment.data.dir=damaged.npz"],
            "damaged.npz: cannot be read as .npz",
        ),
        (["--experiment=cnn10", "--experiment.data.dir=nowhere"], "'nowhere': no such folder"),
        (["--experiment=cnn10", "--experiment.data.dir=occupied"], "three ways on"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run_main, tmp_path, flags, told):
    if " 8 " in told or "8 devices" in told:
        needs_devices(8)
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    before = snapshot(tmp_path)
    done = run_main(*flags)
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


def test_importing_the_entry_point_is_quiet():
    """A notebook can import it: no flags are parsed, JAX is not loaded."""
    code = "import sys, jaxbench.main; assert 'jax' not in sys.modules and not sys.argv[1:]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_wheel_finds_its_experiments_from_any_folder(tmp_path):
    """Built and installed without the checkout; dependencies come from this environment."""
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, tracked.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)],
        check=True,
    )
    [wheel] = tmp_path.glob("jaxbench-*.whl")
    installed = tmp_path / "installed"
    install = [*pip, "install", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = "import jaxbench.catalog as c; print(c.experiments_dir()); print(*c.available())"
    for command in (
        [sys.executable, "-c", code],
        [sys.executable, "-m", "jaxbench.main", "--experiment=quickstart:tiny", "--workdir=run"],
    ):
        done = subprocess.run(
            command,
            cwd=elsewhere,
            env=os.environ | {"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        if command[1] == "-c":
            assert done.stdout.split() == [
                str(installed / "jaxbench" / "experiments"),
                *catalog.available(),
            ]
    assert run_json(elsewhere / "run")["status"] == "done"
    assert run_json(elsewhere / "run")["environment"]["git"] is None


def test_help_is_no_failure(run_main):
    done = run_main("--help")
    assert done.returncode == 0
    assert "--experiment=list" in done.stdout


def test_a_backend_that_is_not_there_is_told(run_main):
    done = run_main("--experiment=quickstart", env={"JAX_PLATFORMS": "cuda"})
    assert done.returncode == 2
    assert "JAX finds no devices with JAX_PLATFORMS=cuda" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path):
    command = program("--experiment=quickstart:tiny", "--workdir=run")
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert run_json(tmp_path / "run")["status"] == "done", errors
