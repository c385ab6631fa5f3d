"""Experiment files with custom code, from the command line; templates of `jaxbench new`."""

import importlib
import operator
import sys

import pytest

from jaxbench.cli import entry_point
from jaxbench.data.sources.load import load_dataset
from jaxbench.modes import describe
from tests.conftest import program_of, records, run_json, table

NET = """
import flax.linen as nn
import optax
from jaxbench.config import Config, DataConfig, OptimizerConfig
from jaxbench.models.layers import classify
from jaxbench.tasks import Classification

class Net(nn.Module):
    num_classes: int
    width: int = 4

    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Dense(self.width)(images.reshape(len(images), -1)))
        %(call)s
        return nn.Dense(self.num_classes)(x)

class MyTask(Classification):
    name = "mine"
    primary_metric = "half"
    train_metrics = ("loss", "half")
    eval_metrics = ("loss", "top1", "half")

    def losses(self, outputs, labels, smoothing=0.0):
        %(loss)s
        return 2 * super().losses(outputs, labels, smoothing)

    def compute(self, sums):
        figures = super().compute(sums)
        return figures | {"half": figures["top1"] / 2}

class Source:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        %(item)s
        return {"image": [[index %% 2 * 1.0] * 2] * 2, "label": index %% 2}

def load():
    return {"train": Source(), "test": Source()}

def rule(schedule):
    %(rule)s
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(schedule))

def get_config():
    return Config(
        model=Net,
        data=DataConfig(load=load, image_shape=(2, 2, 1), num_classes=2),
        optimizer=OptimizerConfig(update_rule=rule, learning_rate=0.5),
        task=MyTask(),
        num_devices=1,
        batch_size=64,
        epochs=2,
        %(config)s
    )
"""
PLACES = ("call", "loss", "item", "rule")
RULE = "return optax.stateless(lambda updates, params: %s)"
QUICK = ("--compile_cache=off", "--telemetry_s=0")


def write(folder, **code):
    text = NET % ({**dict.fromkeys(PLACES, "pass"), "config": ""} | code)
    (folder / "mine.py").write_text(text)


def run(run_cli, *args, **how):
    return run_cli("--experiment=mine.py", *QUICK, *args, **how)


def test_all_custom_code_trains_is_recorded_and_resumed(run_cli, refused, tmp_path):
    write(tmp_path)
    saved = ("--workdir=run", "--checkpoint_epochs=1", "--resume=auto")
    fields = ("--experiment.model.width=8", "--experiment.max_steps=4")
    done = run(run_cli, *saved, *fields)
    assert (done.returncode, done.stderr) == (0, "")
    assert " half 0." in done.stdout  # at the end; an epoch has a column of it
    assert "  test half" in done.stdout
    document = run_json(tmp_path / "run")
    config, summary = document["config"], document["summary"]
    assert config["model"]["width"] == 8 and document["model"] == "Net"
    for field, name in (("update_rule", "rule"), ("load", "load")):
        [code] = [part[field] for part in (config["optimizer"], config["data"]) if field in part]
        assert code.startswith(f"{name} in mine.py, sha256 ")
    assert (config["optimizer"]["name"], config["data"]["source"]) == ("custom", "custom")
    assert document["task"] == "mine" and config["task"].startswith("MyTask in mine.py, sha256 ")
    assert summary["eval_metrics"]["half"] == pytest.approx(summary["eval_top1"] / 2)
    assert summary["best_eval_metrics"] == summary["eval_metrics"]
    [epoch] = records(tmp_path / "run", "epoch")
    [row] = table(tmp_path / "run" / "epochs.csv")
    assert float(row["eval_half"]) == epoch["eval_metrics"]["half"]
    assert float(row["train_half"]) == epoch["train_metrics"]["half"]

    assert "is done already" in run(run_cli, *saved, *fields).stdout
    write(tmp_path, config="seed=0,")  # the same, but for the file's text
    done = run(refused, *saved, *fields, told="run: the file of its code has changed: ")
    assert "task=MyTask in mine.py, " in done.stderr


@pytest.mark.parametrize("place", PLACES)
def test_an_error_is_one_line_of_the_users_file(refused, tmp_path, place):
    write(tmp_path, **{place: "raise KeyError('oh')"})
    lineno = next(
        number
        for number, text in enumerate((tmp_path / "mine.py").read_text().splitlines(), 1)
        if "KeyError" in text
    )
    done = run(refused, told=f"jaxbench: mine.py:{lineno}: ", begun=True)
    assert done.stderr.endswith("KeyError: 'oh'\n")


