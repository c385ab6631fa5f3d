"""The step at the size of a TPU pod slice: compiled for many devices, run on none.

JAX's simulated devices are as many as one asks for, and the whole step is lowered and compiled for
all of them as it is for eight. Their compiler is the CPU's: what a TPU's would make of the step's
collectives is not seen here, nor does anything run.
"""

import json
import sys

from tests.conftest import UNOPTIMIZED
from tests.integration.conftest import run_program

# COUNT ...: for each number of devices what the step comes to, and the processor's
# seconds for the mesh, an epoch's order and lowering, twice.
_SET_UP = """
import dataclasses, json, sys, time
from jaxbench.cli import registry
from jaxbench.data.sampler import EpochSampler
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step
from tests.conftest import step_args

base = registry.load("quickstart:tiny")
base.optimizer.warmup_epochs = 0
found = {count: {"setup_s": []} for count in map(int, sys.argv[1:])}
for round in range(2):
    for count, of_count in found.items():
        config = dataclasses.replace(base, num_devices=count, batch_size=2 * count)
        began_s = time.process_time()
        mesh, layout = create_training_mesh(config)
        sampler = EpochSampler(layout, num_train=50_000, num_eval=10_000, seeds_R=(0,))
        sampler.train_LxSxB(0)
        program = build_program(config, mesh, layout, sampler.steps_per_epoch)
        args = (program.abstract_placed_state(), *step_args(program))
        program.train_step.lower(*args)
        of_count["setup_s"].append(time.process_time() - began_s)
        if round:
            record = compile_step("train_step", program.train_step, *args)
            of_count |= {key: getattr(record, key) for key in ("memory", "collectives")}
            of_count["parameters"] = program.network.analysis.num_parameters
print(json.dumps(found))
"""


def test_a_step_for_1024_devices_is_the_one_for_256():
    xla_flags = UNOPTIMIZED["XLA_FLAGS"] + " --xla_force_host_platform_device_count=1024"
    done = run_program([sys.executable, "-c", _SET_UP, "256", "1024"], env={"XLA_FLAGS": xla_flags})
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout).values()
    # One all-reduce for gradients, running averages and metrics, whatever the number of devices.
    assert many["collectives"] == few["collectives"]
    assert many["collectives"]["all-reduce"]["count"] == 1
    assert many["collectives"]["all-reduce"]["bytes"] >= 4 * many["parameters"]
    # Each device holds its own share and one copy of the state.
    assert many["memory"] == few["memory"]
    assert many["memory"]["total_bytes"] > 4 * 3 * many["parameters"]
    # At most four times the time, as the devices; with their square it would be sixteen.
    assert min(many["setup_s"]) < 4 * min(few["setup_s"])
