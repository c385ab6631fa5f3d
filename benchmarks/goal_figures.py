"""What goals.py makes of records: figures, whether a goal is reached, and the table."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxbench.cards.card_file import CARD, read_card
from jaxbench.cards.figures import MEMORY
from jaxbench.errors import BadInput
from jaxbench.records.reader import RunRecords, load_run
from jaxbench.records.schema import ThroughputRecord

_THRESHOLDS = "jaxbench/cards/thresholds.csv"


class Figure(NamedTuple):
    """What a goal came to.

    Attributes:
      what: was measured.
      said: value, unit and spread.
      reached: None where that cannot be said.
      source: where the goal is from.
    """

    what: str
    said: str
    reached: bool | None
    source: str = ""


# Figures, and run.json's environment of what they were measured on.
Found = tuple[list[Figure], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Part:
    """A command, what it leaves, and what that says.

    Attributes:
      goal: it belongs to.
      command: for this Python.
      result: a path in --out.
      read: makes figures of the path, None where there is nothing yet.
    """

    goal: str
    command: list[str]
    result: pathlib.Path
    read: Callable[[pathlib.Path], Found | None]


def at_least(low: float, high: float, goal: float) -> bool | None:
    return True if low >= goal else False if high < goal else None


def at_most(low: float, high: float, goal: float) -> bool | None:
    return True if high <= goal else False if low > goal else None


def finished_run(path: pathlib.Path) -> RunRecords | None:
    """Read a run that was done; None where there is none, or one that was broken off."""
    try:
        run = load_run(str(path))
    except BadInput:
        return None
    return run if run.document.status == "done" else None


def rate_of_run(path: pathlib.Path, goal: float, source: str) -> Found | None:
    """Return whether the training step of --mode=throughput reaches a rate."""
    run = finished_run(path)
    if run is None:
        return None
    [step] = [one for one in run.of_kind(ThroughputRecord) if one.stage == "train_step"]
    low, high = step.images_per_s_low, step.images_per_s_high
    said = f"{step.images_per_s:,.0f} images/s ({low:,.0f} to {high:,.0f})"
    if step.mfu is not None:
        said += f", {step.mfu:.1%} MFU"
    name, batch = run.document.experiment, run.document.config["batch_size"]
    what = f"{name}, batch {batch}, at least {goal:,.0f} images/s"
    return [Figure(what, said, at_least(low, high, goal), source)], run.document.environment


def figures_of_card(path: pathlib.Path, matmul: float, matmul_source: str) -> Found | None:
    """Return what the goals say of a card.

    Args:
      path: its folder.
      matmul: the least share of the published peak that products of bf16 matrices shall have.
    """
    if not (path / CARD).exists():
        return None
    card = read_card(path)
    outcome = card.verdict.outcome if card.verdict else "not_judged"
    reached = {"pass": True, "warn": False, "fail": False}.get(outcome)
    ceilings = card.part("ceilings")
    shares = ((("matmul_bf16_tflops",), matmul, matmul_source), (MEMORY, 0.75, _THRESHOLDS))
    figures = [
        Figure("the card's verdict is pass", outcome.replace("_", " "), reached, _THRESHOLDS)
    ]
    for names, goal, source in shares:
        best: dict[int | None, tuple[float, float]] = {}
        for figure in ceilings.named(*names) if ceilings else ():
            if figure.nominal is not None:
                low, high = (end / figure.nominal for end in figure.ends)
                best[figure.device] = max(best.get(figure.device, (0.0, 0.0)), (low, high))
        title = "memory bandwidth" if names == MEMORY else "products of bf16 matrices"
        what = f"{title}, slowest device, at least {goal:.0%} of the published peak"
        said, reached = "not measured, or no published peak", None
        if best:
            low, high = min(best.values())
            said, reached = f"{low:.1%} to {high:.1%}", at_least(low, high, goal)
        figures.append(Figure(what, said, reached, source))
    return figures, card.environment


def print_table(
    rows: Sequence[tuple[str, Figure]], environments: Sequence[dict[str, Any]], judged: bool
) -> None:
    for on in sorted({_describe(environment) for environment in environments}):
        print(f"\n{on}", end="")
    print("\n\n| goal | what | measured | source of the goal | reached |\n|---|---|---|---|---|")
    words = {True: "yes", False: "no", None: "cannot be said"}
    for goal, figure in rows:
        reached = words[figure.reached] if judged else "not judged"
        print(f"| {goal} | {figure.what} | {figure.said} | {figure.source} | {reached} |")


def _describe(environment: dict[str, Any]) -> str:
    git = environment["git"]
    commit = git["commit"][:12] + " with changes" * git["dirty"] if git else "unknown"
    return (
        f"{environment['device_kind']}, driver {environment['driver'] or 'unknown'}, jax "
        f"{environment['versions']['jax']}, commit {commit}"
    )
