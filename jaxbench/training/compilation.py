"""Compile a step, and record what XLA says of it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Sharding

from jaxbench.clock import Clock, Stopwatch
from jaxbench.schema import CompileRecord
from jaxbench.xla.compile_cache import watch_cache
from jaxbench.xla.hlo import count_collectives


def jit_init(init: Callable, device: jax.Device, out_sharding: Sharding | None) -> Any:
    """Return a function that draws parameters, jitted for the device that draws them.

    Without an `out_sharding` it draws those of all devices.

    XLA takes up to a minute to compile a random draw for every parameter for a GPU, and on a CPU up
    to 20 s with all optimisations. Level 0 stays because the others change the last bits.
    """
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.__version_info__ < (0, 11):  # then it had another emitter: quicker, with equal results
        options["xla_cpu_use_fusion_emitters"] = False
    return jax.jit(
        init,
        out_shardings=out_sharding,
        compiler_options=options if device.platform == "cpu" else None,
    )


def compile_step(name: str, step: Any, *args: Any, clock: Clock | None = None) -> CompileRecord:
    """Lower and compile a step for these arguments (or their shapes); later calls reuse it."""
    return begin_compile(name, step, *args, clock=clock)()[0]


def compile_together(
    steps: Mapping[str, Sequence[Any]], clock: Clock
) -> tuple[list[CompileRecord], float]:
    """Compile {name: (step, *arguments)}, each while the next is lowered.

    Returns:
      Their records, each with its own seconds, and the seconds of all together.
    """
    watch = Stopwatch()
    finish = [begin_compile(name, *step, clock=clock) for name, step in steps.items()]
    return [done()[0] for done in finish], watch.elapsed_s()


def begin_compile(
    name: str, step: Any, *args: Any, clock: Clock | None = None
) -> Callable[[], tuple[CompileRecord, str | None]]:
    """Lower a step and begin to compile it; return a function that waits for the end.

    It returns the record, and XLA's text of the program if there is one. The clock's phase
    `compile` is only the wait.
    """
    clock = clock or Clock()
    with clock.phase("lower"):
        watch = Stopwatch()
        lowered = step.lower(*args)
        lower_s = watch.elapsed_s()

    def compile_timed() -> tuple[Any, float, str]:
        with watch_cache() as outcome:
            watch = Stopwatch()
            return lowered.compile(), watch.elapsed_s(), outcome()

    with clock.phase("compile"):
        wait = in_background(compile_timed, jax.default_backend())

    def finish() -> tuple[CompileRecord, str | None]:
        with clock.phase("compile"):
            compiled, compile_s, outcome = wait()
        costs, text = _reported(compiled.cost_analysis) or {}, _reported(compiled.as_text)
        record = CompileRecord(
            function=name,
            lower_s=lower_s,
            compile_s=compile_s,
            compile_cache=outcome,
            memory=_planned_memory(compiled),
            # What a local device may use; None if the backend does not report it.
            device_memory_bytes=(jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"),
            xla_flops_per_device=costs.get("flops"),
            xla_bytes_per_device=costs.get("bytes accessed"),
            collectives=count_collectives(text),
        )
        return record, text

    return finish


def in_background(task: Callable[[], Any], platform: str) -> Callable[[], Any]:
    """Begin a compilation for a platform in a thread; return a function that waits for its result.

    The main thread only waits, since Python handles no signal while a thread is in XLA's compiler.
    XLA times kernels on a GPU while it compiles for it, so for a GPU it has ended on return.
    """
    threads = ThreadPoolExecutor(1)
    future = threads.submit(task)
    threads.shutdown(wait=False)
    if platform == "gpu":
        future.result()
    return future.result


def _reported(analysis: Callable[[], Any]) -> Any:
    """Return what a compiled program reports; None if its backend does not report it."""
    try:
        return analysis()
    except NotImplementedError:
        return None


def _planned_memory(compiled: Any) -> dict[str, int] | None:
    """Return bytes on one device; arguments and outputs share `alias_bytes` of donated memory."""
    analysis = _reported(compiled.memory_analysis)
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
