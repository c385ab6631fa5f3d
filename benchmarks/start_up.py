"""Print how long the programs of a run's start take to compile for a machine that is not here.

    JAX_PLATFORMS=cpu python benchmarks/start_up.py --experiment=resnet50:synthetic
        [--target=gpu:h100]

The initial parameters are drawn on this host, and compiled for the target for comparison. Nothing
is kept in a cache. Seconds of processor time depend less on what else the machine does.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from absl import flags

from jaxbench.cli import entry_point

_TARGET = flags.DEFINE_string("target", "gpu:h100", "The machine to compile for.")


class Seconds(NamedTuple):
    elapsed_s: float
    processor_s: float  # of all threads


def measure(name: str, work: Callable[[], object]) -> Seconds:
    """Print and return how long some work takes."""
    from jaxbench.clock import Stopwatch

    watch, before = Stopwatch(), os.times()
    work()
    after = os.times()
    processor_s = after.user + after.system - before.user - before.system
    return show(name, Seconds(watch.elapsed_s(), processor_s))


def show(name: str, seconds: Seconds) -> Seconds:
    print(f"{name:44}{seconds[0]:7.1f} s{seconds[1]:8.1f} s of processor time", flush=True)
    return seconds


def main(spec: str | None, overrides: list[str]) -> None:
    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    from jaxbench.batch_layout import BatchLayout
    from jaxbench.data.feeds.feed import abstract_args
    from jaxbench.hardware.backend_flags import start_backend
    from jaxbench.hardware.targets.target import parse_target
    from jaxbench.modes.targets import create_devices
    from jaxbench.parallel.mesh import DataMesh
    from jaxbench.precision import get_precision
    from jaxbench.train import bind, build_program, create_train_state
    from jaxbench.training.compilation import jit_init

    start_backend(print, compile_cache="off")
    config = entry_point.load_experiment(spec, overrides).for_all_devices()
    devices = create_devices(parse_target(_TARGET.value))
    layout = BatchLayout.create(config, len(devices))
    with get_precision(config.precision).enabled():
        program = build_program(config, DataMesh(devices, config.parallelism), layout, 1)
        args = abstract_args(config, layout)
        state, seed = program.abstract_placed_state(), np.uint32(0)
        train_step = program.train_step
        step = measure("train_step", lambda: train_step.lower(state, *args).compile())
        draw = measure(
            "initial parameters, drawn on the host",
            lambda: jax.block_until_ready(program.init(seed)),
        )
        on_device = SingleDeviceSharding(devices[0])
        init = jit_init(bind(create_train_state, program.network), devices[0], on_device)
        on_target = measure(
            f"initial parameters, compiled for {_TARGET.value}", lambda: init.lower(seed).compile()
        )
    for name, first in (("drawn on the host", draw), ("compiled for the target", on_target)):
        show(f"in all, {name}", Seconds(*map(sum, zip(step, first, strict=True))))


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
