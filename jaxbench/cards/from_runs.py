"""The metrics that a card takes from its runs."""

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxbench.analysis.rate import Estimate, estimate
from jaxbench.analysis.statistics import change_of_median
from jaxbench.cards.card import Figure, measured
from jaxbench.cards.figures import share_of_measured
from jaxbench.hardware.telemetry.summary import THROTTLING
from jaxbench.schema import CompileRecord, ThroughputRecord

SOAK = "runs/soak"
# What the names of a card's metrics are in telemetry.
SENSORS = {"temperature_max_c": "temperature_c_max", "power_mean_w": "power_w_mean"}
_ENERGY = {
    "energy_j_per_image": "joules_per_image",
    "energy_longest_gap_s": "energy_longest_gap_s",
    "energy_covered_share": "energy_covered",
}
_STEP_TIME = ("step_per_image_s", "step_fixed_s")


def network_figures(
    run: Any,
    telemetry: Mapping[str, Any] | None,
    network: str,
    folder: str,
    ceilings: Iterable[Figure],
    backend: str,
) -> list[Figure]:
    """Return the metrics of a throughput run; unknown ones are excluded.

    Args:
      run: its records; rates are computed from their windows.
      telemetry: of its summary. Without enough samples there is no energy.
      ceilings: metrics with the card's rates of matrix products.
    """
    [step] = [one for one in run.of_kind(ThroughputRecord) if one.stage == "train_step"]
    [compiled] = [one for one in run.of_kind(CompileRecord) if one.function == "train_step"]
    images = step.images_per_step * step.steps_per_window
    rate = estimate([images / window_s for window_s in step.windows_s])
    flops_per_s = rate.value * step.flops_per_image / step.num_devices
    values: dict[str, Any] = {
        "images_per_s": rate,
        "flops_per_image": step.flops_per_image,
        "mfu": flops_per_s / step.peak["flops_per_s"] if step.peak else None,
        "measured_peak_share": share_of_measured(
            ceilings,
            step.peak["arithmetic"] if step.peak else None,
            step.precision,
            flops_per_s,
            step.num_devices,
            backend,
        ),
        "compile_cold_s": compiled.cold_compile_s,
        "compile_warm_s": compiled.warm_compile_s,
    }
    if telemetry and telemetry.get("energy_window_long_enough"):
        values |= {name: telemetry.get(key) for name, key in _ENERGY.items()}
    labels: Any = {"network": network, "precision": step.precision, "batch": step.batch_size}
    return [
        measured(name, value, run=folder, **labels)
        for name, value in values.items()
        if value is not None
    ]


def soak_figures(run: Any, telemetry: Mapping[str, Any] | None) -> Iterator[Figure]:
    """Yield the drift of the windows, and the readings of the sensors of each device."""
    [step] = run.of_kind(ThroughputRecord)
    rates = [1 / window_s for window_s in step.windows_s]
    third = len(rates) // 3
    change = change_of_median(rates[:third], rates[len(rates) - third :])
    percent, low, high = (100 * share for share in change)
    yield measured("drift_percent", Estimate(percent, low, high), run=SOAK)
    for device, sensors in (telemetry or {}).get("devices", {}).items():
        if sensors["kind"] == "host":
            continue
        labels: dict[str, Any] = {"device": device_id(device), "run": SOAK}
        for name, key in SENSORS.items():
            if key in sensors:
                yield measured(name, sensors[key], **labels)
        if "throttle_reasons" in sensors:
            for reason in THROTTLING:
                fraction = sensors["throttle_reasons"].get(reason, 0.0)
                yield measured("throttled_share", fraction, reason=reason, **labels)


def device_id(name: str) -> int:
    """Return the id of a device from its name in telemetry, such as gpu0."""
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))


def step_time_figures(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Yield a and c of t(B) = a + c B for each network: the time of a step by its batch.

    a is launches and the host, c the time of an image, for networks that ran with two batches. The
    ends are those of both intervals, the farthest apart.
    """
    steps: dict[tuple, dict[int, tuple[float, float, float]]] = collections.defaultdict(dict)
    for one in figures:
        if one.name == "images_per_s":
            batch, (low, high) = int(one.labels["batch"]), one.ends
            network = one.labels["network"], one.labels["precision"]
            steps[network][batch] = batch / one.value, batch / high, batch / low
    for (network, precision), by_batch in steps.items():
        if len(by_batch) < 2:
            continue
        (b, (t, low, high)), (b2, (t2, low2, high2)) = sorted(by_batch.items())
        image_s = [(y - x) / (b2 - b) for x, y in ((t, t2), (high, low2), (low, high2))]
        fixed_s = [(b2 * x - b * y) / (b2 - b) for x, y in ((t, t2), (low, high2), (high, low2))]
        for name, (time_s, low, high) in zip(_STEP_TIME, (image_s, fixed_s), strict=True):
            of = Estimate(time_s, low, high)
            yield measured(name, of, network=network, precision=precision)
