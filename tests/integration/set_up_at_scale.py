"""Sets a training step up for many simulated devices; prints what that took as JSON.

    python set_up_at_scale.py PARALLELISM COUNT...

A program of its own: the devices of a process are made when JAX starts.
"""

import dataclasses
import json
import sys
import time

from jaxbench.cli import registry
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.data.sampler import EpochSampler
from jaxbench.parallel.mesh import create_training_mesh
from jaxbench.tasks import get_task
from jaxbench.train import build_program
from jaxbench.training.compilation import compile_step

ROUNDS = 2
SHARE = 2


def set_up(config):
    """Returns the program, the step's arguments, and seconds of processor time.

    They are those of the mesh, of an epoch's order and of lowering.
    """
    began_s = time.process_time()
    mesh, layout = create_training_mesh(config)
    sampler = EpochSampler(layout, num_train=50_000, num_eval=10_000, seeds_R=(0,))
    sampler.train_LxSxB(0)
    program = build_program(config, mesh, layout, sampler.steps_per_epoch)
    label_shape = get_task(config.task).label_shape(config.data.image_shape)
    arrays = abstract_args(config, layout, label_shape, program.precision.param_dtype)
    args = (program.abstract_placed_state(), *arrays)
    program.train_step.lower(*args)
    return program, args, time.process_time() - began_s


def main(parallelism, *counts):
    config = registry.load("quickstart:tiny")
    config.parallelism, config.optimizer.warmup_epochs = parallelism, 0
    counts = [int(count) for count in counts]
    found = {count: {"setup_s": []} for count in counts}
    for _ in range(ROUNDS):
        for count in counts:
            of_count = dataclasses.replace(config, num_devices=count, batch_size=SHARE * count)
            program, args, setup_s = set_up(of_count)
            found[count]["setup_s"].append(setup_s)
            if len(found[count]["setup_s"]) == ROUNDS:
                record = compile_step("train_step", program.train_step, *args)
                found[count] |= {
                    key: getattr(record, key) for key in ("memory", "collectives", "compile_s")
                }
                found[count]["parameters"] = program.num_parameters()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
