"""Weights & Biases: what a stand-in for the package is given."""

import functools
import importlib.util
import json
import os
import sys

import numpy as np
import pytest

from jaxbench.errors import BadInput
from jaxbench.records.schema import StepRecord
from jaxbench.records.writers.wandb import WandbWriter, check_wandb
from tests.conftest import MICRO, ROOT, records, run_json

RUN = (f"--experiment={MICRO}", "--experiment.epochs=1", "--workdir=run")
# Writes down what it is asked for, and fails where FAKE_WANDB says so.
_STAND_IN = """
import json, os, time

TROUBLE = os.environ.get("FAKE_WANDB", "")
if TROUBLE == "absent":
    raise ImportError("made for a test")
__version__ = "0.31.0"

def note(what, **given):
    with open(os.environ["FAKE_WANDB_LOG"], "a") as file:
        file.write(json.dumps({"what": what, **given}) + "\\n")

note("import")

class Settings:
    mode = os.environ.get("WANDB_MODE", "online")

    def __init__(self, **given):
        self.given = given

class _Setup:
    settings = Settings()

def setup():
    return _Setup()

def login(prompt=True):
    assert prompt is False
    return "WANDB_API_KEY" in os.environ

def teardown():
    note("teardown")

def Image(data):
    return {"shape": data.shape, "dtype": str(data.dtype)}

class _Summary:
    def update(self, figures):
        note("summary", figures=figures)

class _Run:
    summary = _Summary()

    def log(self, values, step, commit=None):
        if TROUBLE == "log fails":
            raise RuntimeError("no more room")
        note("log", values=values, step=step, commit=commit)

    def finish(self, exit_code):
        note("finish", exit_code=exit_code)
        if TROUBLE == "finish hangs":
            time.sleep(1000)
        if TROUBLE == "finish fails":
            raise RuntimeError("no such\\nentity")

def init(settings, **given):
    if TROUBLE == "init fails":
        raise RuntimeError("no such\\nentity")
    group = os.environ.get("WANDB_RUN_GROUP")
    note("init", settings=settings.given, group=group, **given)
    return _Run()
"""


@pytest.fixture
def stand_in(tmp_path):
    """A stand-in for wandb: the environment that has it found, and what it has noted."""
    yield StandIn(tmp_path)
    sys.modules.pop("wandb", None)


class StandIn:
    def __init__(self, folder):
        package = folder / "packages" / "wandb"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(_STAND_IN)
        self._log = folder / "noted.jsonl"
        path = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        self.env = {"PYTHONPATH": os.pathsep.join(path), "FAKE_WANDB_LOG": str(self._log)}
        self.env |= {"WANDB_MODE": "offline"}

    def noted(self, what=None):
        if not self._log.exists():
            return []
        lines = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if what in (None, line["what"])]

    def load(self, monkeypatch, **env):
        """Puts it in wandb's place in this process."""
        check_wandb.cache_clear()
        for name, value in (self.env | env).items():
            if name != "PYTHONPATH":
                monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.syspath_prepend(str(self._log.parent / "packages"))


@pytest.fixture
def run_with(run_cli, stand_in, monkeypatch):
    """Runs the entry point with the stand-in, and with these variables."""

    def run(*flags, **env):
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        stand_in.load(monkeypatch, **env)
        return run_cli(*RUN, *flags)

    return run


@pytest.fixture
def writer(stand_in, monkeypatch, tmp_path):
    """Makes a writer over the stand-in, in this process; it has `said` what it prints."""

    def make(trouble=""):
        stand_in.load(monkeypatch, FAKE_WANDB=trouble)
        said = []
        made = WandbWriter(tmp_path / "run", "demo", {"seed": 1}, said.append)
        made.said = said
        return made

    return make


def test_a_run_that_fails_is_told_so(run_with, tmp_path, stand_in):
    done = run_with("--wandb=demo", "--experiment.optimizer.learning_rate=1e30")
    assert done.returncode == 1 and run_json(tmp_path / "run")["status"] == "diverged"
    [summary] = stand_in.noted("summary")
    assert summary["figures"]["status"] == "diverged"
    assert stand_in.noted("finish") == [{"what": "finish", "exit_code": 1}]


def test_wandb_is_not_imported_unasked(run_with, stand_in):
    done = run_with("--experiment.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert stand_in.noted() == []


@pytest.mark.parametrize(
    ("flags", "env", "told"),
    [
        (["--wandb=demo"], {"FAKE_WANDB": "absent"}, "pip install 'jaxbench[wandb]'"),
        (["--wandb=demo"], {"WANDB_MODE": "online"}, "no API key: run `wandb login`, or set"),
        (["--wandb=a/b"], {}, "--wandb=a/b: must be a project's name"),
        (["--wandb=demo", "--mode=throughput"], {}, "--wandb with --mode=throughput: it needs"),
    ],
)
def test_bad_input_is_refused(run_with, tmp_path, flags, env, told):
    done = run_with(*flags, **env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and told in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_key_is_needed_where_records_are_sent(stand_in, monkeypatch):
    stand_in.load(monkeypatch)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb = importlib.import_module("wandb")
    for mode in ("offline", "dryrun", "disabled"):
        monkeypatch.setattr(wandb.Settings, "mode", mode)
        check_wandb.__wrapped__("demo")
    for mode in ("online", "shared"):
        monkeypatch.setattr(wandb.Settings, "mode", mode)
        with pytest.raises(BadInput, match="no API key"):
            check_wandb.__wrapped__("demo")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    check_wandb.__wrapped__("demo")
    # No service of the check's stays behind, for a sweep's trials to share.
    assert len(stand_in.noted("teardown")) == 6
    monkeypatch.setattr(wandb, "login", functools.partial(int, "wrong\nkey"))
    with pytest.raises(BadInput, match=r"^--wandb=demo: wandb cannot log in: \w+: [^\n]+$"):
        check_wandb.__wrapped__("demo")


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    """wandb makes such folders; without the package Python would import them."""
    (tmp_path / "wandb").mkdir()
    spec = importlib.util.spec_from_loader("wandb", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "wandb")]
    monkeypatch.setitem(sys.modules, "wandb", importlib.util.module_from_spec(spec))
    with pytest.raises(BadInput, match="not installed"):
        check_wandb.__wrapped__("demo")


def test_trouble_in_the_middle_is_said_once_and_the_rest_goes_on(writer, stand_in):
    made = writer("log fails")
    for step in (1, 2):
        made.write(StepRecord(step=step, epoch=1, loss=1.0, learning_rate=0.1, elapsed_s=1.0))
        made.add_images("train/images", np.zeros((2, 4, 4, 1), np.uint8), step)
    made.close()
    assert made.said == ["warning: wandb failed, the run continues: RuntimeError: no more room"]
    # It is not left waiting for more.
    assert stand_in.noted()[-1] == {"what": "finish", "exit_code": 1}


@pytest.mark.parametrize("trouble", ["init fails", "finish fails"])
def test_a_run_goes_on_whatever_wandb_does(run_with, tmp_path, trouble):
    done = run_with("--wandb=demo", FAKE_WANDB=trouble)
    assert done.returncode == 0 and done.stderr == ""
    line = "warning: wandb failed, the run continues: RuntimeError: no such entity\n"
    assert done.stdout.count(line) == 1
    assert run_json(tmp_path / "run")["status"] == "done"
    assert len(records(tmp_path / "run", "epoch")) == 1
