"""card.json: what is written is read, and nothing else is."""

import math

import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import measured
from jaxbench.cards.card_file import CARD, is_card, read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.figures import share_of_measured
from tests.cards import made
from tests.conftest import refusal


def test_a_card_is_read_as_it_was_written(tmp_path):
    card = made.judged()
    path = made.write(tmp_path, card)
    found = read_card(path)
    assert found == card == read_card(tmp_path)
    assert not (tmp_path / f"{CARD}.partial").exists()


def test_no_path_of_the_machine_is_written(tmp_path):
    card = made.card(made.skipped("soak", reason=f"OSError: {tmp_path}/a: no space"))
    card.environment["variables"] = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}"}
    text = made.write(tmp_path, card).read_text()
    assert str(tmp_path) not in text and "OSError: ...: no space" in text
    assert "--xla_dump_to=..." in text and check_card(tmp_path) == ["it has no verdict"]


def test_devices_of_several_kinds_have_their_own_peaks():
    card = made.card(kind="NVIDIA H100 80GB HBM3, NVIDIA H200")
    for device in card.environment["devices"]:
        device["kind"] = "NVIDIA H200" if device["id"] % 2 else "NVIDIA H100 80GB HBM3"
    peaks = [card.peak_of(one) for one in card.named("triad_gb_per_s")]
    assert peaks == [3352.0, 4800.0] * 2


def _figure(content, name):
    figures = [one for part in content["parts"] for one in part.get("figures", ())]
    return next(one for one in figures if one["name"] == name)


# What another version of jaxbench may write, and what is said of it.
REFUSED = {
    "schema": (lambda c: c.update(schema_version=1), "is no card that this jaxbench reads: "),
    "kind": (lambda c: c.update(kind="run"), "is no card"),
    "text": (lambda c: c.update(minutes_asked="10"), "got `str` - at `$.minutes_asked`"),
    "unknown field": (lambda c: c.update(presets="a"), "unknown field `presets`"),
    "missing": (lambda c: c.pop("load"), "missing required field `load`"),
    "figure": (lambda c: _figure(c, "mfu").update(name="mfuu"), "'mfuu' - at `$.parts[3].figures"),
    "labels": (lambda c: _figure(c, "mfu").update(labels={}), "labels of mfu must be network"),
    "outside": (lambda c: _figure(c, "mfu").update(run="runs/../../a"), "- at `$.parts[3].fig"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=[*REFUSED])
def test_card_that_is_none_is_refused(change, message, tmp_path):
    path = made.alter(made.write(tmp_path), change)
    line = refusal(read_card, path, told=message)
    assert str(path) in line and len(line) < len(str(path)) + 250


def test_a_card_without_its_digest_is_refused(tmp_path):
    path = made.alter(made.write(tmp_path), lambda c: c.pop("digest"), digest=False)
    refusal(read_card, path, told="altered or damaged")


@pytest.mark.parametrize(
    "written, message",
    [
        ("NaN", "not JSON compliant"),
        ("7.0", "altered or damaged"),
        ("9" * 5000, "4300 digits"),
        ("[" * 100_000, "recursion"),
        ("", "Expecting value"),
    ],
)
def test_card_of_odd_json_is_refused(written, message, tmp_path):
    path = made.write(tmp_path)
    text = path.read_text().replace('"minutes_taken": 8.0', f'"minutes_taken": {written}')
    path.write_text(text)
    refusal(read_card, path, told=message)


def test_what_is_no_card_file_is_refused(tmp_path):
    path = made.write(tmp_path)
    assert is_card(str(path)) and is_card(str(tmp_path))
    assert not is_card(str(tmp_path / "runs")) and not is_card(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_bytes(b"\xff{}")
    for name, told in {"none.json": "No such file", "a.json": "UTF-8"}.items():
        refusal(read_card, tmp_path / name, told=told)


@pytest.mark.parametrize("wrong", [(math.nan,), (1.0, 0.0, math.inf), (1.0, 0.0)])
def test_a_figure_that_is_no_number_cannot_be_made(wrong):
    with pytest.raises(ValueError, match="rounds (is no finite number|has one end)"):
        measured("rounds", Estimate(*wrong))


RATES = [measured("matmul_fp32_tflops", 50.0, device=0)]
RATES += [
    measured("matmul_bf16_tflops", rate, device=at) for at, rate in enumerate((600, 700, 800))
]


@pytest.mark.parametrize(
    ("arithmetic", "precision", "flops_per_s", "backend", "share"),
    [
        ("bf16", "bf16", 350e12, "gpu", 0.5),  # of the median, each device by itself
        ("bf16", "bf16", 35e12, "cpu", 0.4),  # simulated devices share the processor
        ("fp16", "fp16", 350e12, "gpu", None),
        ("bf16", "bf16", None, "gpu", None),
        ("bf16", "fp32", 350e12, "tpu", 0.5),
        # Without a published peak nothing says whether fp32 is multiplied in TF32.
        (None, "fp32", 50e12, "gpu", None),
        (None, "fp32", 5e12, "cpu", 0.8),
        (None, "bf16", 350e12, "gpu", 0.5),
        ("bf16", "bf16", 701e12, "gpu", None),  # more than was measured is no fraction of it
    ],
)
def test_a_share_is_that_of_the_same_arithmetic(arithmetic, precision, flops_per_s, backend, share):
    found = share_of_measured(RATES, arithmetic, precision, flops_per_s, 8, backend)
    assert found == (share and pytest.approx(share))
