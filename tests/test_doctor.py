"""The doctor's lines and exit code, on machines where something is wrong."""

import json
import os
import resource
import sys
import types

import jax
import psutil
import pynvml
import pytest

from jaxbench.errors import BadInput
from jaxbench.hardware import accelerators, checks, nvidia_libraries
from jaxbench.hardware.accelerators import Accelerators
from jaxbench.xla.compile_cache import _HIT, _MISS
from tests import fake_nvml
from tests.fake_nvml import Board, Cuda, Nvml

# Folders of cuDNN: pip's, and one of an image.
CUDNNS = ("site/nvidia/cudnn", "cuda")
# Looking at flags takes a process.
NO_FLAGS = {"XLA_FLAGS": ""}


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """A host that nothing else uses, with room enough, whatever this one is."""
    jax.devices()  # with the suite's own XLA_FLAGS, before a test changes them
    monkeypatch.setattr(psutil, "cpu_percent", lambda *_, percpu: [1.0])
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    monkeypatch.setattr(checks, "_MEMORY_GIB", 0)
    monkeypatch.setattr(checks, "_DISK_GIB", 0)


def test_a_machine_without_problems(run_cli, tmp_path):
    done = run_cli(module="jaxbench.doctor", env=NO_FLAGS)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert {line.split()[0] for line in lines} == {"ok"}
    assert any(line.startswith("ok       devices: ") and " cpu" in line for line in lines)
    told = json.loads(run_cli("--json", module="jaxbench.doctor", env=NO_FLAGS).stdout)
    assert told["status"] == "ok" and len(told["checks"]) == len(lines)
    assert list(tmp_path.iterdir()) == []


def test_a_problem_is_exit_code_1_and_says_what_to_do(run_cli, monkeypatch):
    monkeypatch.setattr(checks, "find_accelerators", lambda: [Accelerators("cuda", 2, "470.1")])
    done = run_cli(module="jaxbench.doctor", env=NO_FLAGS)
    assert done.returncode == 1
    place = done.stdout.splitlines().index("problem  accelerators: 2 NVIDIA GPUs (driver 470.1)")
    assert done.stdout.splitlines()[place + 1].startswith("         -> JAX needs an NVIDIA driver")
    # A path stays whole.
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "/" not in line)


def refuse_flags():
    raise BadInput("XLA_FLAGS: no --xla_x; unset it")


@pytest.mark.parametrize(
    ("name", "value", "check", "status", "told"),
    [
        ("psutil.cpu_percent", lambda *_, percpu: [50.0, 70.0], "load", "warning", "60 %"),
        ("resource.getrlimit", lambda _: (256, 4096), "open files", "warning", "256 at most"),
        ("checks._MEMORY_GIB", 1e9, "memory", "warning", "GiB available"),
        ("checks._DISK_GIB", 1e9, "runs", "warning", "GiB free"),
        ("shutil.disk_usage", lambda _: 1 / 0, "folders", "problem", "ZeroDivisionError"),
        ("checks.unused_accelerators", lambda _: ["a TPU: pip"], "devices", "problem", " cpu"),
        ("distorters.distorters", lambda: ["X=1 (slow)"], "debugging", "warning", "X=1 (slow)"),
        ("backend_flags.sums_are_right", lambda: False, "sums on the CPU", "problem", "wrong sums"),
        ("backend_flags.prepare_backend", refuse_flags, "XLA_FLAGS", "problem", "no --xla_x"),
    ],
)
def test_doctor_finds_what_is_wrong(monkeypatch, name, value, check, status, told):
    monkeypatch.setenv("XLA_FLAGS", "")
    ours = name.startswith(("checks.", "backend_flags.", "distorters."))
    monkeypatch.setattr(f"jaxbench.hardware.{name}" if ours else name, value)
    [line] = [one for one in checks.run_checks() if one.name == check]
    assert line.status == status and told in line.detail and line.advice


