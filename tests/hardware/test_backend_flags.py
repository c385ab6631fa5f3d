"""What is set before JAX makes its devices: the CPU if nothing else can serve, and its flags."""

import os

import jax
import pytest
from jax._src import xla_bridge

from jaxbench.hardware import accelerators, backend_flags
from jaxbench.hardware.accelerators import usable_plugins
from jaxbench.hardware.backend_flags import (
    is_deterministic,
    name_operations,
    prepare_backend,
    start_backend,
    sums_are_right,
    wrong_sums,
)
from jaxbench.xla.variables import decisive_variables, relevant_variables
from tests.conftest import MICRO, refusal

NAME = "--xla_cpu_experimental_ynn_fusion_type"


@pytest.fixture
def before_devices(monkeypatch):
    """A process whose JAX has no devices yet, with jaxlib 0.10.2 and no plugin."""
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setattr("jaxbench.xla.flags.xla_refusal", lambda flags: None)
    monkeypatch.setattr(backend_flags, "usable_plugins", list)
    monkeypatch.setattr(backend_flags, "installed_version", lambda name: "0.10.2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", None)
    yield monkeypatch
    jax.config.update("jax_platforms", before)


def test_they_stand_before_the_users_own(before_devices):
    (added,) = prepare_backend()
    assert added.startswith(f"{NAME}=") and os.environ["XLA_FLAGS"] == f"{added} --xla_a=1"
    assert prepare_backend() == []  # a child process has them already
    # A sweep knows its trials, and sets variables on other hosts, without them.
    assert decisive_variables()["XLA_FLAGS"] == "--xla_a=1"
    assert relevant_variables()["XLA_FLAGS"] == f"{added} --xla_a=1"
    assert jax.config.jax_platforms == "cpu"


@pytest.mark.parametrize(
    ("release", "value"),
    [
        ("0.10.1", "-individual_convolution"),
        ("0.10.2", "-individual_convolution,-reduce"),
        ("0.12.0.1", "-individual_convolution"),
        *(("0.1.2", None), ("0.10.20", None), ("0.11.0", None), ("1.10.2", None)),
    ],
)
def test_each_jaxlib_gets_what_was_tried_with_it(before_devices, release, value):
    before_devices.setattr(backend_flags, "installed_version", lambda name: release)
    assert prepare_backend() == ([f"{NAME}={value}"] if value else [])


@pytest.mark.parametrize(
    ("platforms", "plugins", "behind"),
    [
        (None, ["libtpu"], None),
        # A process with an accelerator has the CPU, too, which draws the parameters.
        ("tpu", ["libtpu"], "tpu,cpu"),
        ("cuda,cpu", ["xla_cuda13"], "cuda,cpu"),
        # JAX leaves CUDA out without a GPU: the CPU must not take its place unasked.
        ("cuda", [], "cuda"),
        ("cuda", ["libtpu"], "cuda"),
        ("gpu", ["xla_cuda13"], "gpu,cpu"),
        ("cpu", ["libtpu"], "cpu"),
    ],
)
def test_an_accelerator_is_never_hidden_and_sees_no_flag(
    before_devices, platforms, plugins, behind
):
    before_devices.setattr(backend_flags, "usable_plugins", lambda: plugins)
    jax.config.update("jax_platforms", platforms)
    assert len(prepare_backend()) == (platforms == "cpu")
    assert jax.config.jax_platforms == behind


@pytest.mark.parametrize(
    ("plugins", "platforms", "flags", "is_set"),
    [
        (["xla_cuda13"], None, "", True),
        (["xla_cuda13"], "cpu", "", False),
        (["libtpu"], None, "", False),
        (["xla_cuda13"], None, "--xla_gpu_enable_command_buffer=FUSION", False),
    ],
)
def test_a_profile_on_a_gpu_names_operations(before_devices, plugins, platforms, flags, is_set):
    given = []
    before_devices.setattr(backend_flags, "usable_plugins", lambda: plugins)
    before_devices.setattr(backend_flags, "add_xla_flags", lambda text: given.append(text) or [])
    before_devices.setenv("XLA_FLAGS", flags)
    jax.config.update("jax_platforms", platforms)
    assert ("command buffers are off" in name_operations()) is is_set
    assert given == ["--xla_gpu_enable_command_buffer="] * is_set


@pytest.mark.parametrize(
    ("plugins", "platforms", "is_added"),
    [
        (["xla_cuda13"], None, True),
        (["xla_cuda13"], "cuda", True),
        (["xla_cuda13"], "cpu", False),
        (["libtpu"], None, False),
        ([], None, False),
    ],
)
def test_only_gpus_need_a_flag_to_be_deterministic(before_devices, plugins, platforms, is_added):
    before_devices.setattr(backend_flags, "usable_plugins", lambda: plugins)
    before_devices.setattr(backend_flags, "use_compile_cache", lambda *_, **__: None)
    off = "--xla_gpu_deterministic_ops=false"
    jax.config.update("jax_platforms", platforms)
    start_backend(print, xla_flags=off)
    assert not is_deterministic(os.environ["XLA_FLAGS"])
    start_backend(print, xla_flags=off, deterministic=True)
    assert is_deterministic(relevant_variables()["XLA_FLAGS"]) is is_added
    unknown = "XLA does not know --xla_gpu_deterministic_ops=true"
    before_devices.setattr("jaxbench.xla.flags.xla_refusal", lambda flags: unknown)
    before_devices.setattr(backend_flags, "check_flag_variables", lambda: None)
    before_devices.setattr("jaxbench.xla.flags.check_flag_variables", lambda: None)
    if is_added:
        refusal(start_backend, print, deterministic=True, told=f"--deterministic: this {unknown}")


