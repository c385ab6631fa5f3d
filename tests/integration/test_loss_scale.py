"""fp16 where it matters: a network learns as it does in fp32."""

import pytest

from tests.conftest import step_losses


@pytest.mark.slow
def test_quickstart_learns_as_in_fp32(train):
    result = train("quickstart", precision="fp16", num_devices=1)
    assert result.summary["eval_top1"] >= 0.97
    assert step_losses(result)[-1] < 0.1
