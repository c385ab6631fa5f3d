"""A mutation is applied to a copy of the checkout, and the tests there notice."""

import json
import subprocess
import sys

from tests.conftest import ROOT


def test_a_mistake_in_the_order_is_caught_and_the_checkout_stays_as_it_is(tmp_path):
    before = (ROOT / "jaxbench" / "data" / "sampler.py").read_bytes()
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "tests" / "mutations.py")),
            *(
                "--only=every_seed_in_one_order",
                "--asked_only",
                f"--json={tmp_path / 'found.json'}",
            ),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "asked files: 1 of 1 caught"
    [found] = json.loads((tmp_path / "found.json").read_text())
    assert found["asked"] and found["test"].startswith("tests/data/test_sampler.py::")
    assert (ROOT / "jaxbench" / "data" / "sampler.py").read_bytes() == before


def test_what_there_is_none_of_is_told():
    script = [sys.executable, str(ROOT / "tests" / "mutations.py")]
    for argument, told in (("--only=every_seed", "did you mean"), ("--checkout=/", "not there")):
        done = subprocess.run([*script, argument], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr and len(done.stderr.splitlines()) == 1
