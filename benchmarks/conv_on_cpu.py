"""Where a training step's time goes on a CPU, and what YNNPACK in XLA has to do with it.

    python benchmarks/conv_on_cpu.py [--experiment=cnn10] [--batch_size=32] [--rounds=7]
        [--only=step]

XLA:CPU hands convolutions to the library YNNPACK, and to Eigen with
XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=-individual_convolution. Both are measured: first
the three convolutions of each kind of 3x3 layer that cnn10 has (forward, gradient of the input,
gradient of the kernel), beside PyTorch's channels_last where it is installed, each with its share
of the best product of matrices on the same core. Then the experiment's whole training step, also
with nothing at all left to YNNPACK (which is otherwise given reductions and dense layers, too).
--only=step leaves out the convolutions, which are cnn10's whatever the experiment. XLA_FLAGS must
not have the option already.

Figures are processor time of one thread on one core (Linux), by turns, so that other work on the
machine matters little: median, and ratios with 95 % intervals. They say nothing about how well
several threads share the work.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import flags

# What YNNPACK is given, in a compiler option's words; the default has convolutions too.
_FLAG, _TYPE = "xla_cpu_experimental_ynn_fusion_type", "LIBRARY_FUSION_TYPE_"
EIGEN = {_FLAG: f"{_TYPE}INDIVIDUAL_DOT,{_TYPE}REDUCE"}
NOTHING = {_FLAG: ""}
# Height and width, channels in and out.
LAYERS = ((32, 64, 64), (16, 64, 128), (16, 128, 128), (8, 128, 256), (8, 256, 256))


def main(rest: list[str]) -> None:
    from jaxbench.errors import BadInput

    if rest:
        raise BadInput(f"{rest[0]!r}: flags begin with --")
    for flag in os.environ.get("XLA_FLAGS", "").split():
        if _FLAG in flag:
            raise BadInput(
                f"XLA_FLAGS has {flag}: both ways are measured here; take it out of XLA_FLAGS"
            )
    keep_to_one_core()
    import jax
    from versus_pytorch import load_config

    given = flags.FLAGS
    # Before anything is measured: it may be none.
    config = load_config(given.experiment, given.batch_size, "fp32")
    try:
        import torch
    except ImportError:
        torch = None
        print("PyTorch is left out: not installed")
    versions = f"jaxlib {jax.lib.__version__}" + (f", torch {torch.__version__}" if torch else "")
    print(f"{versions}, one thread, batch {given.batch_size}, {given.rounds} rounds\n")
    if given.only != "step":
        _measure_convolutions(torch, given.batch_size, given.rounds)
    if given.only != "convolutions":
        _measure_step(config, given.rounds)


def keep_to_one_core() -> None:
    """Keep to the CPU's last core; to be called before JAX and PyTorch make their threads.

    Raises:
      BadInput: not on Linux.
    """
    from jaxbench.errors import BadInput

    if not hasattr(os, "sched_setaffinity"):
        raise BadInput("this measurement needs Linux: it keeps to one core")
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _measure_convolutions(torch: Any, batch_size: int, rounds: int) -> None:
    """Prints the speed of each layer's three convolutions; `torch` is None where there is none."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    best = measure_matmul(torch, rounds)
    for size, channels, filters in LAYERS:
        shapes = (
            (batch_size, size, size, channels),
            (3, 3, channels, filters),
            (batch_size, size, size, filters),
        )
        arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        gflop = 2e-9 * arrays[2].size * 9 * channels
        theirs = _pytorch_parts(torch, *arrays) if torch else {}
        for part, function in _parts().items():
            lowered = jax.jit(function).lower(*arrays)
            contestants = {
                "YNNPACK": _run(lowered.compile(), *arrays),
                "Eigen": _run(lowered.compile(compiler_options=EIGEN), *arrays),
            }
            if torch:
                contestants["PyTorch"] = theirs[part]
            what = f"{size}x{size}, {channels} to {filters}, {part}"
            _print(
                what,
                _measure(contestants, rounds),
                lambda s, g=gflop: f"{g / s:.0f} GFLOP/s ({g / s / best:.0%})",
            )


def measure_matmul(torch: Any, rounds: int) -> float:
    """Print and return the best GFLOP/s of a 2048x2048 product: the core's limit as measured."""
    import jax
    import numpy as np

    from jaxbench.analysis.statistics import median_interval

    rng = np.random.default_rng(0)
    a_MxK, b_KxN = (rng.normal(size=(2048, 2048)).astype(np.float32) for _ in range(2))
    contestants = {
        "XLA": _run(jax.jit(lambda a, b: a @ b).lower(a_MxK, b_KxN).compile(), a_MxK, b_KxN),
        "NumPy": lambda: a_MxK @ b_KxN,
    }
    if torch:
        torch.set_num_threads(1)
        first, second = torch.from_numpy(a_MxK), torch.from_numpy(b_KxN)
        contestants["PyTorch"] = lambda: torch.mm(first, second)
    rates = {
        name: 2e-9 * 2048**3 / median_interval(times_s)[0]
        for name, times_s in _measure(contestants, rounds).items()
    }
    print("products of matrices: " + ", ".join(f"{n} {r:.0f} GFLOP/s" for n, r in rates.items()))
    return max(rates.values())


