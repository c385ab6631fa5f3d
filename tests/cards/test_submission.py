"""What is published of a card: no name of a host or a path."""

import pytest

from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.submission import submit
from jaxbench.errors import BadInput
from tests.cards import made


def test_a_submission_names_no_host_and_no_path(tmp_path):
    card = made.judged(made.skipped("storage", reason=f"no space in {tmp_path}, says lab"))
    out = tmp_path / "results" / "lab-4xh100"
    line = submit(str(made.write(tmp_path / "a", card)), str(out))
    assert line.startswith(f"{out}/card.json: ") and line.endswith(" the records of 0 run(s)")
    text = (out / CARD).read_text()
    assert str(tmp_path) not in text and '"hostname": "host"' in text and "says host" in text
    assert check_card(out) == []
    with pytest.raises(BadInput, match="nothing is overwritten"):
        submit(str(tmp_path / "a"), str(out))


@pytest.mark.parametrize("host", ["gpu", "runs", "1", "", "w\u00f6rk", "Lab.example.org"])
def test_any_name_of_a_host_is_hidden(host, tmp_path):
    """Whatever else has that name; so are the hosts that variables list."""
    text = f"at {host} and {host.lower()}.a.b: no"

    def name_hosts(content):
        content["environment"] |= {"hostname": host, "variables": {"TPU_WORKER_HOSTNAMES": "a,b"}}
        content["parts"][0]["checks"][0]["detail"] = text

    path = made.alter(made.write(tmp_path / "a"), name_hosts)
    submit(str(path), str(tmp_path / "out"))
    card = read_card(tmp_path / "out")
    assert card.environment["hostname"] == "host" and card.environment["backend"] == "gpu"
    assert card.environment["variables"] == {"TPU_WORKER_HOSTNAMES": "host"}
    assert card.parts[0].checks[0].detail == ("at host and host: no" if host else text)


def test_what_check_refuses_is_not_submitted(tmp_path):
    path = made.alter(made.write(tmp_path / "a"), lambda c: c.update(created_at="yesterday"))
    with pytest.raises(BadInput, match="is refused by `jaxbench qualify check`: created_at"):
        submit(str(path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
