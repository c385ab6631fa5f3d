"""The scripts in benchmarks/: what they make of figures, and what they refuse."""

import contextlib
import functools
import importlib
import json
import re
import sys
import types

import pytest
from absl import flags
from msgspec.structs import replace

from jaxbench.cards.card import Verdict
from jaxbench.cli import registry
from jaxbench.config import OptimizerConfig
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import parse_target
from jaxbench.modes.predictions import read_shape
from jaxbench.predict import calibration
from jaxbench.predict.prediction import memory_bytes, setting_of
from tests.cards import made
from tests.conftest import ROOT, refusal
from tests.recorded import recorded_run


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


def form_of(seconds_per_call, images_per_call=8, fails_at=None):
    """A form whose every call takes so long, and that runs out of memory at one of its windows."""

    class Form:
        def __init__(self):
            self.images_per_call, self.windows, self.is_closed = images_per_call, 0, False
            self.record = {"failed": None}

        def run(self, calls):
            self.windows += 1
            if self.windows == fails_at:
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9")
            return calls * seconds_per_call

        def close(self):
            self.is_closed = True

    return Form()


def test_a_form_that_is_twice_as_fast_has_ratio_two(load_script):
    script = load_script("step_variants")
    # The third takes as long as the base for twice the images.
    forms = [form_of(0.5), form_of(0.25), form_of(0.5, images_per_call=16)]
    script.measure(forms, window_s=1.0, rounds=6)
    base, twice, large = (form.record for form in forms)
    assert script.times_the_base(twice, base) == {"ratio": 2, "ratio_interval": [2, 2]}
    assert script.times_the_base(large, base)["ratio"] == 2
    assert twice["images_per_s"] == large["images_per_s"] == 2 * base["images_per_s"] == 32


@pytest.mark.parametrize("fails_at", [1, 8])
def test_a_form_that_runs_out_of_memory_fails_alone(load_script, fails_at):
    """In the warm-up, which takes four windows at least, and among the windows that count."""
    script = load_script("step_variants")
    forms = [form_of(0.5), form_of(0.5, fails_at=fails_at)]
    script.measure(forms, window_s=1.0, rounds=6)
    base, failed = (form.record for form in forms)
    assert failed["failed"].startswith("out of memory: RuntimeError: RESOURCE_EXHAUSTED")
    assert forms[1].is_closed and forms[1].windows == fails_at and not forms[0].is_closed
    assert len(base["windows_s"]) == 6 and base["failed"] is None
    assert script.times_the_base(failed, base) == script.times_the_base(base, failed) == {}


@pytest.mark.parametrize(
    ("whose", "flaxs"),
    [
        ("jaxbench", set()),
        ("flax_norm", {"BatchNorm"}),
        ("flax_pool", {"max_pool"}),
        ("flax", {"BatchNorm", "max_pool"}),
    ],
)
def test_each_of_flaxs_layers_is_swapped_alone(load_script, whose, flaxs):
    from jaxbench.models import layers, resnet

    def used():
        return {"BatchNorm": layers.BatchNorm, "max_pool": resnet.max_pool}

    ours = used()
    with load_script("step_variants").layers_of(whose):
        assert {name for name, layer in used().items() if layer is not ours[name]} == flaxs
    assert used() == ours


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


