"""The scripts in benchmarks/: what they make of figures, and what they refuse."""

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
import types

import pytest
from absl import flags

from jaxbench.cli import registry
from jaxbench.config import OptimizerConfig
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.kernels import HERE, read_rows
from jaxbench.modes.predictions import read_shape
from jaxbench.predict import calibration
from jaxbench.predict.prediction import memory_bytes, setting_of
from tests.conftest import ROOT, refusal


@pytest.fixture(autouse=True)
def scripts_can_be_imported(monkeypatch):
    for folder in ("benchmarks/versus_pytorch", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.fixture
def load_script(monkeypatch):
    """Imports a script. Its flags are set aside: other programs in this process have the same."""
    own, loaded = flags.FlagValues(), []
    for name in dir(flags):
        if name.startswith("DEFINE_"):
            define = functools.partial(getattr(flags, name), flag_values=own)
            monkeypatch.setattr(flags, name, define)

    def load(name):
        module = importlib.import_module(name)
        loaded.append(name)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]


OURS = """
from jaxbench.cli import registry

def get_config():
    config = registry.load("cnn10:tiny")
    for name, value in {optimizer}.items():
        setattr(config.optimizer, name, value)
    return config
"""


def test_a_ratio_is_of_equal_steps_and_mfu_of_the_peak():
    def contestant(name, calls, **facts):
        windows_s = [1.0, 1.1, 1.0, 0.9, 1.0, 1.0]
        own = {"name": name, "failed": None, "calls": calls, "last_loss": 1.0, "facts": facts}
        return types.SimpleNamespace(windows_s=windows_s, **own)

    environment = {"device_kind": "NVIDIA H200", "matmul_precision": None}
    facts = {"environment": environment, "flops_per_image": 1e10}
    ours = contestant("jaxbench", 10, first_step_s=5.0, **facts)
    theirs = contestant("pytorch compile", 5, first_step_s=9.0)
    config = types.SimpleNamespace(batch_size=512, precision="bf16")
    own, other = (
        importlib.import_module("results").describe(one, config, ours) for one in (ours, theirs)
    )
    # Half the steps in the same time.
    assert own["ratio"] is None and other["ratio"] == pytest.approx((2, 2, 2))
    assert (own["images_per_s"], other["images_per_s"]) == pytest.approx((5120, 2560))
    # 989.4 TFLOP/s, dense.
    assert own["mfu"] == pytest.approx(5120 * 1e10 / 989.4e12, rel=1e-3)
    assert other["mfu"] == pytest.approx(own["mfu"] / 2)
    assert other["compile_s"] == pytest.approx(9.0 - 0.2) and "compile_s" not in own


def test_pytorch_gets_the_experiments_optimizer_and_sequences():
    task = importlib.import_module("task")
    config = task.load_config("gpt_bytes:tiny", 4, "")
    assert config.data.sequence_length == 64 and config.data.source == "synthetic"
    gpt = task.pytorch_task(config, "eager", "cpu")
    assert gpt["arguments"]["sequence_length"] == 64
    assert gpt["optimizer"]["name"] == "AdamW" and gpt["optimizer"]["settings"]["betas"][1] == 0.99
    sgd = task.pytorch_task(task.load_config("cnn10:tiny", 4, ""), "eager", "cpu")["optimizer"]
    assert sgd["name"] == "SGD" and sgd["settings"]["momentum"] == 0.9


def test_only_what_pytorch_has_too_is_compared(tmp_path):
    load_config = importlib.import_module("task").load_config
    refusal(load_config, "vgg_cifar10:tiny", 0, "", told="no counterpart")
    refusal(load_config, "cnn10:tiny", 0, "fp64", told="--precision=fp64")
    ours = tmp_path / "ours.py"
    for optimizer, told in (
        ({"bias_learning_rate": 0.2}, "bias_learning_rate=0.2; compared is 0 alone"),
        ({"weight_decay_mode": "decoupled"}, "weight_decay_mode='decoupled'"),
        ({"schedule": "step", "decay_at": (0.5,)}, None),
    ):
        ours.write_text(OURS.format(optimizer=optimizer))
        with pytest.raises(BadInput, match=told) if told else contextlib.nullcontext():
            config = load_config(str(ours), 8, "fp16")
    assert config.optimizer.decay_at == OptimizerConfig().decay_at
    config.optimizer.validate(config.epochs)
    config = load_config("resnet50", 8, "fp32")
    assert (config.batch_size, config.precision, config.num_devices) == (8, "fp32", 1)
    assert config.optimizer.schedule == "constant" and config.label_smoothing == 0.1


