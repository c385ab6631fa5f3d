"""The step at the size of a TPU pod slice: compiled for many devices, run on none.

JAX's simulated devices are as many as one asks for, and the whole step is lowered and compiled for
all of them as it is for eight. Their compiler is the CPU's: what a TPU's would make of the step's
collectives is not seen here, nor does anything run.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT, UNOPTIMIZED

SCRIPT = pathlib.Path(__file__).with_name("set_up_at_scale.py")


@pytest.mark.parametrize("parallelism", ["pmap", pytest.param("shard_map", marks=pytest.mark.slow)])
def test_a_step_for_1024_devices_is_the_one_for_256(parallelism):
    xla_flags = UNOPTIMIZED["XLA_FLAGS"] + " --xla_force_host_platform_device_count=1024"
    done = subprocess.run(
        [
            sys.executable,
            str(pathlib.Path(__file__).with_name("set_up_at_scale.py")),
            parallelism,
            "256",
            "1024",
        ],
        env=os.environ | {"XLA_FLAGS": xla_flags, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout).values()
    # One all-reduce for gradients, running averages and metrics, whatever the number of devices.
    assert many["collectives"] == few["collectives"]
    assert many["collectives"]["all-reduce"]["count"] == 1
    assert many["collectives"]["all-reduce"]["bytes"] >= 4 * many["parameters"]
    # Each device holds its own share and one copy of the state.
    assert many["memory"] == few["memory"]
    assert many["memory"]["total_bytes"] > 4 * 3 * many["parameters"]
    # Making the mesh, the order of an epoch and the lowered step: four times the devices, at most
    # four times the time; with their square it would be sixteen.
    assert min(many["setup_s"]) < 4 * min(few["setup_s"])
