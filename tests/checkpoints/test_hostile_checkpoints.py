"""Checkpoints made to write elsewhere, to hang, to crash or to fill the memory: one line each."""

import errno
import functools
import json
import math
import os
import shutil
import socket
import sys
from unittest import mock

import numpy as np
import pytest
import tensorstore

from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.checkpoint import DamagedCheckpointError, read_checkpoint, read_newest
from jaxbench.checkpoints.resume import CHECKPOINTS
from jaxbench.files import DOCUMENT_BYTES
from tests.checkpoints.runs import interrupted, save_every, trained
from tests.conftest import refusal
from tests.strategies import changed, paths_of

OLDER, NAME = "step-000000001.epoch-00001", "step-000000002.epoch-00002"
STATE = {"a": np.arange(3.0), "b": {str(n): np.ones((2, 2)) for n in range(30)}}
METADATA = {
    "step": 2,
    "epochs_done": 2,
    "sums": {
        **dict.fromkeys(("epoch", "steps", "interval_steps", "images", "profiled_steps"), 1),
        **dict.fromkeys(("interval_time_s", "time_s", "data_wait_s"), 0.5),
        **dict.fromkeys(("total", "interval"), {"loss": [float("nan")]}),
    },
    "learning_rate": 0.1,
    "compile_s": 1.0,
    "compile_cache": ["miss"],
    "first_step_s": 1.0,
    "invalid": ["a"],
    "traced": [1],
    "records": {"metrics.jsonl": [1, "00"]},
    "totals_s": {"train": 1.0},
    "windows": [[0.5, 1.0, 3]],
}
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intact")
    for name in (OLDER, NAME):
        orbax = checkpoint.create_orbax()
        checkpoint.write_checkpoint(orbax, folder, name, STATE, METADATA, 0.5)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with one checkpoint, in the middle of its first epoch."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        save_every(patch, 4)
        interrupted(patch, run, 7, num_devices=1)
    return run


@pytest.fixture
def folder(intact, tmp_path):
    """Two checkpoints, of which the tests damage the newer one."""
    return shutil.copytree(intact, tmp_path / "checkpoints")


def seal(path, change=lambda body: body):
    """Seal a checkpoint's manifest anew, with whatever its folder holds and a changed body."""
    manifest = path / "manifest.json"
    body = json.loads(manifest.read_text())["body"]
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file != manifest]
    body["files"] = {str(file.relative_to(path)): checkpoint.digest(file) for file in files}
    body = change(body)
    manifest.write_text(json.dumps({"body": body, "seal": checkpoint._seal(body)}))


def falls_back(folder, told):
    """The newer checkpoint is damaged by one line, and the one before it is read."""
    said = []
    read = read_newest(folder, STATE, said.append, set_aside=False)
    assert read.name == OLDER and read.state["a"].tolist() == [0, 1, 2]
    [line] = said
    assert told in line and line.isprintable() and len(line) < 600


def is_kept(folder, told):
    """The run ends with one line, and no checkpoint is set aside."""
    refusal(read_newest, folder, STATE, print, told=told)
    assert sorted(os.listdir(folder)) == [OLDER, NAME]


def test_an_intact_checkpoint_is_read(folder):
    assert checkpoint.best_checkpoint(folder) == NAME
    seal(folder / NAME)
    assert read_newest(folder, STATE, print).metadata["step"] == 2


@pytest.mark.parametrize(
    "name", ["../../precious", "arrays/../../../precious", "arrays/link/precious", "{}", "long"]
)
def test_only_files_of_a_checkpoint_are_copied(folder, tmp_path, name):
    """Whatever its manifest names; it is sealed, and the digest is that of a file there."""
    (tmp_path / "precious").write_text("forged")
    name = {"{}": str(tmp_path / "precious"), "long": "a" * 5000}.get(name, name)
    if "link" in name:
        (folder / NAME / "arrays" / "link").symlink_to(tmp_path)
    mark = checkpoint.digest(tmp_path / "precious")
    seal(folder / NAME, lambda body: body | {"files": body["files"] | {name: mark}})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        checkpoint.copy_checkpoint(folder, tmp_path / "new" / "deeper", NAME)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    falls_back(folder, "is not as it was written" if "link" not in name else "no regular file")


def test_what_a_manifest_does_not_name_is_not_copied(folder, tmp_path):
    (folder / NAME / ".DS_Store").write_text("of a file browser")
    checkpoint.copy_checkpoint(folder, tmp_path / "new", NAME)
    copied, original = (
        {path.relative_to(top).as_posix() for path in (top / NAME).rglob("*")}
        for top in (tmp_path / "new", folder)
    )
    assert copied == original - {f"{NAME}/.DS_Store"}
    assert read_checkpoint(tmp_path / "new", NAME, STATE).metadata["step"] == 2


def device(path):
    path.symlink_to("/dev/zero")


def sparse(path):
    path.touch()
    os.truncate(path, 2**36)


def bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        # A socket's path has at most 108 letters.
        descriptor = os.open(path.parent, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        os.close(descriptor)


@pytest.mark.parametrize("make", [os.mkfifo, device, sparse, bind, os.mkdir])
@pytest.mark.parametrize(
    "name", ["manifest.json", "arrays/_METADATA", "arrays/manifest.ocdbt", "arrays/_sharding"]
)
def test_what_is_no_file_of_a_checkpoint_is_not_opened(folder, make, name):
    path = folder / NAME / name
    path.unlink(missing_ok=True)
    make(path)
    if make is not os.mkdir or not name.endswith("_sharding"):
        falls_back(folder, name)


def test_folders_that_lie_too_deep_are_damage(folder):
    """More than Python may recurse."""
    (folder / NAME / "/".join("a" * 30)).mkdir(parents=True)
    falls_back(folder, "lies too deep")


WRONG = (None, [], {}, "a", -1, 1.5, True, float("nan"), float("inf"), 10**30, 10**400, ["a"])


def test_a_manifest_of_other_types_is_damaged(folder):
    """Any value, wherever one is."""
    manifest = json.loads((folder / NAME / "manifest.json").read_text())
    [file, *_] = manifest["body"]["files"]
    manifest["body"]["files"] = {file: manifest["body"]["files"][file]}
    tried = 0
    for place in paths_of(manifest["body"]):
        for value in WRONG:
            body = changed(manifest["body"], place, value)
            text = json.dumps({"body": body, "seal": checkpoint._seal(body)})
            (folder / NAME / "manifest.json").write_text(text)
            try:
                metadata = checkpoint._read_intact(folder / NAME)["metadata"]
            except DamagedCheckpointError as error:
                assert str(error).isprintable()
                tried += 1
            else:
                assert math.isfinite(sum(metadata.get("totals_s", {}).values()))
            checkpoint.best_checkpoint(folder)
    assert tried > 300


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{" * 9**5, "[" * 9**5, '{"body": 1' + "0" * 5000 + "}", "\xff\0"]
)
def test_a_manifest_that_is_none_is_damaged(folder, text):
    (folder / NAME / "manifest.json").write_bytes(text.encode("latin-1"))
    falls_back(folder, "manifest.json")


def forged(path, **fields):
    """Change Zarr's metadata of an array, as anybody can."""
    spec = {"driver": "ocdbt", "base": f"file://{path / 'arrays'}/"}
    store = tensorstore.KvStore.open(spec).result()
    described = json.loads(store.read(b"a/.zarray").result().value)
    store.write(b"a/.zarray", json.dumps(described | fields).encode()).result()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"chunks": [2**50]}, "chunks of shape"),
        ({"chunks": [2**50], "shape": [2**50]}, "of free memory"),
        ({"dtype": "|O"}, "cannot tell their types and shapes"),
        ({"dtype": "<f2"}, "cannot be read"),
        ({"filters": 3}, "cannot be read"),
    ],
)
def test_arrays_that_claim_other_than_they_hold_are_not_read(
    folder, monkeypatch, capfd, fields, told
):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    checkpoint.create_orbax()  # from here on late reports of another test's read are hidden, too
    capfd.readouterr()
    forged(folder / NAME, **fields)
    seal(folder / NAME)
    refusal(read_checkpoint, folder, NAME, None, told=told)
    if fields.keys() & {"shape"} or fields.get("dtype") == "<f2":
        told = "another model's state"
    is_kept(folder, told)
    assert not any(capfd.readouterr())


class Left:
    """What raises where nothing can catch it."""

    def __init__(self, text):
        self.text = text

    def __del__(self):
        raise RuntimeError(self.text)


def test_arrays_that_are_read_too_late_are_not_printed(monkeypatch, capfd):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    checkpoint.create_orbax()
    for text in ("Event loop is closed", "something else"):
        Left(text)
    printed = capfd.readouterr().err
    assert printed.count("Left") == 1 and "something else" in printed


@pytest.mark.parametrize(
    "content",
    [None, "", "{}", "[" * 9**5, '{"tree_metadata": 3}', "null", "a" * (DOCUMENT_BYTES + 1)],
)
def test_arrays_without_orbax_s_metadata_are_damaged(folder, content):
    path = folder / NAME / "arrays" / "_METADATA"
    path.unlink() if content is None else path.write_text(content)
    seal(folder / NAME)
    if len(content or "") > DOCUMENT_BYTES:
        falls_back(folder, "_METADATA")
    else:
        is_kept(folder, "its arrays cannot be read")


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), ImportError("no orbax"), ValueError()]
)
def test_an_intact_checkpoint_that_cannot_be_read_now_is_kept(folder, monkeypatch, error):
    """Another version of Orbax and a limit of the system must not begin the run again."""
    monkeypatch.setattr(checkpoint, "create_orbax", mock.Mock(side_effect=error))
    is_kept(folder, "its files are as they were written, but its arrays cannot be read")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m | {"records": {}}, "are not as they were at the checkpoint"),
        (lambda m: m | {"step": 9}, "are not those of a checkpoint of this run"),
        (lambda m: m | {"epochs_done": 10**9, "step": 10**30}, "not those of a checkpoint"),
        (lambda m: changed(m, ("sums", "total"), {}), "not those of a checkpoint"),
        (lambda m: changed(m, ("sums", "epoch"), 7), "not those of a checkpoint"),
        (lambda m: {k: v for k, v in m.items() if k != "totals_s"}, "its metadata lack totals_s"),
    ],
)
def test_metadata_of_no_such_run_are_refused(tmp_path, monkeypatch, stopped, change, told):
    run = shutil.copytree(stopped, tmp_path / "run")
    [path] = (run / CHECKPOINTS).iterdir()
    seal(path, lambda body: body | {"metadata": change(body["metadata"])})
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    resume = functools.partial(trained, tmp_path / "new", resume=str(run), num_devices=1)
    refusal(resume, told=told)
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before
    assert not (tmp_path / "new").exists()
