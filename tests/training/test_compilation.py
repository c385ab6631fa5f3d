"""Where and how programs are compiled, and what their compilers do not report."""

import os
import signal
import threading
from unittest import mock

import jax
import numpy as np
import pytest

from jaxbench.parallel.mesh import host_device
from jaxbench.training import compilation
from jaxbench.training.compilation import compile_step
from tests.conftest import MICRO, program_of, run_json


@pytest.mark.parametrize("fields", [{}, {"replicas": "independent"}])
def test_parameters_are_drawn_on_the_host_whatever_the_default_device(fields):
    program = program_of(MICRO, num_devices=2, **fields)
    with jax.default_device(jax.devices()[5]):  # stands for an accelerator
        drawn, placed = program.initial_state(), program.place_train_state()
        # As a script compiles it ahead.
        compiled = program.init.lower(np.uint32(0)).compile()
    for leaf in jax.tree.leaves((drawn, compiled(np.uint32(0)))):
        assert leaf.devices() == {host_device()} == {jax.devices()[0]}
    for leaf in jax.tree.leaves(placed):
        assert leaf.devices() == {*program.network.mesh.devices}


def test_without_a_cpu_device_parameters_are_drawn_on_the_default_one(monkeypatch):
    gpu = mock.Mock()
    monkeypatch.setattr(jax, "local_devices", mock.Mock(side_effect=[RuntimeError, [gpu]]))
    assert host_device() is gpu


def test_what_a_backend_does_not_report_is_missing_from_the_record():
    silent = mock.Mock(side_effect=NotImplementedError)
    compiled = mock.Mock(memory_analysis=silent, cost_analysis=silent, as_text=silent)
    step = mock.Mock()
    step.lower.return_value.compile.return_value = compiled
    record = compile_step("train_step", step)
    assert record.memory is record.xla_flops_per_device is record.collectives is None


def test_sigterm_ends_a_run_while_xla_compiles_for_a_gpu(run_cli, monkeypatch, tmp_path):
    is_compiled = threading.Event()

    def compile_long():
        # Python runs no handler while the main thread is in XLA.
        assert threading.current_thread() is not threading.main_thread()
        os.kill(os.getpid(), signal.SIGTERM)
        is_compiled.wait()
        raise SystemExit

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(compilation, "watch_cache", compile_long)
    try:
        done = run_cli(f"--experiment={MICRO}", "--workdir=run")
    finally:
        is_compiled.set()
    assert done.returncode == 143, done.stderr
    document = run_json(tmp_path / "run")
    assert (document["status"], document["reason"]) == ("preempted", "terminated (SIGTERM)")
