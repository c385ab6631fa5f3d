"""The scripts in benchmarks/ run; what they print is a ratio of one interleaved run."""

import os
import re
import subprocess
import sys

from conftest import OPTIMIZED, ROOT


def test_the_training_loop_keeps_up_with_the_bare_step():
    """Far below what is measured (BUILD_NOTES.md): this only catches a loop that blocks."""
    script = ROOT / "benchmarks" / "loop_overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--experiment=quickstart", "--rounds=15", "--min_ratio=0.8"],
        capture_output=True,
        text=True,
        env=os.environ | OPTIMIZED,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ratio = re.search(r"loop / bare +(\d\.\d+)", done.stdout)
    assert ratio and 0.5 < float(ratio[1]) < 1.5
