"""Accelerators by the names of clouds' offers."""

import math
import re

import pytest

from jaxbench.offering import accelerators
from jaxbench.offering.accelerators import catalogue_names, parse_accelerators
from tests.conftest import refusal


def test_names_lead_to_machines_that_are_compiled_for():
    h100, eight, tpu = parse_accelerators(["h100", "A100-80GB:8", "tpu-v5e-8"])
    assert (h100.name, h100.skypilot) == ("H100:1", "H100:1")
    assert (eight.skypilot, eight.target.name) == ("A100-80GB:8", "gpu:a100:8")
    assert tpu.skypilot == "tpu-v5litepod-8:1"
    assert (tpu.target.name, tpu.target.num_devices, tpu.is_tpu) == ("tpu:v5e:2x4", 8, True)
    assert [one.folder for one in (h100, eight, tpu)] == ["h100-1", "a100-80gb-8", "tpu-v5e-8"]
    # As SkyPilot calls it.
    assert parse_accelerators(["tpu-v5litepod-8"]) == [tpu]


def test_every_row_is_a_machine_of_one_host():
    for name in accelerators._rows():
        [found] = parse_accelerators([name])
        assert found.target.num_devices <= 8
        if found.is_tpu:
            chips = math.prod(found.target.dimensions)
            # A name counts the chips of v5e and v6e, and two cores of each chip of the others.
            cores = 1 if re.search("v5e|v6e", name) else 2
            assert name.endswith(f"-{chips * cores}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "give --accelerator=NAME:N"),
        ([""], "give --accelerator=NAME:N"),
        (["H10"], "did you mean 'H100'"),
        (["tpu-v5e"], "did you mean 'tpu-v5e-"),
        (["H100:0"], "'0' must be 1 to 16 GPUs of one host"),
        (["H100:17"], "'17' must be 1 to 16"),
        (["H100:"], "'' must be 1 to 16"),
        (["tpu-v5e-8:2"], "'2' must be 1, a TPU's name holds its size"),
        (["H100", "h100:1"], "names H100:1 twice"),
    ],
)
def test_accelerator_that_is_none_is_refused(given, told):
    refusal(parse_accelerators, given, told=told)


def test_a_catalogue_calls_devices_by_other_names():
    assert catalogue_names("NVIDIA H100 80GB HBM3", 8) == {"h100"}
    assert catalogue_names("A100-SXM4-80GB", 1) == {"a100-80gb"}
    assert catalogue_names("TPU v5 lite", 4) == {"tpu-v5e-4", "tpu-v5litepod-4"}
    assert catalogue_names("TPU v5 lite", 2) == catalogue_names("cpu", 1) == frozenset()
