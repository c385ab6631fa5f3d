"""Flags for XLA, read by an XLA of their own: known ones reach it, unknown ones do not end it."""

import json
import os

import pytest
from jax._src import xla_bridge

from jaxbench.errors import BadInput
from jaxbench.xla.flags import add_xla_flags
from tests.conftest import MICRO

KNOWN = "--xla_cpu_enable_fast_math=false"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")


def test_unknown_flags_are_left_out_and_the_environments_stay():
    unknown = ["--xla_no_such_flag=1", "--xla_nor_this"]
    assert add_xla_flags(f"{unknown[0]} {KNOWN} {unknown[1]}") == unknown
    assert os.environ["XLA_FLAGS"] == f"--xla_force_host_platform_device_count=2 {KNOWN}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            f"{KNOWN} --xla_no_such_flag=1 --xla_backend_optimization_level=high",
            "value high for flag xla_backend_optimization_level",
        ),
        # XLA says nothing of this one.
        ("--xla_cpu_opt_preset=quick", "does not take --xla_cpu_opt_preset=quick"),
    ],
)
def test_what_cannot_be_a_flag_is_said(given, said):
    before = os.environ["XLA_FLAGS"]
    with pytest.raises(BadInput, match=f"^--xla_flags={given}: .*{said}"):
        add_xla_flags(given)
    assert os.environ["XLA_FLAGS"] == before


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("--xla_no_such_flag=1", "XLA does not know --xla_no_such_flag=1; correct or unset XLA_"),
        (f"{KNOWN}maybe", ""),
        (f"{KNOWN} words", ""),
    ],
)
def test_a_wrong_variable_ends_a_run_in_one_line(run_main, tmp_path, value, said):
    done = run_main(f"--experiment={MICRO}", "--workdir=run", env={"XLA_FLAGS": value})
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert (
        done.stderr.startswith(f"jaxbench: XLA_FLAGS: {said}") and not (tmp_path / "run").exists()
    )


def test_the_entry_point_hands_them_on(run_main):
    done = run_main(
        f"--experiment={MICRO}",
        "--experiment.num_devices=0",
        "--mode=describe",
        "--json",
        "--xla_flags=--xla_no_such_flag=1 --xla_force_host_platform_device_count=4",
    )
    assert done.returncode == 0, done.stderr
    assert "XLA does not know --xla_no_such_flag=1: left out" in done.stderr
    assert len(json.loads(done.stdout)["devices"]) == 4
