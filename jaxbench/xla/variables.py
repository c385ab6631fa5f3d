"""The environment variables that affect figures."""

import os
import re

_RELEVANT = re.compile(r"^(XLA_|JAX_|CUDA_VISIBLE|LIBTPU|TPU_|NVIDIA_TF32|OMP_NUM_THREADS)")
# The place of compiled programs affects no figure.
_CACHE = re.compile(r"^JAX_(COMPILATION_CACHE|PERSISTENT_CACHE|ENABLE_COMPILATION_CACHE)")


def relevant_variables() -> dict[str, str]:
    """Return the environment variables that JAX, XLA, CUDA and libtpu read, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if _RELEVANT.match(name)}


def decisive_variables() -> dict[str, str]:
    """Return the environment variables that choose devices and how they are used."""
    return {name: value for name, value in relevant_variables().items() if not _CACHE.match(name)}
