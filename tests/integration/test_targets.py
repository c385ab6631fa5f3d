"""--target with a real compiler: libtpu, on a machine without a TPU."""

import json
import os
import subprocess

import pytest

from tests.conftest import ROOT

PYTHON = os.environ.get("JAXBENCH_TEST_TPU")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="JAXBENCH_TEST_TPU names no Python that has jaxbench[tpu]"
)


def describe(*args):
    command = [PYTHON, "-m", "jaxbench.main", "--mode=describe", "--json", *args]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_step_compiles_for_tpus_that_are_not_here():
    """8 cores of TPU v2 and 4 of v5e: one all-reduce of the gradients, the state donated whole."""
    records = describe("--experiment=quickstart:tiny", "--target=tpu:v2:2x2,tpu:v5e:2x2")
    assert [record["num_devices"] for record in records] == [8, 4]
    for record in records:
        assert record["fits"] and record["state_donated"] and record["origin"] == "compiled"
        assert record["compiler"].startswith("libtpu ")
        [[name, reduced]] = record["collectives"].items()
        assert (name, reduced["count"]) == ("all-reduce", 1)
        ceiling = record["ceiling"]
        assert ceiling["origin"] == "predicted" and 1e5 < ceiling["images_per_s"] < 1e9
        assert set(ceiling["least_s"]) == {"compute", "memory", "links"}


def test_the_compiler_refuses_a_batch_that_does_not_fit():
    args = ("--experiment=cnn10", "--experiment.batch_size=131072", "--experiment.precision=bf16")
    [record] = describe(*args, "--target=tpu:v2:2x2")
    assert not record["fits"] and "exceeds available" in record["refusal"]