def test_a_comparison_of_unequal_work_fails(capsys):
    print_results = importlib.import_module("results").print_results

    def record(name, losses, ratio=None):
        return {
            "contestant": name,
            "failed": None,
            "images_per_s": 1.0,
            "images_per_s_low": 0.9,
            "images_per_s_high": 1.1,
            "mfu": None,
            "peak_memory_bytes": 2**30,
            "first_step_s": 1.0,
            "losses": losses,
            "last_loss": 1.0,
            "ratio": ratio,
            "distances": {"conv.weight": 0.5, "norm.weight": 0.01, "norm.bias": 0.001},
        }

    falling = [2.0, 1.9, 1.8, 1.7, 1.6]
    ours, same = record("jaxbench", falling), record("same", falling, (1.1, 1.05, 1.15))
    assert print_results([ours, same], "fp32", 1.05) == []
    # However far the intervals of one run are apart.
    assert (
        "/ it 1.100" in (said := capsys.readouterr().out) and "inconclusive: one run each" in said
    )
    for wanted, how in ((1.2, "is"), (1.12, "may be")):
        assert print_results([ours, same], "fp32", wanted) == [
            f"jaxbench {how} below {wanted:g} times the best PyTorch variant"
        ]
    assert len(print_results([ours | {"mfu": 1.01}, same], "fp32", 0)) == 1
    assert "cannot be that fast" in capsys.readouterr().out
    other = record("other", [2.0, 1.9, 1.85, 1.7, 1.6], (1.1, 1.05, 1.15))
    assert len(print_results([ours, other], "fp32", 0)) == 1
    said = capsys.readouterr().out
    assert "other does other work" in said
    for precision, distances, told in (
        # One that is left out; none has momentum; a parameter is another.
        ("bf16", same["distances"] | {"norm.bias": 0.0}, "norm.bias is 0 from its start"),
        ("bf16", {k: 0.54 * v for k, v in same["distances"].items()}, r"46\.0% \(median\)"),
        ("fp32", same["distances"] | {"extra": 1.0}, "are others: extra"),
    ):
        [problem] = print_results([ours, same | {"distances": distances}], precision, 0)
        assert re.search(told, problem)
    lost = {"contestant": "lost", "failed": "exit code 1: out of memory"}
    assert len(print_results([ours, lost], "fp32", 0)) == 1
    assert "lost      failed: exit code 1: out of memory" in capsys.readouterr().out
    stuck = record("jaxbench", [1.0] * 5)
    assert len(print_results([stuck], "fp32", 0)) == 1
    assert "did not fall" in capsys.readouterr().out


def test_what_fits_where_is_the_table_of_the_documentation(load_script):
    """The batches; rates follow the calibration."""
    rows = load_script("what_fits").lines(["cnn10", "unet256", "conv2d"])
    page = re.sub(r": [\d,.]+/s", "", (ROOT / "docs" / "what-fits.md").read_text()).splitlines()
    assert len(rows) == 4
    assert not [row for row in rows if re.sub(r": [\d,.]+/s", "", row) not in page]


def test_what_runs_where_are_the_tables_of_the_documentation(load_script):
    script, rows = load_script("kernel_table"), read_rows(ROOT / "results" / "kernels.csv")
    page = (ROOT / "docs" / "kernels.md").read_text().splitlines()
    assert len(rows) >= 150
    assert not [line for line in script.tables(rows) if line not in page]
    timed = {"target": HERE, "device_kind": "NVIDIA H100", "time_us": 12.5, "fraction": 0.5}
    heading, _, cells = script.tables([dataclasses.replace(rows[0], **timed)])
    assert heading == "| operation | NVIDIA H100 |" and "12.50 us, 50.00 %" in cells


def test_what_fits_is_the_largest_power_of_two(load_script):
    script, config = load_script("what_fits"), registry.load("cnn10")
    (shape, _), target = read_shape(config), parse_target("gpu:rtx3070")
    config.batch_size = 4096
    cell = script.describe(config, shape, target, calibration.load())
    batch = int(re.search(r"\*\*([\d,]+)\*\*: [\d,.]+/s", cell)[1].replace(",", ""))
    setting = setting_of(shape, target, config.precision, batch)
    assert memory_bytes(setting)[0] <= target.usable_bytes
    assert memory_bytes(setting._replace(batch=2 * batch))[0] > target.usable_bytes
    config.precision = "fp16"
    assert script.describe(config, shape, parse_target("gpu:titanx"), None) == "no fp16"


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("versus_pytorch", ("--experiment=cnn10:tiny", "--json=/no/such/file"), "no such folder"),
        ("versus_pytorch", ("--experiment=cnn10:tiny", "--variants=eager,eager"), "named 2 times"),
        ("versus_pytorch", ("--variants=", "--min_ratio=1.2"), "--min_ratio=1.2: of no variant"),
        ("scale", ("--cases=metric",), "did you mean 'metrics'"),
    ],
)
def test_bad_input_is_refused(refused, name, args, told):
    refused(*args, module=name, told=told)
