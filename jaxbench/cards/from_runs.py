"""The metrics that a card takes from its runs: when it is made, and again when it is checked."""

import collections
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxbench.analysis.statistics import change_of_median, estimate
from jaxbench.cards.card import Card, Figure, measured
from jaxbench.cards.figures import share_of_measured
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.summary import THROTTLING, Window, read_series, summarize
from jaxbench.records.reader import RunRecords, load_run
from jaxbench.records.schema import CompileRecord, ThroughputRecord

# What the names of a card's metrics are in telemetry.
_SENSORS = {"temperature_max_c": "temperature_c_max", "power_mean_w": "power_w_mean"}
_ENERGY = {
    "energy_j_per_image": "joules_per_image",
    "energy_longest_gap_s": "energy_longest_gap_s",
    "energy_covered_share": "energy_covered",
}
# What a card and its runs have of the same machine; bounds depend on it.
_HARDWARE = ("device_kind", "devices", "num_devices", "num_processes", "cpu_cores")
# A number may lose its last digits in a file.
_ROUNDING = 1e-9


def network_figures(
    step: ThroughputRecord,
    compiled: CompileRecord,
    telemetry: Mapping[str, Any] | None,
    network: str,
    run: str,
    ceilings: Iterable[Figure],
    backend: str,
) -> list[Figure]:
    """Return the metrics of a throughput run; unknown ones are excluded.

    Args:
      step, compiled: of the training step; the rate is computed from its windows.
      telemetry: of the run's summary. Without enough samples there is no energy.
      network: its name on the card.
      run: the run directory, below the card's folder.
      ceilings: of the card, with its rates of matrix products.
      backend: of the devices.
    """
    images = step.images_per_step * step.steps_per_window
    rate = estimate([images / window_s for window_s in step.windows_s])
    flops_per_s = rate.value * step.flops_per_image / step.num_devices
    arithmetic = step.peak and step.peak["arithmetic"]
    energy = telemetry if telemetry and telemetry.get("energy_window_long_enough") else {}
    values = {
        "images_per_s": rate.value,
        "flops_per_image": step.flops_per_image,
        "mfu": flops_per_s / step.peak["flops_per_s"] if step.peak else None,
        "measured_peak_share": share_of_measured(
            ceilings, arithmetic, step.precision, flops_per_s, step.num_devices, backend
        ),
        **{name: energy.get(key) for name, key in _ENERGY.items()},
        "compile_cold_s": compiled.cold_compile_s,
        "compile_warm_s": compiled.warm_compile_s,
    }
    labels: Any = {"network": network, "precision": step.precision, "batch": step.batch_size}
    intervals = {"images_per_s": rate.span[1:]} if rate.low is not None else {}
    return [
        measured(name, value, intervals.get(name), run=run, **labels)
        for name, value in values.items()
        if value is not None
    ]


def train_step_of(run: Any) -> tuple[ThroughputRecord, CompileRecord]:
    """Return the two records of the training step of a run, by its `of_kind`."""
    [step] = [one for one in run.of_kind(ThroughputRecord) if one.stage == "train_step"]
    [compiled] = [one for one in run.of_kind(CompileRecord) if one.function == "train_step"]
    return step, compiled


