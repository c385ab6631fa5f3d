"""Cores and memory that a container leaves to a process; what is installed and recorded."""

import math
import os
import sys
import types
from unittest import mock

import jax
import msgspec
import pytest

from jaxbench.data.dataset import check_fits_in_memory
from jaxbench.errors import BadInput
from jaxbench.hardware import environment, system
from jaxbench.hardware.accelerators import Accelerators
from jaxbench.hardware.checks import check_data_sets, check_host
from jaxbench.hardware.environment import describe_environment
from jaxbench.hardware.nvidia_libraries import cuda_versions
from jaxbench.hardware.system import available_cores, cpu_quota, host_memory_bytes, import_tfds
from jaxbench.schema import Environment
from tests import fake_nvml
from tests.conftest import refusal

GIB = 2**30
PERIOD = {"cpu.cfs_period_us": "100000"}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Writes files of the system; the host has 8 cores, and 48 of its 64 GiB are free."""
    memory = types.SimpleNamespace(total=64 * GIB, available=48 * GIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)
    monkeypatch.setattr(system, "_ROOT", tmp_path)

    def make(cgroup, **folders):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
        for folder, files in folders.items():
            path = tmp_path / "sys/fs/cgroup" / folder
            path.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (path / name).write_text(f"{text}\n")

    return make


@pytest.mark.parametrize(
    ("cgroup", "folders", "quota", "cores"),
    [
        ("0::/\n", {}, math.inf, 8),
        ("0::/\n", {".": {"cpu.max": "max 100000"}}, math.inf, 8),
        ("0::/\n", {".": {"cpu.max": "50000 100000"}}, 0.5, 1),
        ("0::/\n", {".": {"cpu.max": "2500000 1000000"}}, 2.5, 3),
        # Its own group has no limit, the one around it has.
        ("0::/a/b\n", {"a/b": {"cpu.max": "max 100000"}, "a": {"cpu.max": "300000 100000"}}, 3, 3),
        ("0::/../x\n", {".": {"cpu.max": "400000 100000"}}, 4, 4),
        ("4:cpu,cpuacct:/a\n", {"cpu,cpuacct/a": {"cpu.cfs_quota_us": "150000", **PERIOD}}, 1.5, 2),
        # The container is named as the host names it, and mounted without that name.
        ("4:cpu:/docker/1f\n", {"cpu": {"cpu.cfs_quota_us": "50000", **PERIOD}}, 0.5, 1),
        ("4:cpu:/\n", {"cpu": {"cpu.cfs_quota_us": "-1", **PERIOD}}, math.inf, 8),
        ("", {".": {"cpu.max": "damaged"}}, math.inf, 8),
        ("0::/\n", {".": {"cpu.max": "6400000 100000"}}, 64, 8),
    ],
)
def test_cores_are_those_of_the_container(root, cgroup, folders, quota, cores):
    root(cgroup, **folders)
    assert cpu_quota() == quota
    assert available_cores() == cores


def test_what_the_container_leaves_is_recorded(root):
    root("0::/\n", **{".": {"cpu.max": "50000 100000", "memory.max": GIB}})
    recorded = describe_environment(jax.devices())
    assert (recorded["cpu_cores"], recorded["cpu_quota"]) == (1, 0.5)
    assert recorded["host_memory_bytes"] == GIB
    told = {check.name: check.detail for check in check_host()}
    assert told["processor cores"].endswith("of whose time the container may use 0.5")
    assert told["memory"] == "1.0 of 1.0 GiB available"


def test_what_gpu_rates_depend_on_is_recorded(monkeypatch):
    gpu = types.SimpleNamespace(
        **{"platform": "gpu", "id": 3, "local_hardware_id": 0, "device_kind": "NVIDIA H100"},
        process_index=0,
    )
    fake_nvml.install(monkeypatch, fake_nvml.Nvml([fake_nvml.Board()]), fake_nvml.Cuda([0x0F]))
    plugin = types.SimpleNamespace(
        cuda_runtime_get_version=lambda: 13050,
        cudnn_get_version=lambda: 91201,
        cublas_get_version=lambda: (_ for _ in ()).throw(RuntimeError("not there")),
    )
    monkeypatch.setattr("jax._src.lib.cuda_versions", plugin)
    elsewhere = describe_environment([gpu])  # a target's device is not here
    assert "boards" not in elsewhere and elsewhere["versions"]["cuDNN"] == "9.12.1"
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(environment, "nvidia_driver", lambda: None)  # as in gVisor
    monkeypatch.setattr(environment, "ask_nvml", lambda: Accelerators("cuda", 1, "580.65"))
    recorded = msgspec.convert(describe_environment([gpu]), Environment)
    assert {"CUDA": "13.5", "cuDNN": "9.12.1"}.items() <= recorded["versions"].items()
    assert "cuBLAS" not in recorded["versions"] and recorded["driver"] == "580.65"
    [board] = recorded["boards"]
    assert board["device"] == "gpu3" and board["power_limit_w"] == 400


def test_a_cpu_has_no_boards_and_no_cuda(monkeypatch):
    monkeypatch.setattr("jax._src.lib.cuda_versions", None)
    recorded = describe_environment(jax.devices())
    assert "boards" not in recorded and not {"CUDA", "cuDNN", "NCCL"} & {*recorded["versions"]}
    assert cuda_versions() == {}


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("import a_package_that_is_not_there", "pip install a_package_that_is_not_there"),
        ("raise RuntimeError('gencode 6.31.1 runtime 5.29.5')", "protobuf"),
    ],
)
def test_tfds_that_is_not_complete_is_said_in_one_line(
    monkeypatch, tmp_path, caplog, package, told
):
    """TFDS logs an error of its imports, and goes on without its functions."""
    folder = tmp_path / "tensorflow_datasets"
    folder.mkdir()
    (folder / "public_api.py").write_text(package)
    (folder / "__init__.py").write_text(
        "from absl import logging\ntry:\n    from tensorflow_datasets import public_api\n"
        "except Exception as error:\n    logging.exception(error)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    others = {name: m for name, m in sys.modules.items() if "tensorflow_datasets" not in name}
    with mock.patch.dict(sys.modules, others, clear=True):
        with pytest.raises(
            BadInput, match=r"cannot be imported: \w+Error: .*; pip install"
        ) as caught:
            import_tfds()
        [line] = check_data_sets()
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert (line.status, line.advice) == ("warning", str(caught.value).rpartition("; ")[2])
    assert caplog.records == []


@pytest.mark.parametrize(
    ("folders", "total", "free"),
    [
        ({".": {"memory.max": "max", "memory.current": 9 * GIB}}, 64, 48),
        ({".": {"memory.max": 8 * GIB, "memory.current": 6 * GIB}}, 8, 2),
        (
            {
                ".": {
                    "memory.max": 8 * GIB,
                    "memory.current": 6 * GIB,
                    "memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}\nactive_file {3 * GIB}",
                }
            },
            8,
            6,
        ),
        (
            {
                "memory": {
                    "memory.limit_in_bytes": 8 * GIB,
                    "memory.usage_in_bytes": 6 * GIB,
                    "memory.stat": f"inactive_file 0\nactive_file 0\ntotal_active_file {4 * GIB}",
                }
            },
            8,
            6,
        ),
        ({".": {"memory.high": 4 * GIB, "memory.max": 8 * GIB, "memory.current": GIB}}, 4, 3),
        ({".": {"memory.max": 8 * GIB, "memory.current": 9 * GIB}}, 8, 0),
        ({"job": {"memory.max": 2 * GIB, "memory.current": GIB}, "job/step": {}}, 2, 1),
        ({"memory": {"memory.limit_in_bytes": 4 * GIB, "memory.usage_in_bytes": GIB}}, 4, 3),
        ({"memory": {"memory.limit_in_bytes": 9223372036854771712}}, 64, 48),
        ({".": {"memory.max": 56 * GIB, "memory.current": 0}}, 56, 48),
    ],
)
def test_memory_is_that_of_the_container(root, folders, total, free):
    root("0::/job/step\n", **folders)
    assert host_memory_bytes() == (total * GIB, free * GIB)


def test_a_data_set_must_fit_the_container(root):
    root("0::/\n", **{".": {"memory.max": GIB, "memory.current": 0}})
    refusal(check_fits_in_memory, "images", GIB, told="of the 1.0 GiB of free memory")


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files cannot be forgotten here")
def test_storage_is_counted_and_the_page_cache_is_not(tmp_path):
    path = tmp_path / "file"
    read_bytes = []
    with open(path, "w+b") as file:
        file.write(b"x" * 2**22)
        os.fsync(file.fileno())  # what is not on the disk yet cannot be forgotten
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(2):
            before = system.storage_read_bytes()
            file.seek(0)
            file.read()
            read_bytes.append(system.storage_read_bytes() - before)
    if not read_bytes[0]:
        pytest.skip("this file system is not counted, or is memory itself")
    # Not exactly: this process may load code of its own meanwhile.
    assert read_bytes[1] < 2**21 < read_bytes[0]
