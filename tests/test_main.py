"""The entry point: what it lists, describes and refuses."""

import inspect
import json
import os
import pathlib
import re
import sys
import types

import pytest

from jaxbench import modes
from jaxbench.cli import main_flags, registry
from jaxbench.errors import BadInput
from jaxbench.modes import MODES, options
from jaxbench.parallel.signals import GRACE_PERIOD_S
from tests.conftest import MICRO, run_json


@pytest.mark.parametrize("name", MODES)
def test_every_mode_is_a_function_that_takes_its_options(name):
    function = modes.import_mode(name)
    arguments = inspect.getfullargspec(function)
    assert arguments.args == ["config", "workdir", "console"]
    defaults = {one: option.default for one, option in options.options_of(name).items()}
    keywords = {*options.mode_keywords(name, registry.load(MICRO), defaults)}
    keywords |= {"price"} if name in options.OPTIONS["offer"].modes else set()
    keywords |= {"import_s"} if name == "train" else set()
    assert {*arguments.kwonlyargs} == keywords
    assert options.OPTIONS["grace_period_s"].default == GRACE_PERIOD_S
    source = inspect.getsource(sys.modules[function.__module__])
    assert re.findall(r'record_run\(\s*setup,\s*"(\w+)"', source) == [name]


@pytest.mark.parametrize("mode", options.ALL)
def test_whoever_does_what_a_refusal_says_is_taken(monkeypatch, mode):
    """Each flag with each mode, with a machine that is not here and without."""

    def refusal_of(mode, given):
        class Flags:
            def __getitem__(self, name):
                return types.SimpleNamespace(present=name in given)

        vars(fake := Flags()).update(mode=mode, target=given.get("target"))
        monkeypatch.setattr(main_flags.flags, "FLAGS", fake)
        try:
            main_flags.chosen_mode(registry.load("conv2d" if mode == "conv2d" else MICRO))
        except BadInput as error:
            return str(error)

    machine = {"target": "tpu:v5e:8"}
    takes_target = mode in options.OPTIONS["target"].target_modes
    for given in ({}, machine) if takes_target else ({},):
        for name, option in options.OPTIONS.items():
            flags = {name: "x"} | given
            told = refusal_of(mode, flags)
            modes = option.target_modes if "target" in flags else option.modes
            assert (told is None) == (mode in modes), (name, told)
            if told is None or told == f"--{name} with --target: compiling measures nothing":
                continue
            advice = re.fullmatch(
                r"--\w+ with .*: it needs (--target)?(?: and )?(--mode=.*)?", told
            )
            flags |= machine if advice[1] else {}
            for other in (advice[2] or mode).removeprefix("--mode=").split(" or "):
                assert refusal_of(other, flags) is None, (told, other)


def test_list_names_every_experiment(run_cli):
    done = run_cli("--experiment=list")
    assert done.returncode == 0
    words = [f"{name} {purpose}" for name, purpose in registry.available().items()]
    assert done.stdout.split() == " ".join(words).split()
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.fixture
def experiments(tmp_path_factory, monkeypatch):
    """The shipped experiments: one that is whole, with a variant, and one of each odd kind."""
    folder = tmp_path_factory.mktemp("experiments")
    variants = b"".join(
        b"\ndef %s(config):\n    return config\n" % name
        for name in (b"tiny", b"variant_1_x_", b"variant_wide", b"variant_wide_net")
    )
    whole = pathlib.Path(MICRO).read_bytes() + variants
    odd = {
        "conflict": b"<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n",
        "latin": "x = 'für'".encode("latin-1"),
        "nul": b"x = 1\0\n",
        "deep": b"x = " + b"-" * 100_000 + b"1",
    }
    for name, content in {"whole": whole, ".hidden": b"", "._whole": b"\0\5\x16", **odd}.items():
        (folder / f"{name}.py").write_bytes(content)
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    for name in ("link", ".#whole"):  # the second is Emacs' lock
        (folder / f"{name}.py").symlink_to("user@host.1234:56")
    monkeypatch.setattr(registry, "experiments_dir", lambda: folder)
    return ["folder", "pipe", "link", *odd]


