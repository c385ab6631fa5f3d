"""Goodput: what share of a training run's wall time was steps that counted.

A run that is killed and resumed is the work of several processes, one after another: its attempts.

    goodput = seconds of steps whose result is in the final state / total wall seconds
    total wall seconds = those seconds + the sum of badput_s
                       = from the first process's start to the end of the last

The causes of badput:

    startup     a process's way to its first step: imports, devices, data, parameters
    compile     tracing, lowering and compiling
    data_wait   waiting for data, between steps that counted
    eval        evaluations that counted
    checkpoint  writing and restoring checkpoints
    lost_work   steps, waits and evaluations after the checkpoint that the next process resumed
                from: they were done again
    down        from a process's end to the start of the next one
    other       records, profiled steps, and what no phase of the clock covers

The run's clock goes on from the checkpoint, so that its phases hold only what counted. run.json's
`attempts` add what they leave out. They are written before it is known how a process ends. One
that was killed ends with its last record or reading of telemetry: what followed is in `down`, at
most an interval of telemetry. So is all of a process that was killed before it opened the run
directory.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxbench.clock import Clock, now, seconds_since_1970

# The clock's phases by their cause; a phase that is not listed is `other`.
_PHASES = {
    "startup": (
        *("devices", "read_data", "place_data", "attention", "build", "init", "init_from_images"),
        "startup",
    ),
    "compile": ("lower", "compile"),
    "data_wait": ("data_wait",),
    "eval": ("eval",),
    "checkpoint": ("checkpoint", "restore"),
}
CAUSE_OF = {phase: cause for cause, phases in _PHASES.items() for phase in phases}
CAUSES = (*_PHASES, "lost_work", "down", "other")
# The phase of steps, and all that is done again after a kill.
_STEPS, _REPEATED = "train", ("train", "data_wait", "eval", "profile")
# Dates of two processes that overlap by more are no measure: those of two hosts, say.
_OVERLAP_S = 1.0


class Goodput(NamedTuple):
    """What share of a run's wall time was steps that counted, and where the rest went."""

    goodput: float
    badput_s: dict[str, float]  # by cause
    total_wall_s: float


def begin_attempt(
    clock: Clock, import_s: float | None, resumed_phases_s: Mapping[str, float]
) -> dict[str, Any]:
    """Return run.json's entry of a process that begins.

    Args:
      import_s: seconds before the clock was made; None if they do not belong to the run.
      resumed_phases_s: the clock's phases at the checkpoint that it resumes from.
    """
    process_s = (import_s or 0.0) + clock.wall_s() - sum(resumed_phases_s.values())
    return {
        "started_at": now(ago_s=process_s).isoformat(),
        "import_s": import_s or 0.0,
        "resumed_phases_s": dict(resumed_phases_s),
        **mark_phases(clock, "startup"),
    }


def mark_phases(clock: Clock, doing: str) -> dict[str, Any]:
    """Return the fields of an entry that say what the process has done, and what it does now.

    The time from now on counts as `doing` if the process is killed.
    """
    return {"phases_s": clock.totals_s(), "doing": doing}


def end_attempt(
    attempt: Mapping[str, Any], resumed_phases_s: Mapping[str, float], elapsed_s: float
) -> dict[str, Any]:
    """Return the entry of a process that was killed, with its phases up to its end.

    `resumed_phases_s` are the clock's phases at the checkpoint that the next process resumes from,
    and `elapsed_s` is its time at the last sign of this one.
    """
    known_s = max((attempt["phases_s"], resumed_phases_s), key=lambda phases: sum(phases.values()))
    phases_s, doing = dict(known_s), attempt["doing"]
    tail_s = max(0.0, elapsed_s - sum(known_s.values()))
    return {**attempt, "phases_s": phases_s | {doing: phases_s.get(doing, 0.0) + tail_s}}


def measure_goodput(
    attempts: Sequence[Mapping[str, Any]], phases_s: Mapping[str, float]
) -> Goodput | None:
    """Return the goodput up to now; None if the dates of two processes contradict each other.

    It is unknown of a run that branched off from another: what that one did later is not lost.

    Args:
      attempts: an entry for each process, in order; all but the last have ended.
      phases_s: the run's clock now.
    """
    if any(attempt.get("branched") for attempt in attempts):
        return None
    badput_s = dict.fromkeys(CAUSES, 0.0)
    for phase, spent_s in phases_s.items():
        if phase != _STEPS:
            badput_s[CAUSE_OF.get(phase, "other")] += spent_s
    badput_s["startup"] += sum(attempt["import_s"] for attempt in attempts)
    for one, after in itertools.pairwise(attempts):
        resumed_s = after["resumed_phases_s"]
        for phase in {**one["phases_s"], **resumed_s}:
            dropped_s = one["phases_s"].get(phase, 0.0) - resumed_s.get(phase, 0.0)
            cause = "lost_work" if phase in _REPEATED else CAUSE_OF.get(phase, "other")
            badput_s[cause] += dropped_s
        down_s = _seconds_between(one, after)
        if down_s < -_OVERLAP_S:
            return None
        badput_s["down"] += max(0.0, down_s)
    steps_s = phases_s.get(_STEPS, 0.0)
    total_wall_s = steps_s + sum(badput_s.values())
    return Goodput(steps_s / total_wall_s, badput_s, total_wall_s) if total_wall_s else None


def _seconds_between(one: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Return the seconds from the end of a process to the start of the next one."""
    process_s = sum(one["phases_s"].values()) - sum(one["resumed_phases_s"].values())
    ended_s = seconds_since_1970(one["started_at"]) + one["import_s"] + process_s
    return seconds_since_1970(after["started_at"]) - ended_s
