"""Figures of a card that are those of a run directory: made from it, and made again to check."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxbench.analysis.statistics import change_of_median
from jaxbench.cards.card import Figure, measured
from jaxbench.hardware.telemetry.summary import THROTTLING
from jaxbench.records.reader import RunRecords
from jaxbench.records.schema import CompileRecord, Summary, ThroughputRecord

# What the names of a card's figures are in telemetry.
_SENSORS = {"temperature_max_c": "temperature_c_max", "power_mean_w": "power_w_mean"}


def figures_of_run(run: RunRecords, name: str) -> Iterator[Figure]:
    """Yield all figures that a throughput run of a card may be behind, but for its peak's share.

    Args:
      run: the run directory.
      name: of its folder below the card's.
    """
    config, [summary] = run.document.config, run.of_kind(Summary)
    labels = {"network": config["name"], "precision": config["precision"]}
    labels["batch"] = config["batch_size"]
    step, compiled = train_step_of(run)
    yield from network_figures(step, compiled, summary.telemetry, name, labels)
    yield from soak_figures(step, summary.telemetry, name)


def train_step_of(run: Any) -> tuple[ThroughputRecord, CompileRecord]:
    """Return the two records of the training step of a run, or of its result.

    Raises:
      ValueError: there is not one of each.
    """
    [step] = [one for one in run.of_kind(ThroughputRecord) if one.stage == "train_step"]
    [compiled] = [one for one in run.of_kind(CompileRecord) if one.function == "train_step"]
    return step, compiled


def network_figures(
    step: ThroughputRecord,
    compiled: CompileRecord,
    telemetry: Mapping[str, Any] | None,
    run: str,
    labels: Mapping[str, str | int],
) -> Iterator[Figure]:
    """Yield the figures of a network's run; those that are not known are left out."""
    interval = (step.images_per_s_low, step.images_per_s_high)
    yield measured("images_per_s", step.images_per_s, interval, run=run, **labels)
    values = {
        "flops_per_image": step.flops_per_image,
        "mfu": step.mfu,
        "energy_j_per_image": energy_j_per_image(telemetry),
        "compile_cold_s": compiled.cold_compile_s,
        "compile_warm_s": compiled.warm_compile_s,
    }
    for name, value in values.items():
        if value is not None:
            yield measured(name, value, run=run, **labels)


def energy_j_per_image(telemetry: Mapping[str, Any] | None) -> float | None:
    """Return the energy of an image by a run's telemetry; None if the windows were too short."""
    is_known = telemetry and telemetry.get("energy_window_long_enough")
    return telemetry["joules_per_image"] if is_known else None


def soak_figures(
    step: ThroughputRecord, telemetry: Mapping[str, Any] | None, run: str
) -> Iterator[Figure]:
    """Yield the drift of the windows, and what the sensors of each device said."""
    if len(step.windows_s) >= 3:
        yield drift_figure(step.windows_s, run)
    for device, sensors in (telemetry or {}).get("devices", {}).items():
        if sensors["kind"] == "host":
            continue
        labels = {"device": device_number(device), "run": run}
        for name, key in _SENSORS.items():
            if key in sensors:
                yield measured(name, sensors[key], **labels)
        if "throttle_reasons" in sensors:
            for reason in THROTTLING:
                fraction = sensors["throttle_reasons"].get(reason, 0.0)
                yield measured("throttled_share", fraction, reason=reason, **labels)


def device_number(name: str) -> int:
    """Return the id of a device from its name in telemetry, such as gpu0."""
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))


def drift_figure(windows_s: Sequence[float], run: str) -> Figure:
    """Return how much faster the last third of equal windows was than the first."""
    third = len(windows_s) // 3
    rates = [1 / window_s for window_s in windows_s]
    change = change_of_median(rates[:third], rates[len(rates) - third :])
    value, low, high = (100 * fraction for fraction in change)
    return measured("drift_percent", value, (low, high), run=run)


def share_of_measured(
    figures: Iterable[Figure],
    arithmetic: str | None,
    precision: str,
    flops_per_s_per_device: float | None,
    num_devices: int,
    backend: str,
) -> float | None:
    """Return FLOP/s over the measured matrix rate; None if one of them is unknown.

    It is also None above 1: then the network did not do the operations that are counted for it, or
    not in this arithmetic.

    Args:
      figures: of a card.
      arithmetic: the type that the network multiplies in, one of `ARITHMETICS`; None if no
        published peak of the device is known.
      precision: of the network. It says the arithmetic, but for fp32 on accelerators: there JAX may
        multiply in TF32 or bf16.
      flops_per_s_per_device: the network's own operations, see `Utilization`.
      num_devices, backend: of the network's run. CPU devices share the processor whose rate the
        card has.
    """
    if arithmetic is None and precision == "fp32" and backend != "cpu":
        return None
    name = f"matmul_{arithmetic or precision}_tflops"
    rates = [figure.value for figure in figures if figure.name == name]
    rate = statistics.median(rates) if rates else None
    if not rate or flops_per_s_per_device is None:
        return None
    share = flops_per_s_per_device / (1e12 * rate)
    share *= num_devices if backend == "cpu" else 1
    return share if share <= 1 else None
