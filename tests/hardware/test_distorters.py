"""Settings for debugging that somebody left behind are said, and all that matters is recorded."""

import os
import re
import sys

import jax
import pytest

from jaxbench import hardware
from jaxbench.files import read_table
from jaxbench.hardware import distorters as module
from jaxbench.hardware.distorters import distorters
from jaxbench.xla.variables import decisive_variables, relevant_variables
from tests.conftest import MICRO, records, run_json

# {kind: {name: (values that distort, values that do not)}}, some of each kind of effect.
CASES = {
    "variable": {
        "CUDA_LAUNCH_BLOCKING": (["1"], ["0", ""]),
        "NVIDIA_TF32_OVERRIDE": (["0", "1"], [""]),
        "NCCL_DEBUG": (["TRACE"], ["WARN", "version", "INFO"]),  # INFO: when devices meet
        "NCCL_SHM_DISABLE": (["1"], ["0"]),
        "XLA_PYTHON_CLIENT_ALLOCATOR": (["platform"], ["bfc", "cuda_async"]),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": (["50"], ["100"]),
        "MALLOC_PERTURB_": (["165"], ["0"]),
        "MALLOC_ARENA_MAX": ([], ["1"]),  # a choice
        "GLIBC_TUNABLES": (["glibc.malloc.check=3"], ["glibc.malloc.arena_max=2"]),
        "LD_PRELOAD": (
            ["libasan.so.8", "/lib/libjemalloc.so.2:/x.so", "/x.so:/lib/libjemalloc.so.2"],
            ["/lib/libtcmalloc.so.4", "libiomp5.so:/lib/libjemalloc.so.2", "/lib/libstdc++.so.6"],
        ),
        "PYTHONMALLOC": (["debug", "malloc"], ["pymalloc"]),
        "TF_CPP_MAX_VLOG_LEVEL": (["3"], ["0"]),
    },
    "flag": {
        "xla_backend_optimization_level": (["0", "1"], ["2", "3"]),
        "xla_dump_to": (["/tmp/x", "'/tmp/a b'"], [""]),
        "xla_dump_hlo_as_text": (["true"], ["false"]),
        "xla_gpu_autotune_level": (["0"], ["4"]),
        "xla_cpu_multi_thread_eigen": (["false"], ["true"]),
        "xla_force_host_platform_device_count": ([], ["8"]),
    },
    "config": {
        "jax_disable_most_optimizations": ([True], [False]),
        "jax_disable_jit": ([True], [False]),
        "jax_debug_infs": ([True], [False]),
        "jax_optimization_level": (["O0"], ["UNKNOWN", "O2"]),
        "jax_transfer_guard_host_to_device": (["log"], ["allow", None]),
    },
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_in_force_is_said_whoever_set_it(monkeypatch, kind):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(module, "added_flags", set())
    assert distorters() == []
    for name, values in CASES[kind].items():
        for distorts, value in [(i == 0, one) for i in (0, 1) for one in values[i]]:
            before = kind == "config" and jax.config.values[name]
            with monkeypatch.context() as patch:
                if kind == "config":
                    jax.config.update(name, value)
                else:
                    flag = f"--{name}=2 --{name}={value}"  # the last one holds
                    variable = (name, value) if kind == "variable" else ("XLA_FLAGS", flag)
                    patch.setenv(*variable)
                found = distorters()
            if kind == "config":
                jax.config.update(name, before)
            assert len(found) == distorts and all(name in one for one in found), (name, value)


def test_what_a_notebook_sets_for_a_block_is_in_force_there():
    with jax.disable_jit():
        assert [one.partition("=")[0] for one in distorters()] == ["jax_disable_jit"]
    assert distorters() == []


def test_each_row_names_what_exists_and_says_what_it_does():
    for row in read_table(hardware.distorters.__file__, "distorters.csv"):
        assert row["effect"] and re.compile(row["usual"])
        if row["kind"] == "config":
            assert any(re.fullmatch(row["name"], name) for name in jax.config.values), row


@pytest.mark.skipif(module.watchers is dict, reason="coverage watches the tests themselves")
def test_who_watches_python_is_said(monkeypatch):
    for name, words in (("gettrace", "debugger"), ("getprofile", "profiler")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, lambda: print)
            [found] = distorters()
        assert words in found
    monkeypatch.setattr("tracemalloc.is_tracing", lambda: True)
    assert len(distorters()) == 1


def test_a_run_says_it_once_and_records_it(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("MALLOC_TRACE", "/tmp/x")
    arguments = (f"--experiment={MICRO}", "--experiment.max_steps=1", "--workdir=run")
    done = run_cli(*arguments)
    assert done.returncode == 0 and done.stdout.count("CUDA_LAUNCH_BLOCKING=1") == 1
    found = run_json(tmp_path / "run")["environment"]["distorters"]
    assert [one.partition("=")[0] for one in found] == ["CUDA_LAUNCH_BLOCKING", "MALLOC_TRACE"]
    warned = [w for w in records(tmp_path / "run", "summary")[0]["warnings"] if found[0] in w]
    assert len(warned) == 1 and found[1] in warned[0]


def test_all_that_matters_is_recorded_and_no_secret(monkeypatch):
    names = {
        *("CUDA_LAUNCH_BLOCKING", "CUDA_MPS_PIPE_DIRECTORY", "NCCL_P2P_DISABLE", "UCX_TLS"),
        *("NVIDIA_TF32_OVERRIDE", "TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        *("HSA_OVERRIDE_GFX_VERSION", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "LIBTPU_INIT_ARGS"),
        *("JAX_DEBUG_NANS", "MALLOC_ARENA_MAX", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONOPTIMIZE"),
        *("GLIBC_TUNABLES", "JAX_LEGACY_PRNG_KEY", "CUBLAS_WORKSPACE_CONFIG"),
    }
    secrets = {"TF_API_TOKEN", "JAX_SERVICE_KEY", "NVIDIA_API_KEY", "PYTHON_PASSWORD"}
    monkeypatch.setattr(os, "environ", dict.fromkeys((*names, *secrets, "HOME"), "hunter2"))
    os.environ["TPU_PROXY"] = "http://me:hunter2@host:80"
    recorded = relevant_variables()
    assert {name for name, value in recorded.items() if value == "hunter2"} == names
    assert {*recorded} - names == {*secrets, "TPU_PROXY"}
    assert recorded["TPU_PROXY"] == "http://host:80"
    # By those that a sweep's trials are known by a sweep of an older jaxbench still resumes.
    assert not {"LD_LIBRARY_PATH", "NCCL_P2P_DISABLE", "PYTHONOPTIMIZE"} & {*decisive_variables()}
