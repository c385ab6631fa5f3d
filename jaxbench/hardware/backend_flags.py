"""What is set before JAX makes its devices: the platform, and the flags of backend_flags.csv."""

import os
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxbench.errors import BadInput
from jaxbench.files import read_table
from jaxbench.hardware.accelerators import check_platforms, usable_plugins
from jaxbench.hardware.system import installed_version
from jaxbench.terminal import warn
from jaxbench.xla.compile_cache import use_compile_cache
from jaxbench.xla.flags import add_xla_flags, check_flag_variables
from jaxbench.xla.variables import added_flags

# Which kinds of operations run from command buffers: none.
_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
# XLA then adds in one order, and chooses kernels without timing them. Without the second flag
# jaxlib 0.11.2 and 0.12.0.1 then find no kernel for some products.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true --xla_gpu_enable_triton_gemm=false"
# The flags that XLA has read, as far as `prepare_backend` has seen them.
_in_time: set[str] = set()


def cpu_flags() -> list[str]:
    """Return the flags for CPU devices of the installed jaxlib."""
    version = f"{installed_version('jaxlib')}."
    return [
        row["flag"]
        for row in read_table(__file__, "backend_flags.csv")
        if row["platform"] == "cpu"
        and any(version.startswith(f"{release}.") for release in row["jaxlib"].split())
    ]


def start_backend(
    say: Callable[[str], None],
    *,
    profile: str | None = None,
    compile_cache: str = "",
    xla_flags: str | None = None,
    backend_flags: bool = True,
    deterministic: bool = False,
) -> None:
    """Do what every command and function does before JAX makes its devices; see their options.

    Raises:
      BadInput: JAX or XLA would not take a variable or an option.
    """
    check_platforms()
    use_compile_cache(compile_cache, by_names=profile is not None)
    for flag in add_xla_flags(xla_flags) if xla_flags else ():
        warn(f"jaxbench: XLA does not know {flag}: left out")
    if deterministic and _may_use_gpu() and (unknown := add_xla_flags(_DETERMINISTIC)):
        raise BadInput(f"--deterministic: this XLA does not know {' '.join(unknown)}")
    if profile is not None and (line := name_operations()):
        say(line)
    prepare_backend(backend_flags)


def prepare_backend(add_flags: bool = True) -> list[str]:
    """Settle, before JAX makes its devices, what it would settle badly; return the added flags.

    If nothing but libtpu could serve and the machine has no TPU, JAX is given the CPU: libtpu would
    print seven lines of errors first. An accelerator's process gets a CPU device behind it, which
    draws the initial parameters. On CPU devices the flags of `cpu_flags` are added to
    XLA_FLAGS; a value of the user's stays. Accelerators get none: their plugins read XLA_FLAGS too,
    and abort at a flag that they do not know. Once JAX has its devices this does nothing.

    Raises:
      BadInput: see `check_flag_variables`.
    """
    from jax._src import xla_bridge  # the question has no public name

    if xla_bridge.backends_are_initialized():
        return []
    check_flag_variables()
    platforms, plugins = jax.config.values["jax_platforms"], " ".join(usable_plugins())
    asked = (platforms or "").replace("gpu", "cuda|rocm").split(",")
    # Not by JAX_PLATFORMS: child processes, also those on other hosts, decide for themselves.
    if not platforms and not plugins:
        jax.config.update("jax_platforms", "cpu")
    elif platforms and "cpu" not in asked and any(re.search(one, plugins) for one in asked):
        jax.config.update("jax_platforms", f"{platforms},cpu")
    if not add_flags or jax.config.values["jax_platforms"] != "cpu":
        return []
    user_flags = os.environ.get("XLA_FLAGS", "").split()
    # Of a flag that is given twice the last value holds.
    last = {flag.partition("=")[0]: flag for flag in user_flags}
    added = [flag for flag in cpu_flags() if flag.partition("=")[0] not in last]
    if added:
        os.environ["XLA_FLAGS"] = " ".join([*added, *user_flags])
        added_flags.update(added)
    _in_time.update(added, last.values())
    return added


def _may_use_gpu() -> bool:
    """Return whether JAX takes a GPU, if there is one."""
    return jax.config.values["jax_platforms"] != "cpu" and any(
        kind in name for name in usable_plugins() for kind in ("cuda", "rocm")
    )


def is_deterministic(xla_flags: str | None) -> bool:
    """Return whether XLA_FLAGS make equal runs of a GPU equal; the last value of a flag holds."""
    values = re.findall(r"--xla_gpu_deterministic_ops(?:=(\S+))?", xla_flags or "")
    return values[-1:] in (["true"], ["1"], [""])


def name_operations() -> str:
    """Have a profile on a GPU name each operation; return what a user must know of it.

    XLA starts many kernels at once from a command buffer. A trace then has no operation of theirs,
    and xprof's tables and roofline are empty (https://github.com/openxla/xprof/issues/3070).
    Nothing is done if no GPU can be used, or against XLA_FLAGS.
    """
    from jax._src import xla_bridge  # the question has no public name

    if not _may_use_gpu() or _COMMAND_BUFFERS in os.environ.get("XLA_FLAGS", ""):
        return ""
    if xla_bridge.backends_are_initialized():
        return (
            f"profile: the trace may not name each operation: set XLA_FLAGS={_COMMAND_BUFFERS} "
            "before JAX makes its devices"
        )
    if add_xla_flags(_COMMAND_BUFFERS):  # this XLA does not know it
        return ""
    return (
        "profile: XLA's command buffers are off, so that the trace names each operation; all "
        "rates of this run may be lower"
    )


def wrong_sums(platform: str) -> list[str]:
    """Return the warning that devices of this platform compute wrong sums, if they do.

    It is computed, unless the flags for this jaxlib were set before JAX made its devices.
    """
    if platform != "cpu" or {*cpu_flags()} <= _in_time or sums_are_right():
        return []
    return [wrong_sums_text()]


def wrong_sums_text() -> str:
    """Return the warning that this jaxlib computes wrong sums, with the flag that prevents it."""
    version = installed_version("jaxlib")
    flags = " ".join(cpu_flags())
    todo = f": set XLA_FLAGS={flags} before JAX makes its devices" if flags else ""
    return (
        f"jaxlib {version} computes wrong sums on this CPU "
        f"(https://github.com/jax-ml/jax/issues/39103){todo}"
    )


def sums_are_right() -> bool:
    """Compute the example of jax issue 39103 on the CPU; return whether it is right.

    With jaxlib 0.10.2 the last of 32,769 rows is 0.2 to 0.8 % off; of other numbers it may be a
    multiple.
    """
    numbers_N = np.arange(32_769, dtype=np.float32)
    rows_Nx3 = np.stack([numbers_N, 0 * numbers_N, 0 * numbers_N], axis=1)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        identity = jnp.eye(3, dtype=jnp.float32)
        squares = jax.jit(jax.vmap(lambda row: jnp.sum((identity @ row) ** 2)))(rows_Nx3)
    return np.allclose(squares, numbers_N.astype(np.float64) ** 2, rtol=1e-5, atol=0)
