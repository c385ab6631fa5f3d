"""The environment variables that affect measurements."""

import os
import re

_RELEVANT = re.compile(r"^(XLA_|JAX_|CUDA_VISIBLE|LIBTPU|TPU_|NVIDIA_TF32|OMP_NUM_THREADS)")
# Where compiled programs are kept affects no measurement.
_CACHE = re.compile(r"^JAX_(COMPILATION_CACHE|PERSISTENT_CACHE|ENABLE_COMPILATION_CACHE)")

# The flags that jaxbench itself has added to XLA_FLAGS in this process.
added_flags: set[str] = set()


def relevant_variables() -> dict[str, str]:
    """Return the environment variables that JAX, XLA, CUDA and libtpu read, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if _RELEVANT.match(name)}


def decisive_variables() -> dict[str, str]:
    """Return the environment variables by which a user chooses devices and how they are used.

    XLA_FLAGS lacks the flags that jaxbench added in this process: they are the machine's.
    """
    variables = relevant_variables()
    flags = [flag for flag in variables.pop("XLA_FLAGS", "").split() if flag not in added_flags]
    variables |= {"XLA_FLAGS": " ".join(flags)} if flags else {}
    return {name: value for name, value in sorted(variables.items()) if not _CACHE.match(name)}
