"""How much of each package the tests run, from one or two files of `coverage json`.

    coverage run -m pytest; coverage combine; coverage json
    python tests/coverage_table.py [BEFORE.json] AFTER.json

Prints lines and branches in per cent for each folder of jaxbench and for all of it; what stands in
jaxbench/ itself is one row. Of two files the change is shown in points. Exit code 1 if a package's
lines or branches are lower by more than 0.05 points, 2 for what is no such file.
"""

import collections
import json
import pathlib
import sys
from typing import NamedTuple

# What a package may lose: a line that a race leaves out now and then.
TOLERANCE = 0.05
_ROOT, _TOTAL = "jaxbench", "total"


class Counts(NamedTuple):
    """Lines and branches, and how many of them were run."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(self, other, strict=True)))

    @property
    def percent(self) -> tuple[float, float]:
        """Of lines and of branches; 100 where there are none."""
        return (
            100 * self.lines_run / self.lines if self.lines else 100.0,
            100 * self.branches_run / self.branches if self.branches else 100.0,
        )


def by_package(report: dict) -> dict[str, Counts]:
    """Returns {package: its counts}, the total last; wherever the checkout lies."""
    counts: dict[str, Counts] = collections.defaultdict(Counts)
    for name, file in report["files"].items():
        # "/somewhere/jaxbench/jaxbench/data/feed.py" is in jaxbench.data.
        _, _, inside = f"/{name}".rpartition(f"/{_ROOT}/")
        package = ".".join([_ROOT, *pathlib.PurePosixPath(inside).parent.parts])
        summary = file["summary"]
        own = Counts(
            summary["num_statements"],
            summary["covered_lines"],
            summary["num_branches"],
            summary["covered_branches"],
        )
        counts[package] += own
        counts[_TOTAL] += own
    return {
        **{name: counts[name] for name in sorted(counts.keys() - {_TOTAL})},
        _TOTAL: counts[_TOTAL],
    }


def lower(before: dict[str, Counts], after: dict[str, Counts]) -> list[str]:
    """Returns the packages of both of which less is run than before."""
    return [
        name
        for name in before.keys() & after.keys()
        if any(
            old - new > TOLERANCE
            for old, new in zip(before[name].percent, after[name].percent, strict=True)
        )
    ]


def table(before: dict[str, Counts] | None, after: dict[str, Counts]) -> list[str]:
    """Returns the lines to print."""
    told = [f"{'package':<28} {'statements':>10} {'lines %':>17} {'branches %':>17}"]
    for name in [n for n in {**(before or after), **after} if n != _TOTAL] + [_TOTAL]:
        if name not in after:
            told.append(f"{name:<28} only before")
            continue
        cells = [f"{percent:.2f}" for percent in after[name].percent]
        if before and name in before:
            pairs = zip(before[name].percent, after[name].percent, strict=True)
            cells = [f"{new:.2f} ({new - old:+.2f})" for old, new in pairs]
        told.append(
            f"{name:<28} {after[name].lines:>10} {cells[0]:>17} {cells[1]:>17}"
            + ("  only after" if before and name not in before else "")
        )
    return told


def read(path: str) -> dict[str, Counts]:
    """Reads a file of `coverage json`.

    Raises:
      SystemExit: with exit code 2, where it is none.
    """
    try:
        return by_package(json.loads(pathlib.Path(path).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{path}: no file of `coverage json` with branches: {error!r}", file=sys.stderr)
        raise SystemExit(2) from None


def main(paths: list[str]) -> int:
    if len(paths) not in (1, 2):
        print("give one or two files of `coverage json`", file=sys.stderr)
        return 2
    *earlier, after = map(read, paths)
    before = earlier[0] if earlier else None
    print("\n".join(table(before, after)))
    worse = lower(before, after) if before else []
    if worse:
        print(f"lower by more than {TOLERANCE} points: {', '.join(sorted(worse))}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
