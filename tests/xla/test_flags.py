"""What is no flag for XLA is refused before XLA is asked."""

import os

import pytest

from jaxbench.errors import BadInput
from jaxbench.xla.flags import add_xla_flags
from tests.conftest import MICRO


@pytest.mark.parametrize("flags", ["xla_cpu_enable_fast_math=false", "--jax_enable_x64=1"])
def test_what_cannot_be_a_flag_is_refused(flags):
    before = os.environ["XLA_FLAGS"]
    with pytest.raises(BadInput, match=f"^--xla_flags={flags}: .*must be of the form"):
        add_xla_flags(flags)
    assert os.environ["XLA_FLAGS"] == before


def test_what_is_no_flag_ends_it_in_one_line(run_cli):
    done = run_cli(f"--experiment={MICRO}", "--xla_flags=fast")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "must be of the form" in done.stderr
