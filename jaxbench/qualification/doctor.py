"""The part doctor: what the command doctor checks, data sets apart."""

from jaxbench.hardware.checks import CHECKS, check_data_sets, run_checks
from jaxbench.qualification.session import QualifySession


def measure(session: QualifySession, time_s: float) -> None:
    """Note the checks of the machine and of what is installed on it."""
    session.notes[session.part] = [*run_checks(one for one in CHECKS if one is not check_data_sets)]
