"""Weights & Biases: what a stand-in for the package is given, and that its troubles end no run."""

import functools
import importlib.util
import sys
from unittest import mock

import numpy as np
import pytest

from jaxbench.parallel.signals import GRACE_PERIOD_S
from jaxbench.records.writers.wandb import WandbWriter, check_wandb
from jaxbench.schema import StepRecord
from tests.conftest import MICRO, records, refusal, run_json

RUN = (f"--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run")


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package, which keeps its records here."""
    package = mock.MagicMock()
    package.setup().settings.mode = "offline"
    package.login.return_value = False
    monkeypatch.setitem(sys.modules, "wandb", package)
    check_wandb.cache_clear()
    yield package
    check_wandb.cache_clear()


def test_a_run_that_fails_is_told_so(run_cli, tmp_path, wandb):
    done = run_cli(*RUN, "--wandb=demo", "--experiment.optimizer.learning_rate=1e30")
    assert done.returncode == 1 and run_json(tmp_path / "run")["status"] == "diverged"
    [summary] = wandb.init().summary.update.call_args.args
    assert summary["status"] == "diverged"
    wandb.init().finish.assert_called_once_with(exit_code=1)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--wandb=demo"], "no API key: run `wandb login`, or set"),
        (["--wandb=a/b"], "--wandb=a/b: must be a project's name"),
    ],
)
def test_bad_input_is_refused(refused, wandb, flags, told):
    wandb.setup().settings.mode = "online"
    refused(*RUN, *flags, told=told)


def test_a_key_is_needed_where_records_are_sent(wandb):
    check = functools.partial(check_wandb.__wrapped__, "demo")
    for mode in ("offline", "dryrun", "disabled"):
        wandb.setup().settings.mode = mode
        check()
    for mode in ("online", "shared"):
        wandb.setup().settings.mode = mode
        refusal(check, told="no API key")
    # No service of the check's stays behind, for a sweep's trials to share.
    assert wandb.teardown.call_count == 5
    wandb.login.side_effect = ValueError("wrong\nkey")
    refusal(check, told="--wandb=demo: wandb cannot log in: ValueError: wrong key; ")
    wandb.login.side_effect, wandb.login.return_value = None, True
    check()


def test_without_the_package_that_is_told(refused, wandb, tmp_path, monkeypatch):
    """wandb makes folders of its name, which Python imports in the package's place."""
    (tmp_path / "wandb").mkdir()
    spec = importlib.util.spec_from_loader("wandb", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "wandb")]
    for module in (None, importlib.util.module_from_spec(spec)):
        monkeypatch.setitem(sys.modules, "wandb", module)
        told = "the package wandb is not installed: pip install 'jaxbench[wandb]'"
        refused(*RUN, "--wandb=demo", told=told)


def test_trouble_in_the_middle_is_said_once_and_the_rest_goes_on(wandb, tmp_path):
    said = []
    writer = WandbWriter(tmp_path / "run", "demo", {"seed": 1}, said.append)
    settings = wandb.Settings.call_args.kwargs
    # Uploading ends before a signal's time is up.
    assert 0 < settings.pop("finish_timeout") < GRACE_PERIOD_S
    # Nothing is sent but the records.
    assert settings == {
        **{"console": "off", "host": "", "save_code": False, "x_save_requirements": False},
        **{"disable_git": True, "label_disable": True, "x_disable_machine_info": True},
    }
    wandb.init().log.side_effect = RuntimeError("no more room")
    for step in (1, 2):
        writer.write(StepRecord(step=step, epoch=1, loss=1.0, learning_rate=0.1, elapsed_s=1.0))
        writer.add_images("train/images", np.zeros((2, 4, 4, 1), np.uint8), step)
    writer.close()
    assert said == ["warning: wandb failed, the run continues: RuntimeError: no more room"]
    # It is not left waiting for more.
    wandb.init().finish.assert_called_once_with(exit_code=1)


@pytest.mark.parametrize("trouble", ["init", "finish"])
def test_a_run_goes_on_whatever_wandb_does(run_cli, tmp_path, wandb, trouble):
    failing = wandb.init if trouble == "init" else wandb.init().finish
    failing.side_effect = RuntimeError("no such\nentity")
    done = run_cli(*RUN, "--wandb=demo")
    assert done.returncode == 0 and done.stderr == ""
    line = "warning: wandb failed, the run continues: RuntimeError: no such entity\n"
    assert done.stdout.count(line) == 1
    assert run_json(tmp_path / "run")["status"] == "done"
    assert len(records(tmp_path / "run", "epoch")) == 1
