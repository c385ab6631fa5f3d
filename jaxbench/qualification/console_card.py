"""The answer on the console: ten lines of 80 columns. Everything else is in the file."""

import pathlib
import shlex
import textwrap
from collections.abc import Iterator, Sequence

from jaxbench.cards.card import Card
from jaxbench.cards.figures import NETWORK
from jaxbench.cards.verdict import summary_of
from jaxbench.clock import duration
from jaxbench.terminal import four_digits, printable, shown_path

_WIDTH, _MOST_LINES = 80, 2
# A card says by how much it took longer from here on.
_LATE = 1.2
# What a machine is first asked about: the first of each that was measured.
_MATMULS = ("matmul_bf16_tflops", "matmul_fp16_tflops", "matmul_fp32_tflops")
_BY_RULE = {
    "board_faults": "nvidia-smi --gpu-reset and repeat; replace the board if it fails again",
    "mismatches": "repeat; replace a device whose results differ again",
    **dict.fromkeys(
        ("slower_than_fleet", "slower_than_predicted", "below_floor", "device_spread"),
        "look for a power limit, heat, a slow slot or other jobs",
    ),
}
_NEXT = {
    "fail": "mend what failed, and measure again",
    "incomplete": "give it more --minutes",
    "warn": "look at the rules that warn in the report",
    "pass": "nothing: this card may join a fleet",
    "not_judged": "measure two more machines of this kind: they make a fleet",
}


def answer_lines(card: Card, folder: pathlib.Path) -> Iterator[str]:
    """Yield the machine, the verdict, three metrics, what failed, and what to do next."""
    when, verdict = card.created_at[:16].replace("T", " "), card.verdict
    taken_s, asked_s = 60 * card.minutes_taken, 60 * card.minutes_asked
    late = f", {taken_s / asked_s - 1:.0%} longer than asked" * (taken_s > _LATE * asked_s)
    # The gravest findings; of a card that passes there are none to name.
    is_bad = verdict.outcome not in ("pass", "not_judged")
    bad = [one for one in verdict.findings if is_bad and one.status == verdict.outcome]
    order = [*_BY_RULE]  # the first one says what to do next
    bad.sort(key=lambda one: order.index(one.rule) if one.rule in order else len(order))
    unjudged = sum(one.status == "not_judged" for one in verdict.findings)
    named, left = [], len(bad)
    for one in bad:
        text = f"{card.outcome}: {one.part}: {one.rule.replace('_', ' ')}: {printable(one.text)}"
        wrapped = textwrap.wrap(text, _WIDTH, max_lines=_MOST_LINES, subsequent_indent="  ")
        if len(named) + len(wrapped) <= _MOST_LINES:
            named, left = named + wrapped, left - 1
    more = f"{left} more in the report; " * (left > 0)
    lines = [
        f"{card.label}, {card.preset}, {when}, {duration(taken_s)}{late}",
        f"verdict: {card.outcome.upper()}; {summary_of(card)}",
        *_main_metrics(card),
        *named,
        f"{more}{unjudged} of {len(verdict.findings)} rules did not apply",
        f"next: {_next_step(card)}",
    ]
    for line in map(printable, lines):
        yield line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
    yield printable(f"all of it: jaxbench report {shlex.quote(shown_path(folder))}")


def _next_step(card: Card) -> str:
    problems = (check for part in card.parts for check in part.checks if check.status == "problem")
    if advice := next((check.advice for check in problems if check.advice), ""):
        return advice
    rules = {one.rule for one in card.verdict.findings if one.status == card.verdict.outcome}
    if card.verdict.outcome == "inconclusive":
        if "distorters" in rules:
            return "unset what is for debugging, and measure again"
        if rules & {"other_cpu_percent", "other_gpu_processes"}:
            return "end the other work on this machine, and measure again"
        return "some intervals are too wide to judge by: give it more --minutes"
    is_bad = card.verdict.outcome in ("fail", "warn")
    by_rule = (text for rule, text in _BY_RULE.items() if is_bad and rule in rules)
    return next(by_rule, _NEXT[card.verdict.outcome])


def _main_metrics(card: Card) -> Sequence[str]:
    """Return a line for matrix products, memory and a network: measured / expected, a word."""
    matmuls = _MATMULS[::-1] if card.environment["backend"] == "cpu" else _MATMULS
    rows = []
    for names in (matmuls, ("triad_gb_per_s",), ("images_per_s",)):
        figures = next((some for some in ([*card.named(name)] for name in names) if some), None)
        if figures:
            # Of several devices the slowest; of several networks the first.
            is_network = figures[0].name == "images_per_s"
            one = figures[0] if is_network else min(figures, key=lambda one: one.value)
            title = " ".join(str(one.labels[name]) for name in NETWORK) if is_network else one.name
            expected = f"/ {one.expected or '?'}"
            rows.append([title, four_digits(one.value), expected, one.comparison_text])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
