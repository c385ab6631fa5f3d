"""Compile a training step for a machine that is not here: what its compiler says of it.

Nothing is measured. What the compiler says is `compiled`; a ceiling on the rate is `predicted` from
it and the machine's peak rates.
"""

import dataclasses
import math
from typing import Any

import jax

from jaxbench.analysis.ceiling import all_reduced_bytes, ceiling, least_traffic
from jaxbench.clock import Clock
from jaxbench.config import Config
from jaxbench.data.feeds.feed import abstract_args
from jaxbench.distributed.mesh import DataMesh
from jaxbench.geometry import BatchGeometry
from jaxbench.hardware.peak_table import find_bandwidth, find_peak
from jaxbench.hardware.targets.target import Target
from jaxbench.hardware.targets.topology import compiler_version, create_devices
from jaxbench.jobs.describe import list_layers
from jaxbench.jobs.refusals import read_refusal
from jaxbench.jobs.setup import describe_program
from jaxbench.precision import get_precision
from jaxbench.records.schema import CompileRecord, TargetRecord
from jaxbench.training.compilation import compile_with_text
from jaxbench.training.program import Program, build_program
from jaxbench.xla.hlo_work import count_work


def devices_of(target: Target) -> tuple[Any, ...]:
    """Return the devices of a target, for a process in the variables of `topology.environment`.

    Raises:
      BadInput: the compiler is missing or does not know the machine.
    """
    return create_devices(target, find_bandwidth(target.kind))


def compile_for_target(
    config: Config, target: Target, clock: Clock
) -> tuple[TargetRecord, dict[str, Any]]:
    """Return what the compiler says of a training step on a target, and `Answer`'s `network`.

    For a process in the variables of `topology.environment`.

    Args:
      config: a valid experiment.
      target: the machine.
      clock: gets the phases `devices`, `build`, `lower` and `compile`.

    Raises:
      BadInput: the compiler is missing or does not know the machine, or the batch does not split
        over its devices.
    """
    config = config.for_all_devices()
    with clock.phase("devices"):
        devices = devices_of(target)
    geometry = BatchGeometry.create(config, len(devices))
    with get_precision(config.precision).enabled():
        with clock.phase("build"):
            mesh = DataMesh(devices, config.parallelism)
            program = build_program(config, mesh, geometry, steps_per_epoch=1)
            program.check()
        network = describe_program(program) | {"layers": list_layers(program)}
        return _compile(program, target, clock), network


def _compile(program: Program, target: Target, clock: Clock) -> TargetRecord:
    config, geometry = program.config, program.geometry
    record = TargetRecord(
        target=target.name,
        origin="compiled",
        compiler=compiler_version(target),
        device_kind=target.kind,
        num_devices=geometry.num_devices,
        batch_size=config.batch_size,
        batch_per_device=geometry.batch_per_device,
        precision=config.precision,
        device_memory_bytes=target.usable_bytes,
        fits=False,
    )
    labels = program.task.label_shape(config.data.example_shape)
    args = abstract_args(config, geometry, labels, program.precision.param_dtype)
    try:
        compiled, text = compile_with_text(
            "train_step",
            program.train_step,
            program.abstract_placed_state(),
            *args,
            clock=clock,
        )
    except jax.errors.JaxRuntimeError as error:
        refusal = " ".join(str(error).split())
        found = read_refusal(refusal)
        if found is None:
            raise
        needed_bytes = found.asked_bytes if found.kind == "memory" else None
        return dataclasses.replace(record, refusal=refusal, needed_bytes=needed_bytes)
    return dataclasses.replace(record, **_describe(program, target, compiled, text))


def _describe(
    program: Program, target: Target, compiled: CompileRecord, text: str
) -> dict[str, Any]:
    cache_bytes = _cache_bytes(target)
    work = count_work(text, _activation_sizes(program), cache_bytes)
    memory = compiled.memory
    return {
        # A TPU's compiler has refused what does not fit.
        "fits": target.platform == "tpu" or memory["total_bytes"] <= target.usable_bytes,
        "needed_bytes": memory["total_bytes"],
        "lower_s": compiled.lower_s,
        "compile_s": compiled.compile_s,
        "memory": memory,
        "state_donated": memory["alias_bytes"] >= program.state_bytes_per_device(),
        "collectives": compiled.collectives or {},
        "flops_per_image": program.training_flops,
        "custom_calls": work["custom_calls"],
        "transposes": work["transposes"],
        "converts": work["converts"],
        "moved_bytes": work["moved_bytes"],
        "bytes_lower_bound": program.facts.bytes_lower_bound(
            program.geometry.batch_per_device, program.state_bytes_per_device()
        ),
        "ceiling": _ceiling(
            program,
            target,
            least_traffic(memory, work["uncached_bytes"], cache_bytes),
            all_reduced_bytes(compiled.collectives or {}, program.geometry.num_devices),
        ),
    }


def _ceiling(
    program: Program, target: Target, moved_bytes: int, exchanged_bytes: int
) -> dict[str, Any]:
    geometry, precision = program.geometry, program.main_precision
    peak = find_peak(target.kind, precision)
    fast_rate = fast_convolution_rate(target, precision)
    found = ceiling(
        images_per_step=geometry.images_per_step,
        flops_per_device=program.least_training_flops(fast_rate) * geometry.batch_per_device,
        bytes_per_device=moved_bytes,
        exchanged_bytes=exchanged_bytes,
        num_devices=geometry.num_devices,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        memory_bytes_per_s=find_bandwidth(target.kind),
        link_bytes_per_s=target.link_bytes_per_s,
    )
    origins = {"origin": "predicted", "peak": peak and peak._asdict(), "link": target.link}
    return found | origins | {"least_moved_bytes": moved_bytes}


def fast_convolution_rate(target: Target, precision: str) -> float:
    """Return how fast a target may compute Winograd's or Fourier's convolutions, in peaks.

    cuDNN has them for fp32. They run outside of tensor cores, at the rate of IEEE fp32.
    """
    peak = find_peak(target.kind, precision)
    ieee = find_peak(target.kind, "fp32", "highest")
    if target.platform != "gpu" or precision != "fp32" or not (peak and ieee):
        return 0.0
    return ieee.flops_per_s / peak.flops_per_s


def _cache_bytes(target: Target) -> int:
    """Return the size of the cache between a GPU's cores and its memory."""
    return int(float(target.facts.get("l2_mib", 0)) * 2**20)


def _activation_sizes(program: Program) -> set[int]:
    """Return how many values the activations have in a step on one device.

    A parameter of as many values cannot be told from an activation, so that size is left out.
    """
    geometry = program.geometry
    images = geometry.batch_per_device // geometry.gradient_accumulation_steps
    shapes = [program.config.data.example_shape]
    shapes += [row["output_shape"] for row in list_layers(program)]
    rank = 2 if program.config.data.sequence_length else 3
    sizes = {images * math.prod(shape) for shape in shapes if len(shape) == rank}
    return sizes - {leaf.size for leaf in jax.tree.leaves(program.abstract_train_state().params)}
