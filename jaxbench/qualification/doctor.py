"""The part doctor: what the command doctor checks."""

from jaxbench.hardware.checks import run_checks
from jaxbench.qualification.bench import Bench


def measure(bench: Bench, time_s: float) -> None:
    """Note the checks of the machine and of what is installed on it."""
    bench.notes[bench.part] = [*run_checks()]
