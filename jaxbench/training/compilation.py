"""Compile a step, and record what XLA says of it."""

from typing import Any

from jaxbench.clock import Clock, Stopwatch
from jaxbench.distributed.mesh import device_memory_bytes
from jaxbench.records.schema import CompileRecord
from jaxbench.xla.collectives import count_collectives
from jaxbench.xla.compile_cache import CacheWatch


def compile_step(name: str, step: Any, *args: Any, clock: Clock | None = None) -> CompileRecord:
    """Lower and compile a step for these arguments (or their shapes); later calls reuse it."""
    return compile_with_text(name, step, *args, clock=clock)[0]


def compile_with_text(
    name: str, step: Any, *args: Any, clock: Clock | None = None
) -> tuple[CompileRecord, str | None]:
    """Do the same; return XLA's text of the compiled program too, where there is one."""
    clock = clock or Clock()
    with clock.phase("lower"):
        watch = Stopwatch()
        lowered = step.lower(*args)
        lower_s = watch.elapsed_s()
    with clock.phase("compile"), CacheWatch() as cache:
        watch = Stopwatch()
        compiled = lowered.compile()
        compile_s = watch.elapsed_s()
    costs, text = compiled.cost_analysis() or {}, compiled.as_text()
    record = CompileRecord(
        function=name,
        lower_s=lower_s,
        compile_s=compile_s,
        compile_cache=cache.outcome,
        memory=_planned_memory(compiled),
        device_memory_bytes=device_memory_bytes(),
        xla_flops_per_device=costs.get("flops"),
        xla_bytes_per_device=costs.get("bytes accessed"),
        collectives=count_collectives(text),
    )
    return record, text


def _planned_memory(compiled: Any) -> dict[str, int] | None:
    """Return bytes on one device; arguments and outputs share `alias_bytes` of donated memory."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    sizes = {
        "argument_bytes": analysis.argument_size_in_bytes,
        "output_bytes": analysis.output_size_in_bytes,
        "alias_bytes": analysis.alias_size_in_bytes,
        "temporary_bytes": analysis.temp_size_in_bytes,
        "code_bytes": analysis.generated_code_size_in_bytes,
    }
    sizes["total_bytes"] = sum(sizes.values()) - 2 * sizes["alias_bytes"]
    return sizes
