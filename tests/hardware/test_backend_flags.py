"""The flags that were measured to help are added, and only where they do no harm."""

import os

import jax
import pytest
from jax._src import xla_bridge

from jaxbench.hardware import backend_flags
from jaxbench.hardware.backend_flags import add_backend_flags, load_backend_flags
from jaxbench.xla.variables import decisive_variables, relevant_variables

NAME = "--xla_cpu_experimental_ynn_fusion_type"


@pytest.fixture
def before_devices(monkeypatch):
    """A process whose JAX has no devices yet, with jaxlib 0.10.2 and no plugin."""
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(backend_flags, "installed_plugin", lambda platform: None)
    monkeypatch.setattr(backend_flags.importlib.metadata, "version", lambda name: "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    return monkeypatch


def test_they_stand_before_the_users_own(before_devices):
    (added,) = add_backend_flags()
    assert added.startswith(f"{NAME}=") and os.environ["XLA_FLAGS"] == f"{added} --xla_a=1"
    assert add_backend_flags() == []  # a child process has them already
    # A sweep knows its trials, and sets variables on other hosts, without them.
    assert decisive_variables()["XLA_FLAGS"] == "--xla_a=1"
    assert relevant_variables()["XLA_FLAGS"] == f"{added} --xla_a=1"


def test_a_users_own_value_stays(before_devices):
    before_devices.setenv("XLA_FLAGS", f"{NAME}=reduce")
    assert add_backend_flags() == [] and os.environ["XLA_FLAGS"] == f"{NAME}=reduce"


@pytest.mark.parametrize("release", ["0.1.2", "0.11.0", "1.10.2"])
def test_a_jaxlib_that_was_not_measured_gets_none(before_devices, release):
    before_devices.setattr(backend_flags.importlib.metadata, "version", lambda name: release)
    assert add_backend_flags() == []


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
def test_a_plugin_never_sees_them(before_devices, platform):
    before_devices.setattr(backend_flags, "installed_plugin", lambda asked: asked == platform)
    assert add_backend_flags() == []


def test_nothing_is_added_after_xla_has_read_its_flags(monkeypatch):
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "")
    assert add_backend_flags() == [] and os.environ["XLA_FLAGS"] == ""


def test_every_line_says_why_and_by_which_measurement():
    assert all(all(line) and line.flag.startswith("--xla_") for line in load_backend_flags())