@pytest.mark.parametrize(
    ("rate", "ratio", "problems", "reached", "code"),
    [
        (13_000.0, (1.3, 1.25, 1.4), [], ["yes", "yes"], 0),
        (12_000.0, (1.1, 1.0, 1.19), [], ["no", "no"], 1),
        (12_600.0, (1.21, 1.19, 1.3), [], ["cannot be said"] * 2, 1),
        (13_000.0, (1.3, 1.25, 1.4), ["it does other work"], ["yes", "cannot be said"], 1),
        (13_000.0, (1.3, 1.25, 1.4), ["jaxbench cannot be that fast"], ["cannot be said"] * 2, 1),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(
    run_cli, tmp_path, rate, ratio, problems, reached, code
):
    environment = {"device_kind": "a GPU", "driver": None, "versions": {"jax": "1"}, "git": None}
    ours = {
        "failed": None,
        "images_per_s": rate,
        "images_per_s_low": rate - 100,
        "images_per_s_high": rate + 100,
        "mfu": 0.41,
        "environment": environment,
    }
    theirs = {"contestant": "pytorch eager", "failed": None, "images_per_s": 1.0, "ratio": ratio}
    document = {
        "config": {"batch_size": 512},
        "contestants": [ours, theirs],
        "pytorch_absent": None,
        "problems": problems,
    }
    (tmp_path / "wrn_rate_512.json").write_text(json.dumps(document))
    done = run_cli("--only=wrn_rate", f"--out={tmp_path}", module="acceptance")
    assert done.returncode == code, done.stderr
    assert re.findall(r"^\| wrn_rate .*\| ([a-z ]+) \|$", done.stdout, re.MULTILINE) == reached
    assert all(problem in done.stdout for problem in problems)


@pytest.mark.parametrize(
    ("share", "outcome", "reached"),
    [(0.85, "pass", ["yes"] * 3), (0.79, "warn", ["no", "no", "yes"])],
)
def test_a_card_is_judged_by_its_slowest_device(run_cli, tmp_path, share, outcome, reached):
    # Of the kinds of access the best one counts.
    rates = [0.9 * made.PEAK_TFLOPS] * 3 + [share * made.PEAK_TFLOPS]
    card = made.card(made.ceilings(rates, 0.7 * made.PEAK_GB_PER_S))
    verdict = Verdict(outcome=outcome, findings=())
    environment = card.environment | {"driver": "1", "versions": {"jax": "1"}, "git": None}
    made.write(tmp_path / "card-1", replace(card, environment=environment, verdict=verdict))
    done = run_cli("--only=card", f"--out={tmp_path}", module="acceptance")
    assert re.findall(r"^\| card .*\| ([a-z ]+) \|$", done.stdout, re.MULTILINE) == reached
    assert done.returncode == int(outcome != "pass")


def test_a_run_that_was_broken_off_is_no_result(load_script, tmp_path):
    finished_run = load_script("acceptance").finished_run
    assert finished_run(tmp_path) is None
    for status in ("running", "done"):
        run = finished_run(recorded_run(tmp_path / status, status=status))
        assert (run is not None) == (status == "done")
    (tmp_path / "done/metrics.jsonl").unlink()
    assert finished_run(tmp_path / "done") is None
    (tmp_path / "run.json").write_text('{"status"')
    assert finished_run(tmp_path) is None


def test_what_fits_where_is_the_table_of_the_documentation(load_script):
    """The batches; rates follow the calibration."""
    rows = load_script("what_fits").lines(["cnn10", "unet256", "conv2d"])
    page = re.sub(r": [\d,.]+/s", "", (ROOT / "docs" / "what-fits.md").read_text()).splitlines()
    assert len(rows) == 4
    assert not [row for row in rows if re.sub(r": [\d,.]+/s", "", row) not in page]


def test_what_fits_is_the_largest_power_of_two(load_script):
    script, config = load_script("what_fits"), registry.load("cnn10")
    (shape, _), target = read_shape(config), parse_target("gpu:rtx3070")
    config.batch_size = 4096
    cell = script.describe(config, shape, target, calibration.load())
    batch = int(re.search(r"\*\*([\d,]+)\*\*: [\d,.]+/s", cell)[1].replace(",", ""))
    setting = setting_of(shape, target, config.precision, batch)
    assert memory_bytes(setting) <= target.usable_bytes
    assert memory_bytes(setting._replace(batch=2 * batch)) > target.usable_bytes
    config.precision = "fp16"
    assert script.describe(config, shape, parse_target("gpu:titanx"), None) == "no fp16"


VARIANT = ("--experiment=cnn10:tiny", "--variant")


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        ("versus_pytorch", ("--experiment=cnn10:tiny", "--json=/no/such/file"), "no such folder"),
        ("versus_pytorch", ("--experiment=cnn10:tiny", "--variants=eager,eager"), "named 2 times"),
        ("versus_pytorch", ("--variants=", "--min_ratio=1.2"), "--min_ratio=1.2: of no variant"),
        ("acceptance", ("--out=new", "--only=wrn_rat"), "did you mean 'wrn_rate'"),
        ("acceptance", ("--out=new", "--only=speed_run"), "needs CIFAR-10"),
        ("acceptance", ("--out=new", "--only=speed_run", "--machine=v5e-8"), "must be one of wrn_"),
        ("acceptance", ("--out=new", "--tiny", "--data_dir=x"), "synthetic"),
        ("scale", ("--cases=metric",), "did you mean 'metrics'"),
        ("step_variants", ("--experiment=cnn10:tiny", "--target=gpu:h10"), "mean 'h100'"),
        ("step_variants", (*VARIANT, "layers=flax"), "must be a name"),
        ("step_variants", (*VARIANT, "a remat"), "FIELD=VALUE"),
        ("step_variants", (*VARIANT, "a layers=own"), "one of jaxbench, flax_norm, flax_pool, fl"),
        ("step_variants", (*VARIANT, "a feed=stream"), "one of synthetic, resident"),
        ("step_variants", (*VARIANT, "a steps_per_call=0"), "whole number"),
    ],
)
def test_bad_input_is_refused(refused, name, args, told):
    refused(*args, module=name, told=told)


@pytest.mark.parametrize("order", ["AB", "ABBA", "AB" * 5, "BBABBB", "ABC", "ABC" * 3])
def test_pages_of_equal_settings_claim_no_difference(load_script, order):
    """At most 6 % may: of 30 pages 4 at most, with a margin for so few."""
    assert load_script("verdicts").simulate_pages(order, 1, 0.0, 30, seed=1)["wrong"] <= 4 / 30


def test_a_page_names_a_setting_that_is_faster(load_script):
    assert load_script("verdicts").simulate_pages("AB" * 5, 1, 0.0, 30, seed=1)["seen"] >= 0.5
