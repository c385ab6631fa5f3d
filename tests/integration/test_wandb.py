"""Weights & Biases in processes of their own: a sweep's, one that hangs, and the real package."""

import json
import os
import signal
import struct
import subprocess
import sys

import pytest

from jaxbench.clock import wait_until
from jaxbench.parallel.signals import GRACE_PERIOD_S
from tests.conftest import MICRO, records, run_json
from tests.integration.conftest import program, run_program
from tests.records.test_wandb import StandIn

RUN = (f"--experiment={MICRO}", "--workdir=run")


@pytest.fixture
def stand_in(tmp_path):
    """A stand-in for wandb: the environment that has it found, and what it has noted."""
    return StandIn(tmp_path)


def test_a_run_of_a_sweep_is_handed_over(tmp_path, stand_in):
    """Curves, fields, images and summary, as TensorBoard gets them, in the sweep's group."""
    done = run_program(
        [sys.executable, "-m", "jaxbench.sweep", RUN[0], "--grid=seed=7"]
        + ["--wandb=demo", "--sweepdir=sweep"],
        cwd=tmp_path,
        env=stand_in.env,
    )
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "sweep" / "trials").glob("*/run1")
    [begun] = stand_in.noted("init")
    assert begun["project"] == "demo" and begun["group"] == "sweep"
    assert begun["name"] == f"{folder.parent.name}/run1" and folder.samefile(
        tmp_path / begun["dir"]
    )
    assert begun["config"]["seed"] == 7 and begun["config"]["optimizer"]["name"] == "nesterov"
    assert begun["settings"]["console"] == "off" and begun["settings"]["x_disable_machine_info"]
    # Uploading ends before a signal's time is up.
    assert 0 < begun["settings"]["finish_timeout"] < GRACE_PERIOD_S
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


def test_ctrl_c_ends_an_end_that_hangs(tmp_path, stand_in):
    """In bounded time; the run's records are whole by then."""
    code = (
        "from jaxbench import main\n"
        "from jaxbench.cli import entry_point\n"
        f"flags = {[*RUN, '--wandb=demo', '--experiment.max_steps=1', '--grace_period_s=1']}\n"
        "entry_point.run_with_experiment(main.main, ['main', *flags])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | stand_in.env | {"FAKE_WANDB": "finish hangs"},
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            wait_until(lambda: run.poll() is not None or stand_in.noted("finish"))
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
        finally:
            run.kill()
        assert run.stderr.read() == "jaxbench: did not end in 1 s, forced to exit\n"
    assert run_json(tmp_path / "run")["status"] == "done"


def test_the_real_package_keeps_the_curves(tmp_path):
    """Its own file of an offline run, read back."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'jaxbench[wandb]'")
    done = run_program(
        program(*RUN, "--wandb=demo"),
        cwd=tmp_path,
        env={"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
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
