"""Whatever a user names is read up to a limit; a pipe or a file with holes ends in one line."""

import errno
import functools
import io
import os
import tarfile
import tracemalloc

import pytest

from jaxbench.analysis.pricing import read_prices
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.checkpoints import checkpoint
from jaxbench.checkpoints.resume import read_epochs
from jaxbench.errors import BadInput
from jaxbench.files import open_own, read_text, unpack
from jaxbench.hardware.telemetry.summary import read_series
from jaxbench.launchers.launcher import write_json
from jaxbench.modes.predictions import load_calibration
from jaxbench.predict import calibration
from jaxbench.predict.calibration import load, save
from jaxbench.predict.rates import read_rates
from jaxbench.records import reader
from jaxbench.records.reader import load_run, read_records, read_results
from jaxbench.records.run_dir import RunDir
from jaxbench.reports.sections.telemetry import _read_readings
from jaxbench.reports.write import _write_text
from jaxbench.sweeps.sweep_dir import SweepDir
from tests.cards import made
from tests.conftest import refusal, run_document

# {name of a file: what reads it}
READERS = {
    "run.json": lambda path: load_run(str(path.parent)),
    "metrics.jsonl": lambda path: load_run(str(path.parent)),
    "results.jsonl": read_results,
    CARD: read_card,
    "prices.csv": lambda path: read_prices(str(path)),
    "calibration.json": lambda path: load_calibration(str(path)),
    "rates.csv": read_rates,
}
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "large", "deep"])
def test_every_reader_has_a_limit(tmp_path, name, kind):
    (tmp_path / "run.json").write_text('{"schema_version": 2, "status": "done"}')
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.write_text('{"a":' * 99_999 + "\n{}\n")
    if kind == "large":
        os.truncate(path, 2**36)  # a hole: more than this machine's memory
    refusal(READERS[name], path, told=str(path.parent))


# {name of a file: what replaces it, in its folder}
WRITERS = {
    CARD: lambda folder: made.write(folder),
    "run.json": lambda folder: RunDir(folder, run_document().to_json()).update(),
    "run1.job.json": lambda folder: write_json(folder / "run1.job.json", {"job": 1}),
    "sweep.csv": lambda folder: SweepDir(folder).write_table("sweep.csv", [{"seed": 1}]),
    "report.html": lambda folder: _write_text(folder / "report.html", "<html>"),
    "calibration.json": lambda folder: save(load(), folder / "calibration.json"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch, name):
    """If the process is killed, on a full disk, and beside what either left, or somebody laid."""
    path, partial = tmp_path / name, tmp_path / f"{name}.partial"

    def stop(error, *_):
        assert partial.stat().st_size and not partial.is_symlink()
        raise error

    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
        path.write_text("old" if name != "run.json" else "{}")  # run.json's old blocks are used
        with monkeypatch.context() as patch, pytest.raises((type(error), BadInput)):
            patch.setattr(os, "fsync", functools.partial(stop, error))
            WRITERS[name](tmp_path)
        assert path.read_text() in ("old", "{}")
        assert partial.exists() is isinstance(error, KeyboardInterrupt)
    (tmp_path / "precious").write_text("kept")
    partial.symlink_to("precious")
    WRITERS[name](tmp_path)
    assert (tmp_path / "precious").read_text() == "kept" and len(path.read_text()) > 3
    assert not partial.is_symlink() and not partial.exists() and not path.is_symlink()


@pytest.mark.parametrize("name", ["report.html", "calibration.json"])
def test_a_link_that_a_user_names_stays(tmp_path, name):
    (tmp_path / name).symlink_to("own")
    WRITERS[name](tmp_path)
    assert (tmp_path / name).readlink().name == "own" and (tmp_path / "own").stat().st_size > 3


def test_no_pipe_or_device_is_replaced(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(calibration, "calibrate", lambda *_: load())
    os.mkfifo(tmp_path / "pipe")
    refused(".", "--out=pipe", "--format=md", module="jaxbench.report", told="no regular file")
    refused("--out=pipe", module="jaxbench.calibrate", told="--out=pipe: must be a file")
    assert (tmp_path / "pipe").is_fifo()


def end_of(path):
    """What the readers of a run's records and readings take of a file without a line's end."""
    if path.name == "metrics.jsonl":
        refusal(load_run, str(path.parent), told="metrics.jsonl has a line of 16,777,216 charact")
        marks = {"records": {path.name: checkpoint.digest(path)}}
        refusal(read_epochs, path.parent, marks, told="has a line of 16,777,216 characters")
    else:
        readings, skipped = _read_readings(path, None)
        assert len(readings["gpu0"]["power_w"][0]) == len(read_series(path)["gpu0"]) == skipped == 1


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("metrics.jsonl", ""),
        ("metrics.jsonl", '{"kind": "step"}\n{'),
        (
            "telemetry.csv",
            "time,elapsed_s,device,kind,power_w\n2026-03-04T05:06:07Z,1,gpu0,gpu,300\n2026",
        ),
    ],
)
def test_a_line_without_an_end_is_not_read_whole(tmp_path, name, begins):
    (tmp_path / "run.json").write_text('{"schema_version": 2, "status": "done"}')
    (tmp_path / name).write_text(begins)
    os.truncate(tmp_path / name, 2**26)
    tracemalloc.start()
    end_of(tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_records_without_steps_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_MOST_KEPT", 99)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step"}\n' * 9 + '{"kind": "epoch"}\n' * 5)
    assert len([*read_records(tmp_path)]) == 14
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "epoch"}\n')
    refusal(list, read_records(tmp_path), told="more than 99 bytes without its steps")


