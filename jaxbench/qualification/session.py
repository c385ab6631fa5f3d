"""What all parts of a card share: the devices, the folder, what was measured, the progress."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from jaxbench.cards.card import Figure
from jaxbench.cards.figures import Preset
from jaxbench.clock import Clock
from jaxbench.hardware.system import Check
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification.plan import Plan
from jaxbench.records.writers.console import Console

# The folder of the run directories, below the card's.
RUNS = "runs"


class PartFailed(Exception):
    """Something of a part failed, and the rest of it was measured; the message says what."""


@dataclasses.dataclass
class QualifySession:
    """The machine under test.

    Attributes:
      clock: counts each part as a phase of its name.
      figures: what has been measured so far, of all parts.
      notes: {part: what else there is to say of it}.
      ends: {part: (status, reason)} of what was begun, and not measured.
      part: that is being measured.
    """

    mesh: DataMesh
    folder: pathlib.Path
    preset: Preset
    console: Console
    plan: Plan
    clock: Clock = dataclasses.field(default_factory=Clock)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    notes: dict[str, list[Check]] = dataclasses.field(default_factory=dict)
    ends: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    part: str = ""

    @property
    def on_cpu(self) -> bool:
        return self.mesh.devices[0].platform == "cpu"

    def show(self, activity: str) -> None:
        """Show what is being done, and how much of the plan's time has passed."""
        planned_s = self.plan.total_s
        done_s = min(self.clock.wall_s(), planned_s)
        status = f"s, {self.part}: {activity}"
        self.console.progress("qualify", int(done_s), int(planned_s), status)

    def note(self, name: str, status: Any, detail: str) -> None:
        """Add a line to the part that is being measured.

        A line that is there already, as of a device like another, is not repeated.
        """
        lines, line = self.notes.setdefault(self.part, []), Check(name, status, detail)
        if line not in lines:
            lines.append(line)


class InnerConsole(Console):
    """The console of a run inside a part, named `title`: only its bar is shown."""

    def __init__(self, session: QualifySession, title: str):
        super().__init__()
        self._session, self._title = session, title

    def print(self, line: str) -> None:
        """Print nothing: the run's records have it."""

    def progress(self, title: str, done: int, total: int, status: str) -> None:
        self._session.show(f"{self._title}: {title}")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._session.show(f"{self._title}: {name}")
        yield
