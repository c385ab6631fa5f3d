"""Whatever a user names is read up to a limit; a pipe or a file with holes ends in one line."""

import json
import os

import pytest

from jaxbench.analysis.pricing import read_prices
from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.thresholds import load_thresholds
from jaxbench.errors import BadInput
from jaxbench.files import read_text
from jaxbench.hardware.targets.description import read_description
from jaxbench.launchers.hosts import read_hosts
from jaxbench.offering.folder import OFFERS, read_offers
from jaxbench.records import reader
from jaxbench.records.reader import load_run, read_results

# {name of a file: what reads it}
READERS = {
    "run.json": lambda path: load_run(str(path.parent)),
    "metrics.jsonl": lambda path: load_run(str(path.parent)),
    "results.jsonl": read_results,
    CARD: read_card,
    OFFERS: lambda path: read_offers(path.parent),
    "prices.csv": lambda path: read_prices(str(path)),
    "hosts.txt": lambda path: read_hosts(str(path)),
    "limits.csv": lambda path: load_thresholds(str(path)),
    "gpu.txtpb": lambda path: read_description(str(path)),
}
pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_every_reader_has_a_limit(tmp_path, name, kind):
    (tmp_path / "run.json").write_text('{"status": "done"}')
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.touch()
    if kind == "large":
        os.truncate(path, 2**36)  # a hole: more than this machine's memory
    with pytest.raises(BadInput) as error:
        READERS[name](path)
    assert "\n" not in str(error.value) and str(path.parent) in str(error.value)


def test_a_file_as_large_as_its_limit_is_read(tmp_path):
    (tmp_path / "a").write_text("four")
    assert read_text(tmp_path / "a", 4) == "four"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_text(tmp_path / "a", 3)


def test_steps_do_not_count_against_a_runs_records(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_MOST_RECORDS", 1000)
    (tmp_path / "run.json").write_text('{"status": "done"}')
    step, epoch = ({"kind": kind, "step": 1} for kind in ("step", "epoch"))
    lines = [json.dumps(record) + "\n" for record in [step] * 1000 + [epoch]]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert len(load_run(str(tmp_path)).records) == 1
    assert len(load_run(str(tmp_path), steps=True).records) == 1001
    (tmp_path / "metrics.jsonl").write_text("".join(lines[-1:] * 1000))
    with pytest.raises(BadInput, match="more than 1,000 bytes"):
        load_run(str(tmp_path))
