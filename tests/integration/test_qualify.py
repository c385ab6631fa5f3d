"""The command qualify as people run it, and power limits that outlive nobody."""

import json
import os
import signal
import subprocess
import sys

import pytest

from jaxbench.clock import Stopwatch, pause
from tests.cards import made
from tests.conftest import ROOT, UNOPTIMIZED
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
    assert [parts[name]["status"] for name in parts] == ["measured"] * 6 + ["skipped"] * 2
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
            for name in ("value", "value_low", "value_high"):
                figure[name] *= 2

    made.alter(other, doubled, digest=False)
    refused = run(tmp_path, "qualify", "check", "other.json")
    assert refused.returncode == 1 and "digest" in refused.stdout
    made.alter(other, lambda content: None)  # the digest follows
    compared = run(tmp_path, "compare", "card", "other.json")
    assert compared.returncode == 0 and " 2.000" in compared.stdout
    report = run(tmp_path, "report", "card", "--out=report.html")
    assert report.returncode == 0 and "1 card(s)" in report.stdout


# Installs the stand-in for NVML at Python's start, in the guardian, too; the limit is a file.
SITE = """
import pathlib, types
import pynvml
from tests import fake_nvml

class FileNvml(fake_nvml.Nvml):
    path = pathlib.Path(__file__).with_name("limit_mw")

    def _nvmlDeviceGetPowerManagementLimit(self, handle, out):
        out._obj.value = int(self.path.read_text())
        return pynvml.NVML_SUCCESS

    def _nvmlDeviceSetPowerManagementLimit(self, handle, limit):
        self.path.write_text(str(limit.value))
        return pynvml.NVML_SUCCESS

patch = types.SimpleNamespace(setattr=setattr)
fake_nvml.install(patch, FileNvml([fake_nvml.Board()]), fake_nvml.Cuda([0x0F]))
"""
MEASURE = """
import sys
from jaxbench.hardware.telemetry.nvml import read_power_limits, set_power_limits
from jaxbench.qualification.power_curve import restored_at_end

limits = read_power_limits({"gpu0": 0})
with restored_at_end(limits):
    set_power_limits({limits[0].address: 200_000})
    print("measuring", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "terminated", "ended"])
def test_the_old_power_limit_comes_back_however_the_measuring_ends(tmp_path, how):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    limit = tmp_path / "limit_mw"
    limit.write_text("350000")
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"measuring\n"
    assert limit.read_text() == "200000"
    number = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "ended": 0}[how]
    if number:
        process.send_signal(number)
    else:
        process.stdin.close()
    assert process.wait(30) == -number
    process.stdin.close()
    watch = Stopwatch()
    while limit.read_text() != "350000":
        assert watch.elapsed_s() < 30
        pause(0.05)
    process.stdout.close()
