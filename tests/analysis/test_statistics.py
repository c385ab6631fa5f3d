"""Statistics: medians and their intervals, of samples that resemble one another too."""

import math
import random
import statistics

import pytest

from jaxbench.analysis.statistics import (
    autocorrelation,
    dependent,
    effective_size,
    held_up,
    median_interval,
)


def autoregressive(generator, count, r):
    """Draws samples of mean 0 and deviation 1 of which each resembles the last one."""
    samples = [generator.gauss(0, 1)]
    while len(samples) < count:
        samples.append(r * samples[-1] + math.sqrt(1 - r * r) * generator.gauss(0, 1))
    return samples


def test_the_interval_of_a_median():
    samples = [float(value) for value in range(1, 52)]
    random.Random(1).shuffle(samples)
    assert autocorrelation(samples) < 0
    # Order statistics 19 and 33 of 51: 25 +- 7 places, 95 %.
    assert median_interval(samples) == (26, 19, 33)
    assert median_interval([3.0, 1.0, 2.0]) == (2, 1, 3)


@pytest.mark.parametrize("count", range(6, 51))
def test_the_interval_of_independent_samples_misses_as_often_on_both_sides(count):
    """The median of independent samples is above k of them as often as a coin shows k heads."""
    # In turns high and low, so that the autocorrelation widens nothing.
    samples = [float(number if number % 2 else -number) for number in range(1, count + 1)]
    _, low, high = median_interval(samples)
    below, above = sum(one < low for one in samples), sum(one > high for one in samples)
    assert below == above
    missed = 2 * sum(math.comb(count, heads) for heads in range(below + 1)) / 2**count
    assert missed <= 0.05


@pytest.mark.parametrize("count", [30, 60])
@pytest.mark.parametrize("r", [0.0, 0.3, 0.5, 0.8])
def test_the_interval_holds_the_median_of_windows_that_resemble_one_another(r, count):
    generator, held, times = random.Random(7), 0, 1500
    for _ in range(times):
        _, low, high = median_interval(autoregressive(generator, count, r))
        held += low <= 0 <= high
    assert held / times >= 0.94


def test_independent_windows_lose_little():
    """A widening by chance must not cost much."""
    generator, sizes = random.Random(3), []
    for _ in range(300):
        sizes.append(effective_size(autoregressive(generator, 30, 0.0)))
    assert statistics.median(sizes) > 25


@pytest.mark.parametrize("r", [-0.5, 0.0, 0.5, 0.8])
def test_the_autocorrelation_has_no_bias(r):
    generator = random.Random(5)
    found = [autocorrelation(autoregressive(generator, 40, r)) for _ in range(500)]
    assert statistics.fmean(found) == pytest.approx(r, abs=0.05)


def test_an_autocorrelation_that_says_nothing():
    assert autocorrelation([1.0, 2.0] * 3) is None
    assert autocorrelation([1.0] * 20) is None
    assert autocorrelation([1e-200 * n for n in range(20)]) is None
    assert effective_size([1.0] * 20) == 20
    assert effective_size(list(map(float, range(20)))) == 1
    assert effective_size([1.0, 2.0] * 10) == 20


def test_windows_that_resemble_one_another_are_told():
    generator = random.Random(2)
    [told] = dependent("train_step: windows", autoregressive(generator, 40, 0.8))
    assert told.startswith("train_step: windows are not independent (autocorrelation 0.")
    assert dependent("windows", [1.0, 2.0] * 10) == []
    # Of fewer than six no interval is shown.
    assert dependent("windows", [1.0] * 5) == []
    for count in (6, 7):
        [told] = dependent("windows", autoregressive(generator, count, 0.0))
        assert told.startswith(f"windows are too few ({count}) to check")


@pytest.mark.parametrize("count", [8, 9, 11, 16, 30, 50])
def test_independent_windows_are_rarely_called_dependent(count):
    generator = random.Random(2)
    said = [bool(dependent("windows", autoregressive(generator, count, 0.0))) for _ in range(2000)]
    assert sum(said) / len(said) == pytest.approx(0.05, abs=0.015)


def test_what_was_held_up_is_named():
    times = {epoch: 1.0 + 0.1 * (epoch % 3) for epoch in range(2, 12)}
    assert held_up("epoch", times) == []
    [told] = held_up("epoch", times | {7: 9.0})
    assert told.startswith("epoch 7 (9.00 s) took more than twice the median of 1.15 s")
    [told] = held_up("epoch", dict.fromkeys(range(20), 1.0) | dict.fromkeys(range(7), 3.0))
    assert "4 (3.00 s) and 2 more took" in told
    # Noise of very short windows is none, nor is one of two.
    assert held_up("window", dict.fromkeys(range(9), 0.01) | {4: 0.4}) == []
    assert held_up("window", {1: 1.0, 2: 9.0}) == []
