"""Memory that XLA plans, for the networks that are shipped."""

import pytest

from jaxbench.cli import registry
from jaxbench.config import Config
from tests.modes.test_memory import donated_bytes, program_of, state_bytes

NETWORKS = [name for name in registry.available() if isinstance(registry.load(name), Config)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "quickstart" else [pytest.mark.slow])
        for name in NETWORKS
    ],
)
def test_every_byte_of_the_state_is_donated(name):
    program, args = program_of(f"{name}:tiny", num_devices=2)
    assert donated_bytes(program, args) == state_bytes(program)
