"""Accelerators that the system shows and JAX does not use, on made-up systems."""

import pathlib

import pytest

from jaxbench.hardware import accelerators
from jaxbench.hardware.accelerators import (
    Accelerators,
    advice,
    check_platforms,
    extra_for,
    find_accelerators,
    pip_command,
    unused_accelerators,
)
from jaxbench.modes import runner
from tests.conftest import MICRO, refusal, run_json

OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
TPU = {"vendor": "0x1ae0\n", "class": "0x120000\n"}
NETWORK = {"vendor": "0x1ae0\n", "class": "0x020000\n"}
GPU = ("dev/nvidia0", "dev/nvidiactl")


def no_nvml():
    return Accelerators("cuda", 0)


def system(root: pathlib.Path, *nodes, driver=None, pci=()):
    files = dict.fromkeys(nodes, "")
    if driver:
        files["proc/driver/nvidia/version"] = OPEN_DRIVER.format(driver)
    for number, device in enumerate(pci):
        files |= {f"sys/bus/pci/devices/{number}/{name}": text for name, text in device.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes up a machine; no variable of this one chooses devices."""
    for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def make(*nodes, nvml=no_nvml, **options):
        root = system(tmp_path / "system", *nodes, **options)
        monkeypatch.setattr(accelerators, "_ROOT", root)
        monkeypatch.setattr(accelerators, "ask_nvml", nvml)

    return make


V100 = Accelerators("cuda", 2, "535.104.05", (7, 0))
WSL = Accelerators("cuda", 1, "581.15", (8, 9))


@pytest.mark.parametrize(
    ("nodes", "options", "found"),
    [
        ((), {}, []),
        # A container without GPUs sees its host's driver.
        ((), {"driver": "580.65.06"}, []),
        (GPU, {"driver": "580.65.06"}, [Accelerators("cuda", 1, "580.65.06")]),
        ((*GPU, "dev/nvidia1"), {"nvml": lambda: V100}, [V100]),
        # WSL has this for graphics of any maker.
        (("dev/dxg",), {}, []),
        (("dev/dxg",), {"nvml": lambda: WSL}, [WSL]),
        (("dev/accel0", "dev/accel1"), {"pci": (TPU, TPU, NETWORK)}, [Accelerators("tpu", 2)]),
        (("dev/vfio/0", "dev/vfio/vfio"), {"pci": (TPU,)}, [Accelerators("tpu", 1)]),
        # A virtual machine of Google Cloud without a TPU; another maker's accelerator.
        (("dev/vfio/0",), {"pci": (NETWORK,)}, []),
        (("dev/vfio/vfio",), {"pci": (TPU,)}, []),
        (("dev/accel/accel0",), {"pci": ({"vendor": "0x8086\n"},)}, []),
    ],
)
def test_accelerators_that_the_system_shows_are_found(machine, nodes, options, found):
    machine(*nodes, **options)
    assert find_accelerators() == found


@pytest.mark.parametrize(
    ("driver", "capability", "extra"),
    [
        (None, None, "cuda13"),
        ("580", (9, 0), "cuda13"),
        ("580.65.06", (7, 0), "cuda12"),  # a V100
        ("575.57.08", (9, 0), "cuda12"),
        ("525.60.13", None, "cuda12"),
        ("525.53", None, None),
        ("470.256.02", (8, 0), None),
        ("580.65.06", (3, 7), None),
    ],
)
def test_the_driver_and_the_gpu_choose_the_extra(driver, capability, extra):
    found = Accelerators("cuda", 1, driver, capability)
    assert extra_for(found) == extra
    assert ("pip install" in advice(found)) == (extra is not None)
    assert extra or "needs an NVIDIA driver of 525.60.13" in advice(found)


def test_pip_installs_from_the_checkout_or_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(accelerators._CHECKOUT)
    assert pip_command("tpu") == "pip install -e '.[tpu]'"
    monkeypatch.chdir(tmp_path)
    assert pip_command("tpu") == f"pip install -e '{accelerators._CHECKOUT}[tpu]'"
    monkeypatch.setattr(accelerators, "_CHECKOUT", tmp_path)
    assert pip_command("tpu") == "pip install 'jaxbench[tpu]'"


def test_a_plugin_that_is_installed_is_not_installed_again(monkeypatch):
    monkeypatch.setattr(accelerators, "installed_plugin", lambda _: "jax_plugins.xla_cuda13")
    assert "see jaxbench doctor" in advice(Accelerators("cuda", 1, "580.65.06"))
    # It needs a newer driver.
    assert "cuda12" in advice(Accelerators("cuda", 1, "575.57.08"))


@pytest.mark.parametrize(
    "environ",
    [
        {"JAX_PLATFORMS": "cpu"},
        {"JAX_NUM_CPU_DEVICES": "8"},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "-1"},
    ],
)
def test_who_chose_the_cpu_is_not_warned(machine, monkeypatch, environ):
    machine(*GPU, driver="580.65.06")
    assert unused_accelerators("gpu") == []
    [warning] = unused_accelerators("cpu")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert unused_accelerators("cpu") == []
    assert warning.startswith("JAX uses the CPU, but the machine has 1 NVIDIA GPU (driver 580")
    assert "[cuda13]'" in warning


def test_a_run_warns_and_records_it(run_cli, tmp_path, monkeypatch):
    gpu = Accelerators("cuda", 1, "535.104.05")
    text = f"JAX uses the CPU, but the machine has {gpu}: {advice(gpu)}"
    monkeypatch.setattr(runner, "unused_accelerators", lambda platform: [text])
    done = run_cli(f"--experiment={MICRO}", "--mode=memory", "--workdir=run")
    assert done.returncode == 0, done.stderr
    warning, *_ = run_json(tmp_path / "run")["summary"]["warnings"]
    assert "1 NVIDIA GPU (driver 535.104.05): pip install" in warning and "[cuda12]'" in warning
    # At the start, too.
    start = done.stdout.partition("records in")[0]
    assert "".join(f"warning: {warning}".split()) in "".join(start.split())


@pytest.mark.parametrize(
    ("platforms", "told"),
    [
        ("cuda", "=cuda: JAX has no plugin for NVIDIA GPUs; the machine has 1 NVIDIA GPU"),
        ("gpu", "JAX_PLATFORMS=gpu: JAX has no plugin"),
        ("cuda,cpu", "JAX_PLATFORMS=cuda,cpu: JAX has no plugin"),
        ("tpu", "=tpu: JAX has no plugin for TPUs; the machine has no TPU"),
    ],
)
def test_a_platform_without_its_plugin_is_refused(machine, monkeypatch, platforms, told):
    machine(*GPU, driver="580.65.06")
    monkeypatch.setattr(accelerators, "installed_plugin", lambda _: None)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    line = refusal(check_platforms, told=told)
    assert f"[{'tpu' if platforms == 'tpu' else 'cuda13'}]'" in line
    for other in ("", "cpu", "tpu,cpu", "METAL"):
        monkeypatch.setenv("JAX_PLATFORMS", other)
        check_platforms()
    monkeypatch.setattr(accelerators, "installed_plugin", lambda _: "the plugin")
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    check_platforms()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("CPU", "cpu"), ("cpu ", "cpu"), ("cpu,", "cpu"), ("'tpu, cpu'", "tpu,cpu"), ("GPU", "gpu")],
)
def test_a_platform_spelled_as_jax_does_not_is_refused(monkeypatch, given, meant):
    monkeypatch.setenv("JAX_PLATFORMS", given)
    told = f"JAX_PLATFORMS={given}: JAX does not know this spelling: write {meant!r}"
    assert refusal(check_platforms) == told
    monkeypatch.setattr(accelerators, "installed_plugin", lambda _: "the plugin")
    monkeypatch.setenv("JAX_PLATFORMS", meant)
    check_platforms()
