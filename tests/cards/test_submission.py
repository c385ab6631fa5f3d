"""What is published of a card: its records, and no name of a host or a path."""

import shutil

import pytest

from jaxbench.cards import submission
from jaxbench.cards.card_file import CARD, digest_file, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.submission import MOST_BYTES, submit
from jaxbench.errors import BadInput
from tests.cards import made

RUN, SOAK = "runs/cnn10-tiny-fp32-16", "runs/soak"


def test_the_recorded_card_is_accepted(recorded, tmp_path):
    assert check_card(recorded) == []
    # It may travel without its files.
    shutil.copy(recorded / CARD, tmp_path / "alone.json")
    assert check_card(tmp_path / "alone.json") == []


def test_a_submission_names_no_host_and_no_path(tmp_path):
    card = made.judged(made.skipped("storage", reason=f"no space in {tmp_path}, says lab"))
    out = tmp_path / "results" / "lab-4xh100"
    line = submit(str(made.write(tmp_path / "a", card)), str(out))
    assert line.startswith(f"{out}/card.json: 1 files, ") and line.endswith(" kB")
    text = (out / CARD).read_text()
    assert str(tmp_path) not in text and '"hostname": "host"' in text and "says host" in text
    assert check_card(out) == []
    with pytest.raises(BadInput, match="nothing is overwritten"):
        submit(str(tmp_path / "a"), str(out))


@pytest.mark.parametrize("host", ["cpu", "runs", "1", "", "w\u00f6rk", "Lab.example.org"])
def test_any_name_of_a_host_is_hidden(host, recorded, tmp_path):
    """Whatever else has that name; so are the hosts that variables list."""
    text = f"at {host} and {host.lower()}.a.b: no"

    def name_hosts(content):
        content["environment"] |= {"hostname": host, "variables": {"TPU_WORKER_HOSTNAMES": "a,b"}}
        content["parts"][0]["checks"][0]["detail"] = text

    made.alter(recorded / CARD, name_hosts)
    submit(str(recorded), str(tmp_path / "out"))
    card = read_card(tmp_path / "out")
    assert card.environment["hostname"] == "host" and card.environment["backend"] == "cpu"
    assert card.environment["variables"] == {"TPU_WORKER_HOSTNAMES": "host"}
    assert card.parts[0].checks[0].detail == ("at host and host: no" if host else text)


def test_damaged_records_are_not_submitted(recorded, tmp_path):
    """The last line of a killed run may be torn: a check reads what is before it."""
    path = recorded / SOAK / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind')
    digest = digest_file(path)
    made.alter(recorded / CARD, lambda c: c["files"].update({f"{SOAK}/metrics.jsonl": digest}))
    assert check_card(recorded) == []
    with pytest.raises(BadInput, match="damaged records: "):
        submit(str(recorded), str(tmp_path / "out"))


def test_a_submission_has_the_records_and_no_more(recorded, tmp_path):
    submit(str(recorded), str(tmp_path / "out"))
    assert read_card(tmp_path / "out").files == read_card(recorded).files
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert size < MOST_BYTES


def test_a_submission_that_is_too_large_says_so(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "MOST_BYTES", 1000)
    line = submit(str(recorded), str(tmp_path / "out"))
    assert line.endswith("more than the 200 kB of results/")


def test_what_check_refuses_is_not_submitted(recorded, tmp_path):
    made.alter(recorded / CARD, lambda c: c.update(created_at="yesterday"))
    with pytest.raises(BadInput, match="is refused by `jaxbench qualify check`: created_at"):
        submit(str(recorded), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