def soak_figures(
    step: ThroughputRecord, telemetry: Mapping[str, Any] | None, run: str
) -> Iterator[Figure]:
    """Yield the drift of the windows, and the readings of the sensors of each device."""
    rates = [1 / window_s for window_s in step.windows_s]
    if third := len(rates) // 3:
        change = change_of_median(rates[:third], rates[len(rates) - third :])
        value, low, high = (100 * fraction for fraction in change)
        yield measured("drift_percent", value, (low, high), run=run)
    for device, sensors in (telemetry or {}).get("devices", {}).items():
        if sensors["kind"] == "host":
            continue
        labels: dict[str, Any] = {"device": device_id(device), "run": run}
        for name, key in _SENSORS.items():
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

    a is launches and the host, c the time of an image, each from the two smallest batches. The
    ends are those of both intervals, the farthest apart.
    """
    steps: dict[tuple, dict[int, tuple[float, float, float]]] = collections.defaultdict(dict)
    for one in figures:
        if (
            one.name == "images_per_s"
            and min(one.ends) > 0
            and isinstance(one.labels["batch"], int)
        ):
            batch, (low, high) = one.labels["batch"], one.ends
            network = one.labels["network"], one.labels["precision"]
            steps[network][batch] = batch / one.value, batch / high, batch / low
    for (network, precision), by_batch in steps.items():
        if len(by_batch) < 2:
            continue
        (b, (t, t_low, t_high)), (b2, (t2, t2_low, t2_high)) = sorted(by_batch.items())[:2]
        more = b2 - b
        labels: Any = {"network": network, "precision": precision}
        per_image_s = [
            (last - first) / more for last, first in ((t2_low, t_high), (t2_high, t_low))
        ]
        yield measured(
            "step_per_image_s", (t2 - t) / more, (per_image_s[0], per_image_s[1]), **labels
        )
        fixed_s = [
            (b2 * first - b * last) / more for first, last in ((t_low, t2_high), (t_high, t2_low))
        ]
        value = (b2 * t - b * t2) / more
        yield measured("step_fixed_s", value, (fixed_s[0], fixed_s[1]), **labels)


def contradictions(card: Card, folder: pathlib.Path) -> Iterator[str]:
    """Yield the metrics of a card that do not follow from its others, or from its runs."""
    followed = {(one.run, one.key): one for one in step_time_figures(card.figures())}
    derived = {"step_fixed_s", "step_per_image_s"}
    absent = set()
    for name in sorted({one.run for one in card.figures() if one.run}):
        if not (folder / name / "run.json").is_file():
            absent.add(name)  # a card may travel without its files
            continue
        try:
            figures = _figures_of_run(card, folder / name, name)
            followed |= {(one.run, one.key): one for one in figures}
        except (BadInput, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
            yield f"{name}: its records do not tell what the card says: {str(e) or repr(e)}"
            absent.add(name)
    for one in card.figures():
        if (one.run and one.run not in absent) or one.name in derived:
            computed = followed.get((one.run, one.key))
            if computed is None:
                yield f"{one}: {one.run or 'the card'} has no such metric"
            elif not all(
                math.isclose(*pair, rel_tol=_ROUNDING)
                for pair in zip(
                    (one.value, *one.ends), (computed.value, *computed.ends), strict=True
                )
            ):
                low, high = computed.ends
                yield (
                    f"{one}: {one.value:g} ({one.ends[0]:g} to {one.ends[1]:g}) does not follow "
                    f"from {one.run or 'the rates'}, but {computed.value:g} ({low:g} to {high:g})"
                )


def _figures_of_run(card: Card, folder: pathlib.Path, name: str) -> Iterator[Figure]:
    run = load_run(str(folder))
    for key in _HARDWARE:
        stated, recorded = card.environment.get(key), run.document.environment.get(key)
        if stated != recorded:
            raise ValueError(f"{key} is {recorded!s:.60}, not {stated!s:.60}")
    telemetry = _telemetry(run, folder)
    if any(one.run == name and one.name == "drift_percent" for one in card.figures()):
        [step] = run.of_kind(ThroughputRecord)
        yield from soak_figures(step, telemetry, name)
        return
    network, backend = run.document.config["name"], card.environment["backend"]
    step, compiled = train_step_of(run)
    yield from network_figures(step, compiled, telemetry, network, name, card.figures(), backend)


def _telemetry(run: RunRecords, folder: pathlib.Path) -> Mapping[str, Any] | None:
    """Return the summary of the telemetry, computed from its samples if they are there."""
    telemetry, samples = (run.document.summary or {}).get("telemetry"), folder / "telemetry.csv"
    if not telemetry or "windows" not in telemetry or not samples.is_file():
        return telemetry
    windows = [Window(float(a), float(b), int(n)) for a, b, n in telemetry["windows"]]
    return summarize(read_series(samples), windows, run.document.telemetry_s, {})[0]
