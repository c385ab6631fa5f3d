"""The largest batch that fits in memory, found by trials."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jaxbench.batch_layout import BatchLayout, batch_multiple
from jaxbench.schema import MaxBatchResult, TrialResult
from jaxbench.sweeps.grid import Trial
from jaxbench.sweeps.tables import exit_code, max_batch_table
from jaxbench.sweeps.trials import TrialRunner, describe_outcome

# The first stride away from a guess; each is twice as long as the one before.
_FIRST_STRIDE = 0.02
# Two estimates make a line; more of them add nothing.
_MOST_ESTIMATES = 2


class BatchFit(NamedTuple):
    """Whether a batch ran, the bytes that the compiler estimates, and those that there are.

    Bytes are None if they are not known.
    """

    fits: bool
    needed_bytes: float | None = None
    limit_bytes: float | None = None


def estimate_largest(
    needed_bytes: Mapping[int, float], limit_bytes: float | None, unit: int
) -> int | None:
    """Return the batch whose estimate meets the limit, by the line through the largest two.

    None if the limit is not known, or memory does not grow with the batch.

    Args:
      unit: the result is a multiple of it, and no less.
    """
    if limit_bytes is None or not needed_bytes:
        return None
    # Of a single estimate, as if all of it grew with the batch: rather too small a guess.
    (small, small_bytes), (large, large_bytes) = sorted({0: 0.0, **needed_bytes}.items())[-2:]
    per_image = (large_bytes - small_bytes) / (large - small)
    if per_image <= 0:
        return None
    batch = small + int((limit_bytes - small_bytes) / per_image)
    return max(unit, batch // unit * unit)


def largest_batch(
    try_batch: Callable[[int], BatchFit], start: int, unit: int
) -> tuple[int | None, int]:
    """Find the largest multiple of `unit` that fits, if all smaller ones fit.

    The first two tries tell how the estimate grows with the batch; the search continues where it
    meets the limit, strides from there until the answer lies between two tries, and halves.

    Args:
      start: where to begin, a multiple of `unit`.

    Returns:
      The largest that fits (None: not even `unit` does) and the smallest tried that does not.
    """
    planned: dict[int, float] = {}
    limit_bytes = None
    low: Any = 0
    high: Any = math.inf
    batch = stride = start
    while True:
        tried = try_batch(batch)
        limit_bytes = tried.limit_bytes or limit_bytes
        if tried.needed_bytes is not None:
            planned[batch] = tried.needed_bytes
        low, high = (batch, high) if tried.fits else (low, batch)
        if high - low <= unit:
            return low or None, high
        known = len(planned) <= _MOST_ESTIMATES
        guess = estimate_largest(planned, limit_bytes, unit) if known else None
        if guess is not None and low < guess < high:
            batch, stride = guess, max(unit, int(_FIRST_STRIDE * guess))
        else:
            # Away from the last try; to the middle if that is nearer.
            middle = (low + high) / 2
            batch = min(low + stride, middle) if tried.fits else max(high - stride, middle)
            stride *= 2
        batch = max(int(batch) // unit * unit, low + unit)


def find_max_batches(
    runner: TrialRunner, trials: Sequence[Trial], multiple: int, memory_limit_mb: float | None
) -> int:
    """Find the largest batch of each trial's experiment; print and write the table.

    Returns the exit code.

    Args:
      multiple: batches are multiples of this, and of what the devices need.
      memory_limit_mb: MiB of private memory that each process may have on the host.
    """
    results: list[MaxBatchResult] = []
    for number, trial in enumerate(trials, 1):
        position = f"[{number}/{len(trials)}]"
        results.append(_find_max_batch(runner, trial, position, multiple, memory_limit_mb))
        runner.folder.write_table("max_batch.csv", [result.row() for result in results])
    runner.say_results(max_batch_table(results), "max_batch.csv")
    return exit_code(result.status for result in results)


class _Unanswered(Exception):
    """A trial neither fitted nor ran out of memory; the message says how it ended."""


def _find_max_batch(
    runner: TrialRunner, trial: Trial, position: str, multiple: int, memory_limit_mb: float | None
) -> MaxBatchResult:
    tried: dict[int, TrialResult] = {}

    def try_batch(batch_size: int) -> BatchFit:
        one = trial.with_field("batch_size", batch_size)
        known = runner.result(one.key)
        [tried[batch_size]] = [known] if known else runner.run({position: one})
        return _batch_fit(batch_size, tried, memory_limit_mb)

    def result(status: str, reason: str, **fields) -> MaxBatchResult:
        fields |= {"place": trial.place, "memory_limit_mb": memory_limit_mb}
        return MaxBatchResult(trials=len(tried), status=status, reason=reason, **fields)

    first = trial.config.batch_size
    try:
        try_batch(first)
        num_devices = tried[first].num_devices or 1
        unit = math.lcm(multiple, batch_multiple(trial.config, num_devices))
        largest, too_large = largest_batch(try_batch, max(unit, first // unit * unit), unit)
    except _Unanswered as error:
        return result("failed", str(error))
    over = tried[too_large]
    # Why it is too large; of a failure, that is a guess.
    reason = f"{too_large}: {over.status} ({over.reason})"
    if largest is None:
        return result("oom", reason, smallest_too_large=too_large)
    best = tried[largest]
    config = trial.with_field("batch_size", largest).config
    figures = msgspec.structs.asdict(best.figures)
    return result(
        "done",
        reason,
        max_batch=largest,
        max_batch_per_device=BatchLayout.create(
            config, best.num_devices or num_devices
        ).batch_per_device,
        smallest_too_large=too_large,
        num_devices=best.num_devices,
        device_kind=best.device_kind,
        **{name: figures[name] for name in MaxBatchResult.__struct_fields__ if name in figures},
    )


def _batch_fit(
    batch_size: int, tried: Mapping[int, TrialResult], memory_limit_mb: float | None
) -> BatchFit:
    """Return what a run of --mode=memory says of its batch, with the first of the search.

    Libraries that get no memory do not always say so: if a smaller batch ran, any failure of a
    larger one counts as too large, and is reported.
    """
    result, (first_batch, first) = tried[batch_size], next(iter(tried.items()))
    smaller_ran = first.status == "done" and first_batch < batch_size
    if result.status not in ("done", "oom") and not (smaller_ran and result.status == "failed"):
        raise _Unanswered(f"batch_size={batch_size} was tried and {describe_outcome(result)}")
    needed_bytes = result.figures.planned_bytes_per_device
    limit_bytes = result.figures.device_memory_bytes
    if limit_bytes is None and result.backend == "cpu":
        # All devices use the host's memory, and the process itself is in it too.
        if not memory_limit_mb:
            raise _Unanswered(
                "CPU devices take what memory the host has: give --memory_limit_mb, or the search "
                "would end with the machine"
            )
        limit_bytes = memory_limit_mb * 2**20
        besides_bytes = first.figures.private_memory_before_bytes
        if needed_bytes is not None:
            steps_bytes = needed_bytes * (result.num_devices or 1)
            needed_bytes = steps_bytes + besides_bytes if besides_bytes else None
    return BatchFit(result.status == "done", needed_bytes, limit_bytes)
