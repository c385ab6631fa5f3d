"""Where a training step's time goes on a CPU: by kind of operation, and how fast the products are.

    python benchmarks/cpu_profile.py [--experiment=cnn10] [--batch_size=32] [--steps=5]

JAX's profiler times each operation of the compiled step on one core (Linux). Convolutions and
products of matrices stand with their GFLOP/s, and with the share of the best product of matrices
on the same core. XLA:CPU computes most 1x1 convolutions as products. These are wall times: other
work on the machine is in them.
"""

import collections
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from absl import flags

_WINDOW = re.compile(r"window=\{size=([\dx]+)([^}]*)\}")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_SHAPE = re.compile(r"\[([\d,]*)\]")


def main(rest: list[str]) -> None:
    import conv_on_cpu

    from jaxbench.errors import BadInput
    from jaxbench.hardware.backend_flags import prepare_backend

    if rest:
        raise BadInput(f"{rest[0]!r}: flags begin with --")
    given = flags.FLAGS
    conv_on_cpu.keep_to_one_core()
    prepare_backend()
    import jax
    from versus_pytorch import load_config

    config = load_config(given.experiment, given.batch_size, "fp32")
    set_flags = os.environ.get("XLA_FLAGS") or "none"
    print(f"jaxlib {jax.lib.__version__}, one thread, batch {given.batch_size}, fp32")
    print(f"XLA_FLAGS: {set_flags}")
    best = conv_on_cpu.measure_matmul(None, rounds=7)
    lowered, stepper = conv_on_cpu.lower_step(config)
    compiled = lowered.compile()
    step = stepper(compiled)
    step()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(given.steps):
                step()
        seconds = _read_seconds(pathlib.Path(folder))
    _print(config.name, describe_kinds(compiled.as_text(), seconds, given.steps), best)


def describe_kinds(hlo: str, seconds: dict[str, float], steps: int) -> dict[str, dict[str, float]]:
    """Return {kind of operation: {"count", "seconds", "gflop"} in a step}, the slowest first.

    Args:
      hlo: XLA's text of the compiled step.
      seconds: how long each instruction took, by name, in all steps.
      steps: the number of steps.
    """
    from jaxbench.xla.hlo import instructions

    inside = collections.defaultdict(list)
    for instruction in instructions(hlo):
        inside[instruction.computation].append(instruction)
    kinds: dict[str, dict[str, float]] = {}
    for computation in inside.values():
        for instruction in computation:
            if instruction.name not in seconds:
                continue
            kind, gflop = _classify(instruction, inside)
            record = kinds.setdefault(kind, {"count": 0, "seconds": 0.0, "gflop": 0.0})
            record["count"] += 1
            record["seconds"] += seconds[instruction.name] / steps
            record["gflop"] += gflop
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["seconds"]))


def _classify(instruction: Any, inside: dict[str, list]) -> tuple[str, float]:
    """Return an instruction's kind, and the GFLOP of its product."""
    called = _CALLS.search(instruction.rest)
    body = [instruction, *(inside[called[1]] if called else ())]
    for one in body:
        if one.opcode in ("convolution", "dot"):
            types = {other.name: other.type for other in inside[one.computation]}
            return _describe_product(one, types)
    opcodes = {one.opcode for one in body}
    if {"reduce", "reduce-window"} & opcodes:
        return "sums", 0.0
    if instruction.opcode in ("fusion", "copy", "transpose"):
        copies = {"copy", "transpose"} & opcodes
        return ("copies into another order" if copies else "element by element"), 0.0
    return instruction.opcode, 0.0


def _describe_product(product: Any, types: dict[str, str]) -> tuple[str, float]:
    output = _shape(product.type)
    first, second = (_shape(types[name]) for name in product.operands[:2])
    # XLA:CPU drops the name of some kernel gradients as it puts their operands in order.
    backward = "transpose(" in product.rest or "op_name" not in product.rest
    part = "input gradient" if backward else "forward"
    if product.opcode == "dot":
        contracted = [int(axis) for axis in _CONTRACTED.search(product.rest)[1].split(",")]
        if contracted == [0]:
            part = "kernel gradient"
        depth = math.prod(first[axis] for axis in contracted)
        return f"product of matrices, {part}", 2e-9 * math.prod(output) * depth
    lhs, rhs, out = _DIM_LABELS.search(product.rest).groups()
    size, more = _WINDOW.search(product.rest).groups()
    window = [int(side) for side in size.split("x")]
    image = [first[axis] for axis, letter in enumerate(lhs) if letter.isdigit()]
    kernel = window
    if "rhs_reversal" in more:
        # XLA swaps the operands where the image is smaller than the kernel.
        kernel = image
    elif backward and ("rhs_dilate" in more or image == window):
        # The output's gradient is laid on the images as a kernel, and the outputs are the kernel.
        part = "kernel gradient"
        kernel = [output[axis] for axis, letter in enumerate(out) if letter.isdigit()]
    # A kernel is laid on each output; where zeros stand between the inputs, on each input.
    if "lhs_dilate" in more:
        macs = math.prod(first) * math.prod(second) // second[rhs.index("i")]
    else:
        macs = math.prod(output) * math.prod(second) // second[rhs.index("o")]
    strides = " with a stride" if "stride" in more or "dilate" in more else ""
    return f"{'x'.join(map(str, kernel))} convolution{strides}, {part}", 2e-9 * macs


def _shape(type_: str) -> list[int]:
    return [int(side) for side in _SHAPE.search(type_)[1].split(",") if side]


def _read_seconds(folder: pathlib.Path) -> dict[str, float]:
    """Return the seconds of each event of a trace, by name."""
    seconds: dict[str, float] = collections.Counter()
    for name, duration_ns in _events(folder):
        seconds[name] += duration_ns * 1e-9
    return seconds


def _events(folder: pathlib.Path) -> Iterator[tuple[str, float]]:
    import jax

    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    yield event.name, event.duration_ns


def _print(name: str, kinds: dict[str, dict[str, float]], best: float) -> None:
    total_s = sum(record["seconds"] for record in kinds.values())
    print(f"{name}: {total_s:.3f} s in a step's operations")
    for kind, record in kinds.items():
        line = f"{record['seconds'] / total_s:6.1%} {record['seconds']:8.4f} s"
        line += f" {record['count']:4} x {kind}"
        if record["gflop"]:
            rate = record["gflop"] / record["seconds"]
            line += f": {record['gflop']:.2f} GFLOP, {rate:.0f} GFLOP/s ({rate / best:.0%})"
        print(line)


if __name__ == "__main__":
    from jaxbench.cli import entry_point

    flags.DEFINE_string("experiment", "cnn10", "Whose step, of an experiment of versus_pytorch.py.")
    flags.DEFINE_integer("batch_size", 32, "The batch.", lower_bound=1)
    flags.DEFINE_integer("steps", 5, "How many steps are profiled.", lower_bound=1)
    sys.exit(entry_point.run_with_arguments(main))
