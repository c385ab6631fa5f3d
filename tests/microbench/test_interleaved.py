"""Windows that take turns: how long they are, when a warm-up ends."""

import itertools
import math

import pytest

from jaxbench.errors import BadInput
from jaxbench.microbench.interleaved import (
    WarmUp,
    check_window_s,
    in_turn,
    unsettled_warnings,
    warm_up,
)


@pytest.mark.parametrize("window_s", [math.inf, math.nan, 0.0])
def test_a_window_must_end(window_s):
    with pytest.raises(BadInput, match="--window_s="):
        check_window_s(window_s)


def test_a_warm_up_ends_when_windows_agree_or_gives_up():
    def warm(seconds_a_call):
        return warm_up(lambda calls: calls * next(seconds_a_call), window_s=1.0, rounds=11)

    steady = warm(itertools.chain([1.0, 0.5, 0.1, 0.1, 0.101], itertools.repeat(0.1)))
    assert steady.settled and steady.calls_per_window < steady.calls
    assert not warm(itertools.cycle([0.1, 0.11])).settled


def test_stages_that_did_not_stabilise_are_told():
    found = {"a": (WarmUp(2, 8, settled=True), 8), "b": (WarmUp(2, 9, settled=False), 27)}
    [warning] = unsettled_warnings(found)
    assert "did not stabilise during warm-up" in warning and warning.endswith(": b (27)")
    assert unsettled_warnings({"a": found["a"]}) == []


def test_stages_take_turns_forwards_then_backwards():
    assert [in_turn("abc", number) for number in range(3)] == ["abc", "cba", "abc"]
