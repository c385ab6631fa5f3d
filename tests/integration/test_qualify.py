"""The command qualify as people run it."""

import json
import sys

from tests.cards import made
from tests.conftest import UNOPTIMIZED
from tests.integration.conftest import run_program


def run(folder, *args):
    flags = UNOPTIMIZED["XLA_FLAGS"].replace("device_count=8", "device_count=2")
    env = {"XLA_FLAGS": flags, "COLUMNS": "80"}
    return run_program([sys.executable, "-m", "jaxbench", *args], folder, env, timeout_s=400)


def test_a_card_is_measured_checked_altered_and_compared(tmp_path):
    done = run(tmp_path, "qualify", "--minutes=1", "--out=card")
    # Where two of the tests' processes share the cores, whatever is slow is inconclusive.
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    path = tmp_path / "card" / "card.json"
    card = json.loads(path.read_text())
    parts = {part["name"]: part for part in card["parts"]}
    assert [parts[name]["status"] for name in parts] == ["measured"] * 6
    assert card["environment"]["num_devices"] == 2 and card["preset"] == "cpu-1"
    names = {figure["name"] for part in card["parts"] for figure in part.get("figures", ())}
    assert {"matmul_fp32_tflops", "triad_gb_per_s", "bus_gb_per_s", "pair_gb_per_s"} <= names
    assert {"images_per_s", "compile_cold_s", "drift_percent", "rounds", "mismatches"} <= names
    assert f"verdict: {card['verdict']['outcome'].replace('_', ' ').upper()}" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout

    assert run(tmp_path, "qualify", "check", "card").returncode == 0
    other = tmp_path / "other.json"
    other.write_text(path.read_text())

    def doubled(content):
        for figure in content["parts"][1]["figures"]:
            for name in figure.keys() & {"value", "value_low", "value_high"}:
                figure[name] *= 2

    made.alter(other, doubled, digest=False)
    refused = run(tmp_path, "qualify", "check", "other.json")
    assert refused.returncode == 1 and "digest" in refused.stdout
    made.alter(other, lambda content: None)  # the digest follows
    compared = run(tmp_path, "compare", "card", "other.json")
    assert compared.returncode == 0 and " 2.000" in compared.stdout
    report = run(tmp_path, "report", "card", "--out=report.html")
    assert report.returncode == 0 and "1 card(s)" in report.stdout