@pytest.mark.parametrize(
    ("flags", "is_so"),
    [
        (None, False),
        ("--xla_gpu_deterministic_ops", True),
        ("--xla_a=1 --xla_gpu_deterministic_ops=false --xla_gpu_deterministic_ops=true", True),
        ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
    ],
)
def test_the_last_value_decides_whether_runs_are_deterministic(flags, is_so):
    assert is_deterministic(flags) is is_so


def test_nothing_is_added_after_xla_has_read_its_flags(monkeypatch):
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "")
    assert prepare_backend() == [] and os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("xla_a=1", "xla_a=1"),  # the name of a file
        ("--xla_a=1 b=2 --xla_c", "b=2"),  # what follows would be ignored
        ("–xla_a=1", "–xla_a=1"),
        ('"--xla_a=1"', '"--xla_a=1"'),
        ("--xla_a=x,--xla_b=2", "--xla_a=x,--xla_b=2"),
        ("--xla_a = 1", "="),
    ],
)
def test_what_a_backend_would_ignore_is_refused(before_devices, variable, text, word):
    before_devices.setenv(variable, text)
    line = refusal(prepare_backend, told=f"{variable}: {word!r} must be")
    assert line.endswith(f"unset {variable}") and os.environ[variable] == text


@pytest.mark.parametrize(
    "text", ["", " --xla_a\n--xla_b=1 ", "--xla_a='x y' -xla_b=", "--xla_a=-b,c --megascale_c=2"]
)
def test_what_a_backend_takes_is_not(before_devices, text):
    before_devices.setenv("XLA_FLAGS", text)
    before_devices.setenv("LIBTPU_INIT_ARGS", text)
    prepare_backend()


def test_what_xla_would_abort_at_is_refused_before_a_run_or_a_sweep(before_devices, refused):
    before_devices.setattr("jaxbench.xla.flags.xla_refusal", lambda flags: f"no {flags}")
    told = "XLA_FLAGS: no --xla_a=1; correct or unset XLA_FLAGS"
    assert refusal(prepare_backend) == told
    refused(f"--experiment={MICRO}", "--target=gpu:h100:1", "--mode=memory", told=told)
    grid = ("--grid=batch_size=8,16", "--sweepdir=sweep")
    refused(f"--experiment={MICRO}", *grid, told=told, module="jaxbench.sweep")


def test_sums_are_right_here():
    """False with jaxlib 0.10.2 without its flag."""
    assert sums_are_right()


def test_wrong_sums_are_warned_of_unless_the_flag_came_in_time(before_devices):
    needed = f"{NAME}=-individual_convolution,-reduce"
    before_devices.setattr(backend_flags, "sums_are_right", lambda: False)
    before_devices.setattr(backend_flags, "_in_time", set())
    # The words alone prove nothing: JAX may have its devices already, or a later value holds.
    before_devices.setenv("XLA_FLAGS", needed)
    [warning] = wrong_sums("cpu")
    assert "0.10.2" in warning and needed in warning and wrong_sums("gpu") == []
    before_devices.setenv("XLA_FLAGS", f"{needed} {NAME}=reduce")
    assert prepare_backend() == [] and wrong_sums("cpu")
    before_devices.setenv("XLA_FLAGS", "")
    assert prepare_backend() == [needed] and not wrong_sums("cpu")


@pytest.mark.parametrize(
    ("file", "environ", "usable"),
    [
        ("dev/null", {"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "x"}, []),
        ("dev/accel0", {}, ["libtpu"]),
        ("dev/vfio/0", {}, ["libtpu"]),
        ("sys/bus/pci/devices/0/vendor", {}, ["libtpu"]),
        ("dev/null", {"TPU_WORKER_ID": "0"}, ["libtpu"]),
        ("dev/null", {"JAX_FORCE_TPU_INIT": "1"}, ["libtpu"]),
        ("dev/nvidiactl", {}, ["xla_cuda12"]),
    ],
)
def test_whatever_hints_at_an_accelerator_keeps_its_plugin(
    monkeypatch, tmp_path, file, environ, usable
):
    monkeypatch.setattr(accelerators, "_jax_plugins", lambda: ["xla_cuda12"])
    monkeypatch.setattr(accelerators, "installed_plugin", lambda platform: "libtpu")
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("0x1ae0\n")
    monkeypatch.setattr(accelerators, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "environ", environ)
    assert usable_plugins() == usable


@pytest.mark.parametrize("flags", ["fast", "xla_cpu_enable_fast_math=false", "--jax_enable_x64=1"])
def test_what_is_no_flag_for_xla_is_refused_before_xla_is_asked(refused, flags):
    before = os.environ["XLA_FLAGS"]
    told = f"--xla_flags={flags}: "
    refused(f"--experiment={MICRO}", f"--xla_flags={flags}", told=told)
    assert os.environ["XLA_FLAGS"] == before
