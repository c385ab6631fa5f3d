"""Sanity checks of a card, and the check of one that somebody hands in."""

import pytest
from msgspec.structs import replace

from jaxbench.cards.card import measured
from jaxbench.cards.check import impossible
from tests.cards import made

PEAK = made.PEAK_TFLOPS


def with_figure(part, name, **fields):
    """The part with a field of its first figure of a name changed."""
    figures = list(part.figures)
    place = next(at for at, figure in enumerate(figures) if figure.name == name)
    figures[place] = replace(figures[place], **fields)
    return replace(part, figures=tuple(figures))


def of_sensors(**values):
    """The soak, and what sensors of a device said."""
    figures = (measured(name, value, device=0) for name, value in values.items())
    part = made.soak()
    return replace(part, figures=(*part.figures, *figures))


def ceiling(name, **fields):
    """The ceilings with another figure of a name."""
    return with_figure(made.ceilings(), name, **fields)


TOO_FAST = {"value_low": 90.0, "value_high": 1.4 * PEAK}
NO_ENDS = {"value_low": None, "value_high": None}
IMPOSSIBLE = {
    "above the peak": (made.ceilings(1.4 * PEAK), "0 at least, 1286.22 at most"),
    "above the bandwidth": (made.ceilings(triad=3600.0), "3519.6 at most"),
    "MFU": (made.networks(mfu=1.1), "mfu, network resnet50"),
    "other operations": (
        with_figure(made.networks(), "flops_per_image", value=made.FLOPS - 1),
        "24535105535 is not the preset's network, 24535105536",
    ),
    "interval": (
        with_figure(made.networks(), "images_per_s", value_low=1.0, value_high=2.0),
        "10000 (1 to 2) cannot be",
    ),
    "negative": (ceiling("h2d_gb_per_s", value=-1.0, **NO_ENDS), "-1 (-1 to -1) cannot be"),
    "an end above the peak": (
        with_figure(made.ceilings(100.0), "matmul_bf16_tflops", **TOO_FAST),
        "100 (90 to 1385.16) cannot be",
    ),
    "to the host": (ceiling("h2d_gb_per_s", value=70.0, **NO_ENDS), "66.15 at most"),
    "a pair's link": (
        with_figure(made.collectives(), "pair_gb_per_s", value=500.0),
        "472.5 at most",
    ),
    "a call": (ceiling("dispatch_latency_s", value=1e-14, **NO_ENDS), "2e-07 at least"),
    "power of a board": (of_sensors(power_mean_w=1100.0), "1050 at most"),
    "int8": (
        replace(made.ceilings(), figures=(measured("matmul_int8_tflops", 6000.0, device=0),)),
        "0 at least, 5144.88 at most",
    ),
    # 2.5 times 700 TFLOP/s on each of 4 devices.
    "a rate that products of matrices do not reach": (
        made.networks(3e5),
        "at least, 288159 at most",
    ),
    "heat": (of_sensors(temperature_max_c=4000.0), "-20 at least, 125 at most"),
}


@pytest.mark.parametrize("part, message", IMPOSSIBLE.values(), ids=[*IMPOSSIBLE])
def test_impossible_figures(part, message):
    reasons = [*impossible(made.card(part))]
    assert any(message in line for line in reasons), reasons


@pytest.mark.parametrize("date", ["2999-01-01T00:00:00+00:00", "yesterday"])
def test_a_card_of_tomorrow_or_of_an_unknown_preset_is_named(date):
    lines = [*impossible(made.card(created_at=date, preset="standard-9"))]
    assert any("which is in the future or no time" in line for line in lines)
    assert "preset 'standard-9': this jaxbench has standard-1, cpu-1" in lines


def cpu(tflops, cores):
    figures = (measured("matmul_fp32_tflops", tflops, device=0),)
    card = made.card(replace(made.ceilings(), figures=figures), kind="cpu", backend="cpu")
    card.environment["cpu_cores"] = cores
    return [line for line in impossible(card) if line.startswith("matmul")]


def test_a_processor_has_a_bound_by_its_cores():
    # Two cores of 2048 operations in each of 6.5e9 cycles.
    assert not cpu(26.0, 2)
    [line] = cpu(27.0, 2)
    assert "26.624 at most" in line
    assert not cpu(1000.0, None)


def test_margins_leave_room_for_what_can_be():
    fast = made.ceilings(1.2 * PEAK, 3352 * 1.03)
    assert [*impossible(made.card(fast, made.networks(matmul=1.2 * PEAK)))] == []
