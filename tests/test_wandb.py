"""Weights & Biases: what a stand-in for the package is given, and what the real one keeps."""

import functools
import importlib.util
import json
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import ROOT, program, records, run_json

from jaxbench import cells
from jaxbench.errors import BadInput, WandbFailed
from jaxbench.writers import wandb as writer_module
from jaxbench.writers.wandb import WandbWriter, check_wandb

TINY = ("--experiment=quickstart:tiny", "--experiment.num_devices=1", "--workdir=run")
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

    def load(self, monkeypatch, trouble=""):
        """Puts it in wandb's place in this process."""
        check_wandb.cache_clear()
        for name, value in (self.env | {"FAKE_WANDB": trouble}).items():
            if name != "PYTHONPATH":
                monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.syspath_prepend(str(self._log.parent / "packages"))


@pytest.fixture
def writer(stand_in, monkeypatch, tmp_path):
    """Makes a writer over the stand-in, in this process; it has `said` what it prints."""

    def make(trouble=""):
        stand_in.load(monkeypatch, trouble)
        said = []
        made = WandbWriter(tmp_path / "run", "demo", ["loss"], ["top1"], {"seed": 1}, said.append)
        made.said = said
        return made

    return make


def test_a_run_of_a_sweep_is_handed_over(tmp_path, stand_in):
    """Curves, fields, images and summary, as TensorBoard gets them, in the sweep's group."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxbench.sweep", *TINY[:2], "--grid=seed=7"]
        + ["--wandb=demo", "--sweepdir=sweep"],
        cwd=tmp_path,
        env=os.environ | stand_in.env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "sweep" / "cells").glob("*/run1")
    [begun] = stand_in.noted("init")
    assert begun["project"] == "demo" and begun["group"] == "sweep"
    assert begun["name"] == f"{folder.parent.name}/run1" and folder.samefile(
        tmp_path / begun["dir"]
    )
    assert begun["config"]["seed"] == 7 and begun["config"]["optimizer"]["name"] == "nesterov"
    assert begun["settings"]["console"] == "off" and begun["settings"]["x_disable_machine_info"]
    images, *rows = stand_in.noted("log")
    assert images["values"] == {"train/images": {"shape": [8, 128, 1], "dtype": "uint8"}}
    assert images["step"] == 0
    top1 = {row["step"]: row["values"].get("eval/top1") for row in rows if row["commit"]}
    epochs = records(folder, "epoch")
    assert len(epochs) == 2
    assert top1 == {epoch["step"]: epoch["eval_top1"] for epoch in epochs}
    losses = [row["values"]["train/loss"] for row in rows if not row["commit"]]
    assert losses == [step["loss"] for step in records(folder, "step")]
    # wandb drops what comes for an earlier step.
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    [summary] = stand_in.noted("summary")
    kept = run_json(folder)["summary"]
    assert summary["figures"]["images_per_s"] == kept["images_per_s"]
    assert summary["figures"]["status"] == "done" and None not in summary["figures"].values()
    assert stand_in.noted()[-1] == {"what": "finish", "exit_code": 0}


def test_a_run_that_fails_is_told_so(run_main, tmp_path, stand_in):
    diverging = "--experiment.optimizer.learning_rate=1e30"
    done = run_main(*TINY, "--wandb=demo", diverging, env=stand_in.env)
    assert done.returncode == 1 and run_json(tmp_path / "run")["status"] == "diverged"
    [summary] = stand_in.noted("summary")
    assert summary["figures"]["status"] == "diverged"
    assert stand_in.noted("finish") == [{"what": "finish", "exit_code": 1}]


def test_wandb_is_not_imported_unasked(run_main, stand_in):
    done = run_main(*TINY, "--experiment.max_steps=1", env=stand_in.env)
    assert done.returncode == 0, done.stderr
    assert stand_in.noted() == []


@pytest.mark.parametrize(
    ("flags", "env", "words"),
    [
        (
            ("--wandb=demo",),
            {"FAKE_WANDB": "absent"},
            "--wandb=demo: the package wandb is not installed: pip install 'jaxbench[wandb]'",
        ),
        (
            ("--wandb=demo",),
            {"WANDB_MODE": "online"},
            "--wandb=demo: wandb has no API key: run `wandb login`, or set WANDB_API_KEY; "
            "WANDB_MODE=offline keeps the records for `wandb sync`",
        ),
        (("--wandb=a/b",), {}, "--wandb=a/b: must be a project's name"),
        (("--wandb=demo", "--mode=throughput"), {}, "--wandb with --mode=throughput: it goes with"),
    ],
)
def test_bad_input_is_told_in_one_line(run_main, tmp_path, stand_in, flags, env, words):
    done = run_main(*TINY, *flags, env=stand_in.env | env)
    assert done.returncode == 2 and done.stderr.startswith(f"jaxbench: {words}")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_key_is_needed_where_records_are_sent(stand_in, monkeypatch):
    stand_in.load(monkeypatch)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb = writer_module._import_wandb("")
    for mode in ("offline", "dryrun", "disabled"):
        monkeypatch.setattr(wandb.Settings, "mode", mode)
        check_wandb.__wrapped__("demo")
    for mode in ("online", "shared"):
        monkeypatch.setattr(wandb.Settings, "mode", mode)
        with pytest.raises(BadInput, match="no API key"):
            check_wandb.__wrapped__("demo")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    check_wandb.__wrapped__("demo")
    # No service of the check's stays behind, for a sweep's cells to share.
    assert len(stand_in.noted("teardown")) == 6
    monkeypatch.setattr(wandb, "login", functools.partial(int, "wrong\nkey"))
    with pytest.raises(BadInput, match=r"^--wandb=demo: wandb cannot log in: \w+: [^\n]+$"):
        check_wandb.__wrapped__("demo")


@pytest.mark.parametrize("version", ["0.19.11", "0.9", "0.30.1"])
def test_an_old_wandb_is_refused(stand_in, monkeypatch, version):
    stand_in.load(monkeypatch)
    monkeypatch.setattr(writer_module._import_wandb(""), "__version__", version)
    with pytest.raises(BadInput, match=f"is {version}, must be 0.31 or later"):
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
        made.write({"kind": "step", "step": step, "loss": 1.0})
        made.add_images("train/images", np.zeros((2, 4, 4, 1), np.uint8), step)
    made.close()
    assert made.said == ["wandb failed, the run goes on without it: RuntimeError: no more room"]
    # It is not left waiting for more.
    assert stand_in.noted()[-1] == {"what": "finish", "exit_code": 1}


def test_what_cannot_begin_ends_the_run_in_one_line(run_main, tmp_path, stand_in):
    done = run_main(*TINY, "--wandb=demo", env=stand_in.env | {"FAKE_WANDB": "init fails"})
    assert done.returncode == 1
    assert done.stderr == "jaxbench: --wandb=demo: RuntimeError: no such entity\n"
    assert run_json(tmp_path / "run")["status"] == "failed"
    assert records(tmp_path / "run", "compile") == []  # before any work


def test_an_end_that_hangs_is_cut_short(tmp_path, stand_in):
    """The process ends with the run's own exit code, its records are whole."""
    code = (
        "from jaxbench import cli, main\n"
        "from jaxbench.writers import wandb\n"
        "wandb._LONGEST_CLOSE_S = 0.2\n"
        f"cli.run(main.main, {['main', *TINY, '--wandb=demo', '--experiment.max_steps=1']})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | stand_in.env | {"FAKE_WANDB": "finish hangs"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "wandb did not end in 0.2 s, cut short; what it has is in" in done.stdout
    assert run_json(tmp_path / "run")["status"] == "done"


def test_a_wandb_that_hangs_holds_no_record_up(writer, monkeypatch):
    made = writer()
    held = threading.Event()
    monkeypatch.setattr(sys.modules["wandb"]._Run, "log", lambda *_, **__: held.wait())
    for step in range(1000):
        made.write({"kind": "step", "step": step, "loss": 1.0})
    assert made._calls.qsize() >= 999
    held.set()
    made.close()
    assert made.said == []


def test_what_cannot_begin_is_an_error_of_its_own(writer):
    with pytest.raises(WandbFailed, match=r"^--wandb=demo: RuntimeError: no such entity$"):
        writer("init fails")


def test_sending_records_elsewhere_makes_no_other_cell():
    def key(*flags):
        [cell] = cells.make_cells("quickstart:tiny", (), ["seed=1"], flags)
        return cell.key

    assert key("--wandb=demo") == key() != key("--stop_at_top1=0.9")


def test_the_real_package_keeps_the_curves(tmp_path):
    """Its own file of an offline run, read back."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'jaxbench[wandb]'")
    done = subprocess.run(
        program(*TINY, "--wandb=demo"),
        cwd=tmp_path,
        env=os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    messages = list(kept_messages(path))
    [begun] = [message.run for message in messages if message.HasField("run")]
    assert begun.project == "demo" and begun.display_name.endswith("/run") and not begun.host
    top1, losses, pictures = {}, [], []
    for message in messages:
        if message.HasField("history"):
            row = {"/".join(i.nested_key) or i.key: i.value_json for i in message.history.item}
            if "eval/top1" in row:
                top1[int(row["_step"])] = json.loads(row["eval/top1"])
            if "train/loss" in row:
                losses.append(json.loads(row["train/loss"]))
            pictures += [value for key, value in row.items() if key.startswith("train/images/path")]
    epochs = records(tmp_path / "run", "epoch")
    assert top1 == {epoch["step"]: epoch["eval_top1"] for epoch in epochs} and len(top1) == 2
    assert losses == [step["loss"] for step in records(tmp_path / "run", "step")]
    assert len(pictures) == 1 and (path.parent / "files" / json.loads(pictures[0])).exists()
    assert [message.exit.exit_code for message in messages if message.HasField("exit")] == [0]


def kept_messages(path):
    """Reads a .wandb file: LevelDB's log format, behind a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, message = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block is too small for a record's head
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        message += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole message, or the last part of one
            yield wandb_internal_pb2.Record.FromString(message)
            message = b""