def test_a_file_that_cannot_be_read_fails_only_who_asks_for_it(
    run_cli, refused, experiments, no_waiting
):
    done = run_cli("--experiment=list")
    names = [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "]
    variants = ["1_x_", "wide", "wide_net"]
    whole = [f"whole_{variant}" for variant in variants]
    assert names == sorted(["whole", *whole, *experiments]) and not done.stderr
    assert done.stdout.count("cannot be read: ") == len(experiments)
    assert run_cli("--experiment=whole_wide_net", "--mode=describe").returncode == 0
    path = registry.experiments_dir() / "whole.py"
    for name, variant in zip(whole, variants, strict=True):
        for spec in (name, f"whole:{variant}", f"{path}:{variant}"):
            assert registry.load(spec).name == name
            assert registry.load(f"{spec}:tiny").name == f"{name}:tiny"
    refused("--experiment=whole_wide:", told="no variant 'wide:' of whole")
    for name in experiments:
        refused(f"--experiment={name}", told=name)
    refused("--experiment=whol", told="did you mean 'whole'?")
    refused("--experiment=.hidden", told="no experiment '.hidden'")


def test_describe_tells_without_training(run_cli, tmp_path):
    flags = ("--experiment=cnn10", "--mode=describe", "--experiment.num_devices=1")
    flags += ("--experiment.batch_size=8", "--experiment.model.channels=(4,8)")
    done = run_cli(*flags, "--json")
    assert done.returncode == 0, done.stderr
    description = json.loads(done.stdout)
    layers = description["layers"]
    assert description["config"]["model"] == {"channels": [4, 8]}
    for name in ("parameters", "forward_macs_per_image"):
        assert description[name] == sum(row[name] for row in layers)
    assert description["planned_memory_per_device"]["total_bytes"] > 2**20
    table = run_cli(*flags).stdout
    words = [word for row in layers for word in (row["layer"], f"{row['parameters']:,}")]
    for word in (*words, f"{description['parameters']:,}", "MAC", "MiB", "batch_size"):
        assert word in table
    assert list(tmp_path.iterdir()) == []


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
    "leaves.py": "import sys\nsys.exit(0)\n",
    "leaves_later.py": """import sys
from jaxbench.config import Config, DataConfig
def network(num_classes):
    sys.exit(0)
def get_config():
    return Config(model=network, data=DataConfig(source="digits", image_shape=(8, 8, 1)))
""",
    "occupied/run.json": "{}",
    "corrupt.npz": "not an archive",
}
Q = "--experiment=quickstart"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "give --experiment=NAME"),
        (["wrn28_10"], "did you mean --experiment=wrn28_10?"),
        (["--experimnt=quickstart"], "did you mean --experiment?"),
        ([Q, Q], "is given, too; give one"),
        ([Q, "cnn10"], "flags begin with --"),
        (["--experiment=quikstart"], "did you mean 'quickstart'?"),
        (["--experiment=nowhere.py"], "no such .py file: nowhere.py"),
        (["--experiment=wrong.py"], "not today"),
        ([Q, f"--workdir={'a' * 300}"], "file name too long"),
        (["--experiment=cnn10:tiny", "--experiment.data.image_shape=(2,2,3)"], "cannot be built"),
        ([Q, "--experiment.epochs=1000000000"], "more than"),
        (["--experiment=broken.py"], "broken.py:3: the experiment file fails with ZeroDivisionErr"),
        (["--experiment=syntax.py"], "syntax.py:1: the experiment file fails with SyntaxError"),
        (["--experiment=leaves.py"], "leaves.py:2: the experiment file fails with SystemExit: 0"),
        (["--experiment=leaves_later.py"], "leaves_later.py:4: your code ends the program"),
        (["--experiment=empty.py"], "has no function get_config()"),
        (["--experiment=other.py"], "returned dict, expected a jaxbench.config.Config"),
        ([Q, "--experiment.batchsize=3"], "did you mean 'batch_size'?"),
        ([Q, "--batch_size=64"], "no such flag; did you mean --experiment.batch_size?"),
        ([Q, "--name=x"], "--experiment.data.name or --experiment.optimizer.name?"),
        ([Q, "batch_size=64"], "did you mean --experiment.batch_size=64?"),
        ([Q, "--noflip"], "did you mean --experiment.data.flip?"),
        ([Q, "--xyzzy"], "--xyzzy: no such flag\n"),
        ([Q, "--experiment.xyzzy=1"], "--mode=describe shows all fields"),
        ([Q, "--experiment.model=3"], "'model'; its fields are model.depth, model.width"),
        ([Q, "--experiment.name=../x"], "no field 'name'"),
        ([Q, "--experiment.data=x"], "did you mean 'data.source' or 'data.name'?"),
        ([Q, "--experiment.optimizer.lr=1"], "did you mean 'optimizer.learning_rate'?"),
        ([Q, "--experiment.model.epochs=3"], "did you mean 'epochs'?"),
        ([Q, "--experiment.model.depht=3"], "did you mean 'model.depth'?"),
        ([Q, "--lr=1"], "did you mean --experiment.optimizer.learning_rate?"),
        ([Q, "--experiment.batch_size=many"], "=many: must be a whole number"),
        ([Q, "--experiment.data.flip=perhaps"], "=perhaps: must be true or false"),
        ([Q, "--experiment.optimizer.momentum=x"], "=x: must be a number"),
        ([Q, "--experiment.batch_size"], "Missing value"),
        ([Q, "--experiment.task=mine"], "task='mine': must be one of classification, segm"),
        ([Q, "--experiment.num_devices=9"], "must be 0 (all) or a multiple of 1 up to 8;"),
        ([Q, "--experiment.batch_size=1440"], "1437 training examples, fewer than"),
        ([Q, "--profile=170:178"], "the last step of this run is 176, so STOP is at most 177"),
        ([Q, "--mode=describe", "--profile=1:3"], "--mode=describe: it needs --mode=train"),
        ([Q, "--mode=trian"], "--mode=trian"),
        ([Q, "--json"], "it needs --mode=describe"),
        ([Q, "--telemetry_s=0.01"], "--telemetry_s=0.01: must be seconds from 0.1 to 3600, or 0"),
        ([Q, "--telemetry_s=nan"], "--telemetry_s=nan: must be seconds"),
        ([Q, "--mode=throughput", "--window_s=nan"], "--window_s=nan: must be seconds"),
        ([Q, "--workdir=occupied"], "is not empty; nothing is overwritten"),
        ([Q, "--workdir=corrupt.npz"], "is a file"),
        ([Q, "--workdir=corrupt.npz/run"], "cannot write in"),
        ([Q, "--workdir="], "must name a folder"),
        ([Q, "--experiment.data.source=npz"], "needs the path of an .npz file"),
        (["--experiment=cnn10", "--experiment.data.path=nowhere"], "'nowhere': no such folder"),
        (["--experiment=cnn10", "--experiment.data.path=occupied"], "is not prepared, and the"),
    ],
)
def test_bad_input_is_refused(refused, tmp_path, flags, told):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    refused(*flags, told=told, begun=True)
