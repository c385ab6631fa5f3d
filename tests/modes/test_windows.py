"""Windows of steps: how they are waited for, what rates come of them."""

import math

import numpy as np
import pytest

from jaxbench.errors import Diverged
from jaxbench.modes.windows import describe_windows, falling_loss_warnings, wait_for_steps
from jaxbench.training.loss_scale import LOWEST_SCALE


def test_under_fp16_a_step_that_is_skipped_ends_nothing():
    """Of two models: one overflows, and still has scales to try; the other has none left."""
    unscaled = {"loss": np.array([8.0, np.inf]), "count": np.array([4, 4])}

    def metrics(scale):
        return unscaled | {"loss_scale": np.array([2.0**16, scale])}

    loss, images = wait_for_steps((), metrics(1.0))
    assert not np.isfinite(loss) and images == 8
    with pytest.raises(Diverged, match="every loss scale"):
        wait_for_steps((), metrics(LOWEST_SCALE))
    with pytest.raises(Diverged, match="loss is inf: rates"):
        wait_for_steps((), unscaled)


@pytest.mark.parametrize(
    ("losses", "parts"),
    [
        ([2.0, 3.0, 1.0], []),
        ([math.nan, 2.0, 1.0], []),
        ([2.0, 3.0], ["2.0000 to 3.0000"]),
        ([2.0, math.nan], ["2.0000 to nan"]),
        ([math.nan, math.inf], ["nan to inf"]),
        ([2.0], []),
    ],
)
def test_losses_that_do_not_fall_are_warned_of(losses, parts):
    warnings = falling_loss_warnings(losses)
    assert len(warnings) == len(parts) and all(map(str.__contains__, warnings, parts))


def test_the_mean_of_rates_over_equal_work_is_the_work_over_the_time():
    said = describe_windows(100, [1.0, 4.0, 1.0, 2.0, 2.0, 2.0])
    assert said["images_per_s_mean"] == pytest.approx(600 / 12)
    assert said["images_per_s"] == pytest.approx(50)
    assert said["jitter"] == pytest.approx(1.4826 * 12.5 / 50)


def test_windows_that_resemble_one_another_say_less():
    slow_then_fast = describe_windows(100, [2.0, 2.1, 2.0, 2.1, 2.0, 1.0, 1.1, 1.0, 1.1, 1.0])
    by_turns = describe_windows(100, [2.0, 1.0, 2.1, 1.1, 2.0, 1.0, 2.1, 1.1, 2.0, 1.0])
    assert slow_then_fast["autocorrelation"] > 0.7 > 0 > by_turns["autocorrelation"]
    spread, little = (one["images_per_s_standard_error"] for one in (slow_then_fast, by_turns))
    assert spread > 2 * little
