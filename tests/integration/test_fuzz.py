"""Mutated data sets and records: a reading or one line, never a traceback, crash or hang."""

import json
import sys

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import run_program

# As many cases each as take some seconds; the same on all machines.
CASES = {"sets": 200, "records": 200, "commands": 50}
READERS = {
    "sets": {
        *("npz", "small.npz", "batches"),
        *("tfds dataset_info.json", "tfds features.json", "tfds small-train"),
    },
    "records": {"run.json", "metrics.jsonl", "results.jsonl", "prices", "manifest.json"},
    "commands": {"run's run.json", "run's metrics.jsonl", "run's telemetry.csv"},
}


@pytest.mark.parametrize("group", READERS)
def test_readers_withstand_mutated_files(tmp_path, group):
    done = run_program(
        [
            *(sys.executable, "-m", "tests.integration.fuzz_readers"),
            *(str(tmp_path), "1", str(CASES[group]), group),
        ],
        cwd=ROOT,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
    assert done.returncode == 0, (told[-1:], done.stderr[-3000:])
    found = {result["reader"]: result for result in told}
    assert found.keys() == READERS[group]
    for result in found.values():
        assert not result["problem"], result["problem"]
        assert result["cases"] == CASES[group], result
    # A damaged row of telemetry is left out.
    refusing = {name for name, result in found.items() if result["refused"]}
    assert refusing == found.keys() - {"run's telemetry.csv"}
