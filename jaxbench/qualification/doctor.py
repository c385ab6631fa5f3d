"""The part doctor: what the command doctor checks."""

from jaxbench.hardware.checks import run_checks
from jaxbench.qualification.session import QualifySession


def measure(session: QualifySession, time_s: float) -> None:
    """Note the checks of the machine and of what is installed on it."""
    session.notes[session.part] = [*run_checks()]