def test_variables_and_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setattr(accelerators, "installed_plugin", lambda platform: None)
    told = {check.name: check for check in checks.run_checks()}
    assert told["compile cache"].status == "warning" and told["runs"].status == "ok"
    assert told["JAX_PLATFORMS"].status == "problem"
    assert told["JAX_PLATFORMS"].advice.startswith("pip install")
    assert "devices" not in told  # JAX would fail


def test_versions(monkeypatch):
    versions = {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.1", "libtpu": "1"}
    monkeypatch.setattr(checks, "installed_version", versions.get)
    told = {check.name: check for check in checks.check_packages()}
    statuses = [told[name].status for name in versions]
    assert statuses == ["ok", "ok", "problem", "ok"] and len(told) == 4
    assert "[cuda12]'" in told["jax-cuda12-plugin"].advice
    versions["jax-cuda12-plugin"] = "0.10.2"
    monkeypatch.setattr(checks, "installed_plugin", lambda platform: platform)
    unused = {"tpu": "1, not used: the system shows no TPU"}
    unused["cuda"] = "0.10.2, not used: the system shows no NVIDIA GPU"
    for usable, expected in (
        ([], {*unused.values()}),
        (["cuda"], {"0.10.2", unused["tpu"]}),
        (["tpu"], {"1", unused["cuda"]}),
    ):
        monkeypatch.setattr(checks, "usable_plugins", lambda usable=usable: usable)
        assert {one.detail for one in checks.check_packages()} == {"0.10.2", *expected}
    versions.clear()
    assert [check.status for check in checks.check_packages()] == ["problem", "problem"]


def test_without_jax_all_else_is_told(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jaxbench.hardware.backend_flags")
    told = {check.name: check.status for check in checks.run_checks()}
    assert told["devices"] == "problem" and told["memory"] == told["Python"] == "ok"


def test_beside_an_accelerator_only_a_full_host_is_busy(monkeypatch):
    monkeypatch.setattr(checks, "find_accelerators", lambda: [Accelerators("cuda", 1)])
    for percent, status in ((13.0, "ok"), (95.0, "warning")):
        busy = lambda *_, percpu, percent=percent: [percent]  # noqa: E731
        monkeypatch.setattr(psutil, "cpu_percent", busy)
        assert {one.name: one.status for one in checks.check_host()}["load"] == status


@pytest.mark.parametrize(
    ("tells", "status"), [([1, 1], "ok"), ([1, None], "warning"), ([None, None], "ok")]
)
def test_a_program_from_the_cache_tells_its_memory(monkeypatch, tells, status):
    kept = jax.config.jax_compilation_cache_dir
    events = []
    jax.monitoring.register_event_listener(listen := lambda event, **_: events.append(event))
    [line] = checks.check_cached_programs()
    jax.monitoring.unregister_event_listener(listen)
    outcomes = [event.rpartition("_")[2] for event in events if event in (_HIT, _MISS)]
    assert outcomes == ["misses", "hits"]
    assert line.status == "ok" and line.detail == "known, also from the cache"
    answers = iter(tells)

    def memory_analysis(_):
        if (answer := next(answers)) is None:
            raise NotImplementedError
        return answer

    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", memory_analysis)
    [line] = checks.check_cached_programs()
    assert line.status == status and jax.config.jax_compilation_cache_dir == kept


GIB = 2**30


def gpu(stats):
    names = {"platform": "gpu", "id": 0, "local_hardware_id": 0}
    return types.SimpleNamespace(**names, memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("board", "stats", "told"),
    [
        # Of 80 GiB JAX has 60 already, or they are free.
        (Board(memory_used=62 * GIB), {"bytes_limit": 60 * GIB, "pool_bytes": 60 * GIB}, {}),
        (Board(memory_used=GIB), {"bytes_limit": 60 * GIB}, {}),
        (
            Board(memory_used=40 * GIB),
            {"bytes_limit": 60 * GIB},
            {"memory of gpu0": ("JAX takes 60.0 GiB, 40.0 of 80.0 free", "FRACTION=0.47")},
        ),
        (Board(), None, {"memory of gpu0": ("JAX does not report it", "ALLOCATOR")}),
        (
            Board(error=pynvml.NVML_ERROR_NO_PERMISSION),
            {"bytes_limit": 1},
            {"sensors": ("gpu0 power_w: Insufficient Permissions", "telemetry lacks them")},
        ),
        (None, {"bytes_limit": 1}, {"sensors": ("NVML Shared Library Not Found", "utility")}),
    ],
)
def test_boards_that_answer_and_their_memory(monkeypatch, board, stats, told):
    fake_nvml.install(monkeypatch, board and Nvml([board]), Cuda([0x0F]))
    lines = [*checks.check_boards([gpu(stats)])]
    assert lines and {one.name for one in lines if one.status == "warning"} == {*told}
    for line in lines:
        state, todo = told.get(line.name, ("", ""))
        assert state in line.detail and todo in line.advice and line.status != "problem"


@pytest.mark.parametrize(
    ("pids", "status", "state"),
    [
        ((os.getpid(),), "ok", "none on the GPUs"),
        ((os.getpid(), 7), "warning", "1 on the GPUs"),
        ((7, 8), "ok", "unknown, as in a container"),
    ],
)
def test_other_processes_on_the_gpus(monkeypatch, pids, status, state):
    fake_nvml.install(monkeypatch, Nvml([Board(pids=pids)]), Cuda([0x0F]))
    [line] = checks.check_gpu_processes([gpu({})])
    assert (line.status, line.detail) == (status, state)


def test_cuda_libraries_that_jax_does_not_find_or_refuses(monkeypatch, tmp_path):
    assert [*checks.check_cuda_libraries()] == []  # a machine without a GPU
    monkeypatch.setattr(checks, "find_accelerators", lambda: [Accelerators("cuda", 1)])
    monkeypatch.setattr(nvidia_libraries, "_ROOT", tmp_path)
    monkeypatch.setattr(nvidia_libraries, "_pip_folders", lambda: [tmp_path / "site/nvidia"])
    folder = tmp_path / "usr/lib/wsl/lib"
    for file in (folder / "libcuda.so.1", *(tmp_path / f"{a}/lib/libcudnn.so.9" for a in CUDNNS)):
        file.parent.mkdir(parents=True)
        file.write_text("")
    fake_nvml.install(monkeypatch, None, Cuda([0x0F]), folder=str(folder))
    versions = {"cuda_runtime": 13000, "cudnn": 91200, "cublas": 130000}
    plugin = {f"{name}_build_version": lambda n=number: n for name, number in versions.items()}
    plugin |= {"cuda_runtime_get_version": lambda: 13050, "cudnn_get_version": lambda: 90800}
    monkeypatch.setattr("jax._src.lib.cuda_versions", types.SimpleNamespace(**plugin))
    pip, image = (str(tmp_path / name / "lib") for name in CUDNNS)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{pip}:{image}:/none")
    told = {one.name: one for one in checks.check_cuda_libraries()}
    assert told["CUDA driver"].advice == f"as root: ldconfig {folder}"
    assert f"{image}/libcudnn.so.9 before pip's (1 files)" in told["LD_LIBRARY_PATH"].detail
    assert "9.8.0, JAX needs 9.12.0 or later" in told["cuDNN"].detail
    assert told["cuBLAS"].status == "problem" and "pip install" in told["cuBLAS"].advice
    assert told["CUDA libraries"].detail == "CUDA 13.5, cuDNN 9.8.0" and "CUDA" not in told


def test_a_gpu_has_lines_of_its_own(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    names = {one.name for one in checks.run_checks()}
    assert names >= {"TensorFlow Datasets", "memory of programs"}
    assert not names & {"sensors", "other processes", "CUDA driver", "memory of gpu0"}
    monkeypatch.setattr(checks, "find_accelerators", lambda: [Accelerators("cuda", 1)])
    fake_nvml.install(monkeypatch, Nvml([Board()]), None)
    one = gpu({"bytes_limit": 1})
    one.device_kind = "NVIDIA H100"
    monkeypatch.setattr(jax, "local_devices", lambda: [one])
    names = {one.name for one in checks.run_checks()}
    assert names >= {"sensors", "other processes", "CUDA driver"}
