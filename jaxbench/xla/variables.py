"""The environment variables that affect measurements."""

import os
import re
from collections.abc import Mapping

# Those by which a user chooses devices and how they are used.
_DECISIVE = re.compile(r"^(XLA_|JAX_|CUDA_VISIBLE|LIBTPU|TPU_|NVIDIA_TF32|OMP_NUM_THREADS)")
# Those by which NVIDIA's libraries choose kernels, connections and the order of devices. Images
# name versions in others, and clusters hosts and files.
_OF_LIBRARIES = re.compile(
    r"(NCCL_|CUBLAS|CUDNN_|NVIDIA_TF32|CUDA_DEVICE_)(?!.*(VERSION|COMM_ID|HOSTID|IFNAME|FILE|PATH))"
)
# Those that JAX, compilers, drivers, libraries, the loader and Python read: by how they begin.
_RELEVANT = re.compile(
    r"XLA_|JAX|TF_|PJRT_|LIBTPU|TPU_|MEGASCALE_|CUDA|CUDNN|CUBLAS|NCCL_|NVSHMEM_|NVIDIA_(?!REQUIRE)"
    r"|HIP|HSA_|ROC|RCCL_|MIOPEN_|AMD_|GPU_|OMP_|GOMP_|KMP_|MKL_|DNNL_|ONEDNN_|OPENBLAS_|BLIS_|NUMA"
    r"|NUMEXPR_|MALLOC_|GLIBC_|TCMALLOC_|_RJEM_|MIMALLOC_|LD_|PYTHON|UCX_|FI_|GLOO_|FLAX_|OPENCV_"
)
# JAX_LEGACY_PRNG_KEY and its like are no secrets.
_SECRET = re.compile(
    r"(?i).*(TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH)|(?!JAX_\w+(PRNG_KEY|KEY_REUSE|IN_KEY)$).*KEY"
)
# A user's name and password in an address.
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
# Where compiled programs are kept affects no measurement.
_CACHE = re.compile(r"^JAX_(COMPILATION_CACHE|PERSISTENT_CACHE|ENABLE_COMPILATION_CACHE)")

# A flag as XLA splits them: a value in quotes may have blanks.
_FLAG = re.compile(r"""--?\w+=(?:"[^"]*"|'[^']*')|\S+""")
# The flags that jaxbench itself has added to XLA_FLAGS in this process.
added_flags: set[str] = set()


def flags_of(variable: str) -> list[str]:
    """Return the flags in XLA_FLAGS or LIBTPU_INIT_ARGS, in their order."""
    return _FLAG.findall(os.environ.get(variable, ""))


def public_value(name: str, value: str) -> str:
    """Return what may be recorded of a variable's value: nothing of a password, token or key."""
    return "(secret)" if _SECRET.match(name) else _LOGIN.sub("", value)


def relevant_variables() -> dict[str, str]:
    """Return the environment variables that may affect a measurement, by name."""
    return {
        name: public_value(name, value)
        for name, value in sorted(os.environ.items())
        if _RELEVANT.match(name)
    }


def of_gpu_libraries(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that change what NVIDIA's libraries compute and send, and how."""
    return {name: value for name, value in variables.items() if _OF_LIBRARIES.match(name)}


def decisive_variables() -> dict[str, str]:
    """Return the environment variables by which a user chooses devices and how they are used.

    XLA_FLAGS lacks the flags that jaxbench added in this process: they are the machine's.
    """
    variables = {name: value for name, value in os.environ.items() if _DECISIVE.match(name)}
    flags = [flag for flag in flags_of("XLA_FLAGS") if flag not in added_flags]
    variables.pop("XLA_FLAGS", None)
    if flags:
        variables["XLA_FLAGS"] = " ".join(flags)
    return {name: value for name, value in sorted(variables.items()) if not _CACHE.match(name)}
