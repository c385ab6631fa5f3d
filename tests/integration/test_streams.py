"""Standard output that is closed, full, or read by a program that has ended."""

import os
import sys

import pytest

from tests.conftest import MICRO, run_json
from tests.integration.conftest import run_program

DESCRIBE = f"-m jaxbench.main --experiment={MICRO} --mode=describe --json"


def shell(tmp_path, line):
    return run_program(["bash", "-c", line.replace("PYTHON", sys.executable)], tmp_path)


@pytest.mark.parametrize(
    ("line", "code"), [(DESCRIBE, 1), (f"-u {DESCRIBE}", 1), ("-m jaxbench.main --helpfull", 0)]
)
def test_a_reader_that_ends_ends_the_listing_in_silence(tmp_path, line, code):
    # The reader has ended long before the first line.
    done = shell(tmp_path, f"{{ PYTHON {line}; echo code $? >&2; }} | true")
    assert done.stderr == f"code {code}\n"


def test_the_first_line_of_a_listing_is_enough(tmp_path):
    """-u: each line is written at once, so that the reader is gone before the last."""
    done = shell(tmp_path, "PYTHON -u -m jaxbench main --experiment=list | head -1")
    assert done.stdout and done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_below_a_listing_is_told(tmp_path):
    done = shell(tmp_path, f"PYTHON {DESCRIBE} >/dev/full")
    assert (done.returncode, done.stderr) == (1, "jaxbench: the disk: No space left on device\n")


@pytest.mark.parametrize("to", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "| head -1"])
def test_a_run_needs_no_console(tmp_path, to):
    line = f"PYTHON -m jaxbench.main --experiment={MICRO} --experiment.epochs=1 --workdir=run"
    done = shell(tmp_path, f"set -o pipefail; {line} {to}")
    assert (done.returncode, done.stderr) == (0, "")
    assert run_json(tmp_path / "run")["status"] == "done"