def _parts() -> dict[str, Callable]:
    """{part: function of images, kernel and the output's gradient} of a 3x3 convolution."""
    import jax

    def forward(x_BxHxWxC, kernel_3x3xCxF, g_BxHxWxF):
        del g_BxHxWxF
        return jax.lax.conv_general_dilated(
            x_BxHxWxC, kernel_3x3xCxF, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def input_gradient(x, kernel, g):
        return jax.vjp(lambda x: forward(x, kernel, g), x)[1](g)[0]

    def kernel_gradient(x, kernel, g):
        return jax.vjp(lambda kernel: forward(x, kernel, g), kernel)[1](g)[0]

    return {
        "forward": forward,
        "input gradient": input_gradient,
        "kernel gradient": kernel_gradient,
    }


def _run(compiled, *arrays) -> Callable[[], None]:
    import jax

    placed = jax.device_put(arrays)
    return lambda: jax.block_until_ready(compiled(*placed))


def _pytorch_parts(torch, x_BxHxWxC, kernel_3x3xCxF, g_BxHxWxF) -> dict[str, Callable[[], None]]:
    torch.set_num_threads(1)
    x, g = (torch.from_numpy(array).permute(0, 3, 1, 2) for array in (x_BxHxWxC, g_BxHxWxF))
    kernel = torch.from_numpy(kernel_3x3xCxF).permute(3, 2, 0, 1)
    kernel = kernel.contiguous(memory_format=torch.channels_last)

    def backward(*wanted: bool) -> Callable[[], None]:
        ones, mask = [1, 1], [*wanted, False]
        return lambda: torch.ops.aten.convolution_backward(
            g, x, kernel, None, ones, ones, ones, False, [0, 0], 1, mask
        )

    return {
        "forward": lambda: torch.conv2d(x, kernel, padding=1),
        "input gradient": backward(True, False),
        "kernel gradient": backward(False, True),
    }


def _measure_step(config: Any, rounds: int) -> None:
    """Prints the whole step's time either way."""
    lowered, stepper = lower_step(config)
    contestants = {
        name: stepper(lowered.compile(compiler_options=options))
        for name, options in (("YNNPACK", {}), ("Eigen", EIGEN), ("without YNNPACK", NOTHING))
    }
    _print(f"{config.name}, training step", _measure(contestants, rounds), lambda s: f"{s:.3f} s")


def lower_step(config: Any) -> tuple[Any, Callable[[Any], Callable[[], None]]]:
    """Return the lowered training step, and what makes of the compiled one a step with a state."""
    from jaxbench.data.feeds.feed import create_feed
    from jaxbench.modes.windows import wait_for_steps
    from jaxbench.parallel.mesh import create_training_mesh
    from jaxbench.precision import get_precision
    from jaxbench.train import build_program

    mesh, layout = create_training_mesh(config)
    feed = create_feed(config, None, mesh, layout, get_precision("fp32").param_dtype)
    program = build_program(config, mesh, layout, feed.steps_per_epoch)
    row = next(feed.train_batches(0, 1))

    def stepper(compiled: Any) -> Callable[[], None]:
        state = program.place_train_state()

        def step():
            nonlocal state
            state, metrics = compiled(state, feed.train_data, row)
            wait_for_steps(state, program.unpack_train_sums(metrics))

        return step

    lowered = program.train_step.lower(program.place_train_state(), feed.train_data, row)
    return lowered, stepper


def _measure(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Returns each one's seconds of processor time, after one run that does not count."""
    times_s: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-1, rounds):
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            start_s = time.process_time()
            contestants[name]()
            if number >= 0:
                times_s[name].append(time.process_time() - start_s)
    return times_s


def _print(what: str, times_s: dict[str, list[float]], words: Callable[[float], str]) -> None:
    from jaxbench.analysis.statistics import median_interval

    base = times_s["YNNPACK"]
    line = f"{what:36} YNNPACK {words(median_interval(base)[0]):>12}"
    for name, own in times_s.items():
        if name != "YNNPACK":
            pairs = zip(base, own, strict=True)
            ratio, low, high = median_interval([first / second for first, second in pairs])
            line += f"; {name} {words(median_interval(own)[0]):>12}, {ratio:.2f} times as fast"
            line += f" ({low:.2f} to {high:.2f})"
    print(line, flush=True)


if __name__ == "__main__":
    from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
    from jaxbench.cli import entry_point

    flags.DEFINE_string("experiment", "cnn10", "Whose step, of an experiment of versus_pytorch.py.")
    flags.DEFINE_integer("batch_size", 32, "The batch.", lower_bound=1)
    flags.DEFINE_enum("only", None, ("convolutions", "step"), "Measure this alone.")
    flags.DEFINE_integer("rounds", 7, "Turns of each.", lower_bound=FEWEST_FOR_INTERVAL)
    sys.exit(entry_point.run_with_arguments(main))
