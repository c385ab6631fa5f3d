"""Figures of a card that are those of a run directory: made from it, and made again to check."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import change_of_median
from jaxbench.cards.card import Figure, measured
from jaxbench.hardware.telemetry.summary import THROTTLING
from jaxbench.records.reader import RunRecords
from jaxbench.records.schema import CompileRecord, ThroughputRecord

_SENSORS = {"temperature_max_c": "temperature_c_max", "power_mean_w": "power_w_mean"}


def figures_of_run(run: RunRecords, name: str) -> Iterator[Figure]:
    """Yield all figures that a throughput run of a card may be behind, but for its peak's share.

    Args:
      run: the run directory.
      name: of its folder below the card's.
    """
    config, summary = run.document["config"], run.document["summary"]
    labels = {"network": config["name"], "precision": config["precision"]}
    labels["batch"] = config["batch_size"]
    [step] = [one for one in run.of_kind(ThroughputRecord) if one["stage"] == "train_step"]
    [compiled] = [one for one in run.of_kind(CompileRecord) if one["function"] == "train_step"]
    yield from network_figures(step, compiled, summary, name, labels)
    yield from soak_figures(step, summary, name)


def network_figures(
    step: Mapping[str, Any],
    compiled: Mapping[str, Any],
    summary: Mapping[str, Any],
    run: str,
    labels: Mapping[str, str | int],
) -> Iterator[Figure]:
    """Yield the figures of a network's run; those that are not known are left out."""
    interval = (step["images_per_s_low"], step["images_per_s_high"])
    yield measured("images_per_s", step["images_per_s"], interval, run=run, **labels)
    values = {
        "flops_per_image": step.get("flops_per_image"),
        "mfu": step.get("mfu"),
        "energy_j_per_image": energy_j_per_image(summary),
        "compile_cold_s": compiled.cold_compile_s,
        "compile_warm_s": compiled.warm_compile_s,
    }
    for name, value in values.items():
        if value is not None:
            yield measured(name, value, run=run, **labels)


def energy_j_per_image(summary: Mapping[str, Any]) -> float | None:
    """Return the energy of an image by a run's summary; None if the windows were too short."""
    telemetry = summary.telemetry or {}
    return telemetry["joules_per_image"] if telemetry.get("energy_window_long_enough") else None


def soak_figures(step: Mapping[str, Any], summary: Mapping[str, Any], run: str) -> Iterator[Figure]:
    """Yield the drift of the windows, and what the sensors of each device said."""
    if len(step["windows_s"]) >= 3:
        yield drift_figure(step["windows_s"], run)
    telemetry = summary.telemetry or {}
    for device, sensors in telemetry.get("devices", {}).items():
        if sensors["kind"] != "host":
            # The id stands behind the kind, as in gpu0.
            of = {"device": int(device.lstrip("abcdefghijklmnopqrstuvwxyz")), "run": run}
            yield from _sensor_figures(sensors, of)


def drift_figure(windows_s: Sequence[float], run: str) -> Figure:
    """Return how much faster the last third of equal windows was than the first."""
    third = len(windows_s) // 3
    rates = [1 / window_s for window_s in windows_s]
    change = change_of_median(rates[:third], rates[len(rates) - third :])
    value, low, high = (100 * share for share in change)
    return measured("drift_percent", value, (low, high), run=run)


def _sensor_figures(sensors: Mapping[str, Any], of: Mapping[str, Any]) -> Iterator[Figure]:
    for name, key in _SENSORS.items():
        if key in sensors:
            yield measured(name, sensors[key], **of)
    reasons = sensors.get("throttle_reasons")
    for reason in THROTTLING if reasons is not None else ():
        yield measured("throttled_share", reasons.get(reason, 0.0), reason=reason, **of)