def test_a_run_writes_through_no_link_and_waits_for_no_pipe(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "pipe")
    for mode in ("r+", "w", "a"):
        for name, message in (("pipe", "."), ("link", "is a link")):
            with pytest.raises(OSError, match=message):
                open_own(tmp_path / name, mode)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_as_large_as_its_limit_is_read(tmp_path):
    (tmp_path / "a").write_text("four")
    assert read_text(tmp_path / "a", 4) == "four"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_text(tmp_path / "a", 3)


def packed(*members):
    """A tar file of (name, type, content or target)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "" if kind == tarfile.REGTYPE else content
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content.encode()))
    file.seek(0)
    return file


def test_files_and_folders_are_unpacked_and_nothing_else(tmp_path):
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    members = [
        ("run/metrics.jsonl", tarfile.REGTYPE, "{}"),
        ("run/empty", tarfile.DIRTYPE, ""),
        ("out", tarfile.SYMTYPE, ".."),
        ("out/new", tarfile.REGTYPE, "x"),
        ("hard", tarfile.LNKTYPE, "../precious"),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("device", tarfile.CHRTYPE, ""),
    ]
    unpack(packed(*members), folder, 10**6)
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert paths == {"run", "run/metrics.jsonl", "run/empty", "out", "out/new"}
    assert (folder / "run/metrics.jsonl").read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "precious"}


def test_what_leads_out_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(packed(("../evil", tarfile.REGTYPE, "x")), folder, 10**6)
    unpack(packed(("/evil", tarfile.REGTYPE, "x")), folder, 10**6)
    with pytest.raises(tarfile.TarError, match="more than 3 bytes"):
        unpack(packed(("large", tarfile.REGTYPE, "four")), folder, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("wrong", [{"mtime": "inf"}, {"mtime": "nan"}, {"path": "a\0b"}])
def test_what_no_file_has_is_refused(tmp_path, wrong):
    file, info = io.BytesIO(), tarfile.TarInfo("a")
    info.pax_headers = wrong
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(info)
    file.seek(0)
    with pytest.raises(tarfile.TarError):
        unpack(file, tmp_path, 10**6)
