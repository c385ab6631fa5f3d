"""Weights & Biases in processes of their own: the real package in a sweep, and one that hangs."""

import json
import signal
import struct
import subprocess
import sys

import pytest

from tests.conftest import MICRO, records, run_json
from tests.integration.conftest import program, run_program

# An end of the run that does not come back.
HANGING = """
import sys, time
from unittest import mock
from jaxbench import main
from jaxbench.cli import entry_point

wandb = sys.modules["wandb"] = mock.MagicMock()
wandb.setup().settings.mode = "offline"
wandb.init().finish = lambda exit_code: time.sleep(print("ends", flush=True) or 1000)
entry_point.run_with_experiment(main.main, ["main", *sys.argv[1:]])
"""


def test_ctrl_c_ends_an_end_that_hangs(tmp_path):
    """In bounded time; the run's records are whole by then."""
    flags = (f"--experiment={MICRO}", "--workdir=run", "--wandb=demo", "--experiment.max_steps=1")
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, *flags, "--grace_period_s=1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert "ends\n" in iter(run.stdout.readline, "")
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
        assert run.stderr.read() == "jaxbench: did not end in 1 s, forced to exit\n"
    assert run_json(tmp_path / "run")["status"] == "done"


def test_a_run_of_a_sweep_is_handed_over(tmp_path):
    """Curves, fields, images and summary, in wandb's own file of an offline run, read back."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'jaxbench[wandb]'")
    flags = ("--grid=seed=7", "--wandb=demo", "--sweepdir=sweep")
    done = run_program(
        program(f"--experiment={MICRO}", *flags, command="sweep"),
        cwd=tmp_path,
        env={"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
    )
    assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "sweep" / "trials").glob("*/run1")
    [path] = (folder / "wandb").glob("offline-run-*/*.wandb")
    messages = list(kept_messages(path))
    [begun] = [message.run for message in messages if message.HasField("run")]
    assert (begun.project, begun.run_group, begun.host) == ("demo", "sweep", "")
    assert begun.display_name == f"{folder.parent.name}/run1"
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["seed"] == 7 and config["optimizer"]["name"] == "nesterov"
    top1, losses, pictures, summary = {}, [], [], {}
    for message in messages:
        items = [*message.history.item, *message.summary.update]
        row = {"/".join(i.nested_key) or i.key: i.value_json for i in items}
        if message.HasField("summary"):
            summary |= row
        if message.HasField("history"):
            if "eval/top1" in row:
                top1[int(row["_step"])] = json.loads(row["eval/top1"])
            if "train/loss" in row:
                losses.append(json.loads(row["train/loss"]))
            pictures += [value for key, value in row.items() if key.startswith("train/images/path")]
    epochs = records(folder, "epoch")
    assert top1 == {epoch["step"]: epoch["eval_top1"] for epoch in epochs} and len(top1) == 2
    assert losses == [step["loss"] for step in records(folder, "step")]
    assert len(pictures) == 1 and (path.parent / "files" / json.loads(pictures[0])).exists()
    assert json.loads(summary["status"]) == "done"
    assert json.loads(summary["images_per_s"]) == run_json(folder)["summary"]["images_per_s"]
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
