"""The power curve: images/s and energy an image of one network, by the power limit of the GPUs.

The limits are the driver's, so they outlive this process. A small guardian process restores those
that were there.
"""

import contextlib
import csv
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

import jax

from jaxbench.clock import ask
from jaxbench.errors import BadInput
from jaxbench.hardware.telemetry.nvml import (
    PowerLimit,
    cuda_ordinals,
    read_power_limits,
    set_power_limits,
)
from jaxbench.metrics import plain
from jaxbench.modes.throughput import measure_throughput
from jaxbench.qualification.networks import make_config, name_of, pace_of
from jaxbench.qualification.session import RUNS, InnerConsole, QualifySession

_RATES = ("images_per_s", "images_per_s_low", "images_per_s_high")
COLUMNS = ("power_limit_w", *_RATES, "energy_j_per_image")
_FILE = "power_curve.csv"
_GUARDIAN = pathlib.Path(__file__).with_name("power_guardian.py")
_PATIENCE_S = 10.0


def parse_watts(texts: Sequence[str]) -> list[int]:
    """Return the watts of --power_limits; raise BadInput for what is none."""
    watts = [int(text) if text.isdecimal() else 0 for text in texts]
    if not watts or 0 in watts or len({*watts}) < len(watts):
        raise BadInput(
            f"--power_limits={','.join(texts)}: must be different whole numbers of watts, such as "
            "200,300"
        )
    return watts


def check_power_limits(watts: Sequence[int], devices: Sequence[jax.Device]) -> list[PowerLimit]:
    """Return the limits of all boards now; nothing is changed.

    Raises:
      BadInput: there are no such boards, this process may not set them, or not to these watts.
    """
    limits = read_power_limits(cuda_ordinals(devices))
    for limit in limits:
        if not all(limit.least_mw <= 1000 * one <= limit.most_mw for one in watts):
            raise BadInput(
                f"--power_limits={','.join(map(str, watts))}: the GPU {limit.address} takes "
                f"{limit.least_mw / 1000:g} to {limit.most_mw / 1000:g} W"
            )
    return limits


@contextlib.contextmanager
def restored_at_end(limits: Sequence[PowerLimit]) -> Iterator[None]:
    """Have a guardian restore these limits when the `with`, or this process, ends.

    Raises:
      OSError: the guardian does not start, or a board refuses its old limit.
    """
    old_mw = {limit.address: limit.current_mw for limit in limits}
    guardian = subprocess.Popen(
        [sys.executable, str(_GUARDIAN), json.dumps(old_mw)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in the terminal goes to this process alone.
        start_new_session=True,
    )
    try:
        if (
            ask("the process that restores the power limits", guardian.stdout.readline)
            != b"ready\n"
        ):
            raise OSError("the process that restores the power limits did not start")
        yield
    finally:
        guardian.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # NVML hangs there
            guardian.wait(_PATIENCE_S)
            guardian.stdout.close()
    if guardian.returncode != 0:
        raise OSError(f"the power limits could not be restored; they were {old_mw} (milliwatts)")


def measure(session: QualifySession, time_s: float) -> None:
    """Measure the preset's first network at each limit; write the table."""
    watts = session.power_limits
    limits = check_power_limits(watts, session.mesh.devices)
    network, precision = session.preset.networks[0], session.preset.precisions[0]
    config = make_config(network, precision, session.mesh.num_devices)
    pace, rows = pace_of(time_s / len(watts)), []
    with restored_at_end(limits):
        for limit_w in watts:
            session.show(f"{name_of(config)} at {limit_w} W")
            set_power_limits({limit.address: 1000 * limit_w for limit in limits})
            result = measure_throughput(
                config,
                str(session.folder / RUNS / f"power-{limit_w}w"),
                InnerConsole(session, f"{name_of(config)} at {limit_w} W"),
                **pace,
            )
            rates = [result.summary.get(name) for name in _RATES]
            telemetry = result.summary.get("telemetry") or {}
            is_known = telemetry.get("energy_window_long_enough")
            energy_j = telemetry["joules_per_image"] if is_known else None
            rows.append([limit_w, *rates, energy_j])
            with open(session.folder / _FILE, "w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *rows])
            shown = f"{plain(rates[0])} images/s, {plain(energy_j)} J an image"
            session.console.say(f"{limit_w} W: {shown}")
    session.note("table", "ok", f"images/s and energy of {name_of(config)} by limit: {_FILE}")
