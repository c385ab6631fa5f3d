"""Compares the rates of two runs: `python -m jaxbench.compare RUN_A RUN_B`.

Prints B's rate over A's with an interval for every stage that both have. With --baseline A is what
B must reach: exit code 1 where B is slower by more than --tolerance.
"""

import json
import math
from typing import Any

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.records.reader import Run, load_run

_BASELINE = flags.DEFINE_bool("baseline", False, "Exit with 1 where B is slower than A.")
_TOLERANCE = flags.DEFINE_float(
    "tolerance",
    0.02,
    "With --baseline: by what share B may be slower.",
    lower_bound=0.0,
    upper_bound=1.0,
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")

# Of different work neither is faster; of other batches one may be.
_OTHER_WORK = ("experiment", "model", "precision")
_WORK = (*_OTHER_WORK, "batch_size")
# What a reader must know of two figures before putting them side by side.
_SETTINGS = (
    "batch_size",
    "precision",
    "batch_norm",
    "parallelism",
    "gradient_accumulation_steps",
    "remat",
)


def main(paths: list[str]) -> int:
    """Compare the two runs; return the exit code."""
    if len(paths) != 2:
        raise BadInput(f"give two run directories, RUN_A and RUN_B; given: {len(paths)}")
    if not math.isfinite(_TOLERANCE.value):
        raise BadInput(f"--tolerance={_TOLERANCE.value}: must be a share, such as 0.02")
    if flags.FLAGS["tolerance"].present and not _BASELINE.value:
        raise BadInput("--tolerance: needs --baseline")
    runs = [load_run(path) for path in paths]
    comparison = compare(*runs)
    different = [name for name in _WORK if name in comparison["differences"]]
    if _BASELINE.value and different:
        raise BadInput(
            f"--baseline: the runs differ in {', '.join(different)}; a baseline is of the same work"
        )
    if _JSON.value:
        print(json.dumps(comparison))
    else:
        _print(comparison, paths)
    if not _BASELINE.value:
        return 0
    slower = [
        stage
        for stage, found in comparison["stages"].items()
        if found["ratio_high"] < 1 - _TOLERANCE.value
    ]
    if slower and not _JSON.value:
        print(f"slower than the baseline by more than {_TOLERANCE.value:.0%}: {', '.join(slower)}")
    return int(bool(slower))


def compare(first: Run, second: Run) -> dict[str, Any]:
    """Compare the rates of two runs that have ended well.

    Returns:
      `differences`, {field: [first's, second's]}; `stages`, {stage: ratio second / first, its
      interval, a verdict}. The interval reaches from the least to the most that the two runs'
      own 95 % intervals allow.

    Raises:
      BadInput: one of them has no figures to trust, or they measured two different things.
    """
    for run in (first, second):
        if run.document["status"] != "done":
            raise BadInput(
                f"{run.path}: its status is {run.document['status']} "
                f"({run.document.get('reason') or 'no reason given'}); only runs that are done "
                "can be compared"
            )
    feeds = [run.document.get("data", {}).get("feed") for run in (first, second)]
    if feeds[0] != feeds[1]:
        raise BadInput(
            f"one run was fed {feeds[0]}, the other {feeds[1]}: those are two different figures"
        )
    rates = [run.rates() for run in (first, second)]
    stages = [stage for stage in rates[0] if stage in rates[1]]
    if not stages:
        raise BadInput(
            f"nothing that both have measured: {first.path} has {', '.join(rates[0]) or 'none'}, "
            f"{second.path} {', '.join(rates[1]) or 'none'} (stages of --mode=throughput, or "
            "training of four epochs and more)"
        )
    differences = _differences(first.document, second.document)
    other_work = [name for name in _OTHER_WORK if name in differences]
    found = {stage: _ratio(rates[0][stage], rates[1][stage]) for stage in stages}
    if other_work:
        for ratio in found.values():
            ratio["verdict"] = f"no verdict, they differ in {', '.join(other_work)}"
    return {"differences": differences, "stages": found}


def _ratio(first: tuple[float, float, float], second: tuple[float, float, float]) -> dict[str, Any]:
    low, high = second[1] / first[2], second[2] / first[1]
    verdict = "no significant difference"
    if low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    return {
        "images_per_s": [first[0], second[0]],
        "ratio": second[0] / first[0],
        "ratio_low": low,
        "ratio_high": high,
        "verdict": verdict,
    }


def _differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    described = [_describe(document) for document in (first, second)]
    return {
        name: [described[0].get(name), described[1].get(name)]
        for name in described[0] | described[1]
        if described[0].get(name) != described[1].get(name)
    }


def _describe(document: dict[str, Any]) -> dict[str, Any]:
    config, environment = document.get("config", {}), document.get("environment", {})
    return {
        "experiment": document.get("experiment"),
        "model": config.get("model"),
        **{name: config.get(name) for name in _SETTINGS},
        **{name: environment.get(name) for name in ("device_kind", "num_devices", "hostname")},
        "driver": environment.get("driver"),
        "commit": (environment.get("git") or {}).get("commit"),
        **environment.get("versions", {}),
        **environment.get("variables", {}),
    }


def _print(comparison: dict[str, Any], paths: list[str]) -> None:
    print(f"A {paths[0]}\nB {paths[1]}")
    for name, (first, second) in comparison["differences"].items():
        print(f"differs: {name}: {first} / {second}")
    for stage, found in comparison["stages"].items():
        first, second = found["images_per_s"]
        print(
            f"{stage:<17} A {first:,.1f}, B {second:,.1f} images/s; B / A {found['ratio']:.3f} "
            f"({found['ratio_low']:.3f} to {found['ratio_high']:.3f}): {found['verdict']}"
        )
    print("The runs were not interleaved: what drifted between them is not in the intervals.")


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