@pytest.mark.parametrize(
    ("folder", "helper", "given", "told"),
    [
        (".", "beside", "rule", "beside.py:2: "),
        ("far", "defines", "defines.rule", "defines.py:2: "),
        ("far", "elsewhere", "rule", "mine.py:45: "),  # the line that calls it
    ],
)
def test_an_error_in_an_imported_module_is_one_line(
    refused, tmp_path, monkeypatch, folder, helper, given, told
):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"{helper}.py").write_text("def rule(schedule):\n    1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(tmp_path, rule=f"return {helper}.rule(schedule)")
    text = (tmp_path / "mine.py").read_text().replace("update_rule=rule", f"update_rule={given}")
    (tmp_path / "mine.py").write_text(f"import {helper}\n{text}")
    done = run(refused, told=told, begun=True)
    assert done.stderr.endswith(
        "optimizer.update_rule fails: ZeroDivisionError: division by zero\n"
    )


def test_no_librarys_exit_and_no_error_of_jaxbench_is_the_users(run_cli, tmp_path, monkeypatch):
    """Wherever the library is installed, and with the user's file loaded."""
    text = "import sys\ndef run(main, argv, flags_parser): sys.exit(main(flags_parser(sys.argv)))"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "absl_elsewhere.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    write(tmp_path)
    monkeypatch.setattr(entry_point, "app", importlib.import_module("absl_elsewhere"))
    done = run_cli("--experiment=mine.py", "--mode=describe")
    assert (done.returncode, done.stderr) == (0, "")
    # No frame of this file, which lies in the folder of another experiment.
    monkeypatch.setattr(describe, "describe", operator.attrgetter("no_such_field"))
    with pytest.raises(AttributeError, match="no_such_field"):
        run_cli("--experiment=mine.py", "--mode=describe")


@pytest.mark.parametrize(
    ("code", "override", "told"),
    [
        ({"rule": "return 3"}, "", "rule returned a int, expected an optax.GradientTransformation"),
        ({"rule": RULE % "1 / 0"}, "", "mine.py:44: optimizer.update_rule fails: ZeroDivision"),
        ({"rule": RULE % None}, "", "optimizer.update_rule fails: "),
        ({"config": "batch_norm=1/0"}, "", "mine.py:56: the experiment file fails with ZeroDiv"),
        ({"loss": "return outputs"}, "", "losses of 2 examples have shape (2, 2), expected (2,)"),
        ({}, "data.value_range=(1,0)", "must be (lowest,highest)"),
        ({}, "optimizer.update_rule=x", "has no field 'optimizer.update_rule'"),
        ({}, "model.widht=3", "did you mean 'model.width'"),
    ],
)
def test_custom_code_and_its_fields_are_checked(refused, tmp_path, code, override, told):
    write(tmp_path, **code)
    overrides = [f"--experiment.{override}"] if override else []
    run(refused, *overrides, told=told, begun=True)


def test_an_override_leaves_custom_code_out_with_a_warning(run_cli, tmp_path):
    write(tmp_path)
    overrides = ("--experiment.optimizer.name=sgd", "--experiment.data.source=synthetic")
    done = run(run_cli, *overrides, "--workdir=run", "--experiment.max_steps=1")
    assert done.returncode == 0, done.stderr
    document = run_json(tmp_path / "run")
    [warning] = [w for w in document["summary"]["warnings"] if "without effect" in w]
    assert "data.load=load in mine.py" in warning and "optimizer.update_rule=rule in" in warning
    assert document["config"]["optimizer"]["update_rule"] is None


def test_a_line_names_all_that_a_task_lacks(refused, tmp_path):
    text = NET % dict.fromkeys((*PLACES, "config"), "pass")
    text = text.replace("MyTask()", "Bad()").replace("        pass\n    )", "    )")
    bad = "class Bad:\n    name = 'bad'\n    train_sums = ('loss',)\n    losses = print\n\n"
    (tmp_path / "mine.py").write_text(text.replace("def load", bad + "def load"))
    told = (
        "task Bad lacks primary_metric, eval_sums, train_metrics, eval_metrics, label_shape(), "
        "output_shape(), metric_sums(), compute(), 'count' in train_sums"
    )
    run(refused, told=told)


@pytest.mark.parametrize("kind", ["network", "optimizer", "data", "task"])
def test_a_new_template_is_an_experiment_that_can_be_built(run_cli, tmp_path, kind):
    done = run_cli(kind, "mine.py", module="jaxbench.new")
    assert done.returncode == 0 and "--experiment=mine.py" in done.stdout
    text = (tmp_path / "mine.py").read_text()
    assert "=FILE" not in text and "jaxbench main --experiment=mine.py" in text
    program = program_of(str(tmp_path / "mine.py"))
    program.network.config.validate()
    program.check()
    assert kind != "data" or len(load_dataset(program.network.config).train) == 2048


def test_a_new_folders_name_is_no_code(run_cli, tmp_path):
    (tmp_path / 'a"""b').mkdir()
    assert run_cli("network", 'a"""b/mine.py', module="jaxbench.new").returncode == 0
    assert 'a"""b' not in (tmp_path / 'a"""b' / "mine.py").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "one of data, network, optimizer, task"),
        (("netwrok", "x.py"), "did you mean 'network'"),
        (("network", "x.txt"), "must end in .py"),
        (("network", "no/such/x.py"), "No such file"),
        (("network", 'x""";print(1);""".py'), "after letters, digits and _ only"),
        (("network", "mine.py"), "mine.py: exists"),
    ],
)
def test_bad_arguments_of_new_write_nothing(refused, tmp_path, args, told):
    (tmp_path / "mine.py").write_text("mine")
    refused(*args, module="jaxbench.new", told=told)
