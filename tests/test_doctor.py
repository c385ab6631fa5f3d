"""The doctor's lines and exit code, on machines where something is wrong."""

import json
import resource
import sys

import jax
import psutil
import pytest

from jaxbench.errors import BadInput
from jaxbench.hardware import accelerators, checks
from jaxbench.hardware.accelerators import Accelerators

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
    for usable, state in (([], "1, not used: the system shows no TPU"), (["libtpu"], "1")):
        monkeypatch.setattr(checks, "installed_plugin", lambda platform: "libtpu")
        monkeypatch.setattr(checks, "usable_plugins", lambda usable=usable: usable)
        assert {one.name: one.detail for one in checks.check_packages()}["libtpu"] == state
    versions.clear()
    assert [check.status for check in checks.check_packages()] == ["problem", "problem"]


def test_without_jax_all_else_is_told(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setitem(sys.modules, "jax", None)
    told = {check.name: check.status for check in checks.run_checks()}
    assert told["devices"] == "problem" and told["memory"] == told["Python"] == "ok"
