"""Qualify a machine: the parts one after the other, whatever happens to one, and the card."""

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from jaxbench import __version__
from jaxbench.cards.card import Card, Part
from jaxbench.cards.card_file import CARD, write_card
from jaxbench.cards.figures import FIGURES, PARTS
from jaxbench.cards.preset import choose_preset
from jaxbench.cards.thresholds import Thresholds
from jaxbench.cards.verdict import failures, judge
from jaxbench.clock import now
from jaxbench.config import Experiment
from jaxbench.errors import BadInput, Terminated, first_line
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.hardware.checks import run_checks
from jaxbench.hardware.environment import describe_environment
from jaxbench.parallel import processes
from jaxbench.parallel.mesh import create_mesh
from jaxbench.parallel.signals import defer_signals
from jaxbench.paths import check_can_be_made, user_path
from jaxbench.qualification.bench import Bench, PartFailed
from jaxbench.qualification.ceilings import measure_ceilings, measure_links
from jaxbench.qualification.console_card import card_lines
from jaxbench.qualification.host_load import LoadWatch
from jaxbench.qualification.networks import measure_networks
from jaxbench.qualification.plan import POWER_CURVE, make_links_plan, make_plan
from jaxbench.qualification.power_curve import check_power_limits, measure_power_curve
from jaxbench.qualification.soak import measure_soak
from jaxbench.qualification.storage import measure_storage
from jaxbench.records.next_steps import say_command
from jaxbench.records.run_dir import create_timed_folder
from jaxbench.records.run_lock import LOCK, lock_run
from jaxbench.records.writers.console import Console
from jaxbench.terminal import warn


def qualify(
    minutes: float,
    out: str | None,
    thresholds: Thresholds,
    console: Console,
    *,
    soak_minutes: float | None = None,
    storage: bool = False,
    power_limits: Sequence[int] = (),
) -> int:
    """Measure a card, write and print it; return 1 if it fails, else 0.

    Args:
      minutes: for all parts.
      out: a new or empty folder; None makes runs/qualify/TIME.
      thresholds: the limits that the card is judged by.
      console: where lines and the bar go.
      soak_minutes, storage: see `make_plan`.
      power_limits: watts of the power curve.

    Raises:
      BadInput: before anything is measured or written.
      KeyboardInterrupt, Terminated: a signal came; the card of what was measured is written.
    """
    # pmap refuses functions that have only replicated arguments, such as the one of `RepeatCheck`.
    load, mesh = LoadWatch(), create_mesh(Experiment(parallelism="shard_map"))
    platform = mesh.devices[0].platform
    if processes.count() > 1:
        plan = make_links_plan(minutes)
    else:
        plan = make_plan(
            minutes,
            num_devices=mesh.num_devices,
            on_cpu=platform == "cpu",
            soak_minutes=soak_minutes,
            storage=storage,
            power_limits=len(power_limits),
        )
    if power_limits:
        check_power_limits(power_limits, mesh.devices)
    folder, lock = _new_folder(out) if processes.is_primary() else (pathlib.Path(), None)
    try:
        bench = Bench(mesh, folder, choose_preset(platform), console, plan, power_limits)
        load.count_gpu_processes(mesh.devices)
        ended = _measure_parts(bench)
        if not processes.is_primary():
            if ended:
                raise ended
            return 0
        with defer_signals():
            console.close()
            if not ended:
                load.count_gpu_processes(mesh.devices)
            card = _make_card(bench, minutes, load)
            card = msgspec.structs.replace(card, verdict=judge(card, thresholds))
            is_written = _put_out(bench, card)
        if ended:
            raise ended
        # The power curve is no part of the card.
        curve_failed = bench.ends.get(POWER_CURVE, ("",))[0] == "failed"
        is_bad = bench.unused or failures(card.verdict) or curve_failed
        return int(not is_written or bool(is_bad))
    finally:
        if lock is not None:
            os.close(lock)


def _measure_parts(bench: Bench) -> BaseException | None:
    """Measure the parts of the plan; return what a signal raised, None without one."""
    # The CPU is not what somebody with accelerators wants to know, and takes minutes.
    bench.unused = unused = processes.broadcast_value(
        unused_accelerators(bench.mesh.devices[0].platform)
    )
    for line in unused:
        bench.console.say(f"{line}; or set JAX_PLATFORMS=cpu to measure the CPU")
    for line in () if unused else _describe_plan(bench):
        bench.console.say(line)
    try:
        for name in bench.plan.times_s:
            if unused and name != "doctor":
                bench.ends[name] = ("skipped", "the accelerators of this machine are not used")
            else:
                _measure(bench, name)
    except (KeyboardInterrupt, Terminated) as error:
        return error
    return None


def _new_folder(out: str | None) -> tuple[pathlib.Path, int]:
    """Make the folder of the card and lock it; return it and the lock's descriptor."""
    if out == "":
        raise BadInput("--out=: must name a folder")
    path = user_path(out) if out else pathlib.Path("runs", "qualify")
    try:
        _check_unused(path, out)
        check_can_be_made(path, "out")
        if out:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = create_timed_folder(path)
        lock = lock_run(path)
    except OSError as error:
        raise BadInput(f"--out={out or path}: {error.strerror}") from error
    try:
        # Only who holds the lock can tell: another process may have written since.
        _check_unused(path, out)
    except BadInput:
        os.close(lock)
        raise
    return path, lock


def _check_unused(path: pathlib.Path, out: str | None) -> None:
    """Raise BadInput if --out names a file, or a folder with more than a lock in it."""
    if out and (path.is_file() or (path.is_dir() and {*os.listdir(path)} - {LOCK})):
        raise BadInput(f"--out={out}: nothing is overwritten, name a new or empty folder")


def _describe_plan(bench: Bench) -> Iterator[str]:
    mesh, plan = bench.mesh, bench.plan
    yield (
        f"qualifying {mesh.num_devices} x {mesh.devices[0].device_kind}, "
        f"preset {bench.preset.name}, about {plan.total_s / 60:.3g} min"
    )
    yield from plan.lines()
    if bench.on_cpu:
        shared = "; simulated devices share one processor" if mesh.num_devices > 1 else ""
        yield f"these are CPU devices: small networks, no published peak to judge by{shared}"


def _measure(bench: Bench, name: str) -> None:
    """Measure one part; whatever is raised is its end, and not that of the other parts."""
    plan = bench.plan
    time_s = plan.soak_s(bench.clock.wall_s()) if name == "soak" else plan.times_s[name]
    bench.part = name
    bench.show("begins")
    try:
        with bench.clock.phase(name):
            _MEASURE[name](bench, time_s)
    except Exception as error:
        if processes.count() > 1:  # the others wait for this process, and end with it
            raise
        words = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, PartFailed | BadInput):
            words = str(error)
        bench.ends[name] = ("failed", " ".join(words.split())[:500])
        bench.console.say(f"{name.replace('_', ' ')} failed: {bench.ends[name][1]}")
    except (KeyboardInterrupt, Terminated):
        bench.ends[name] = ("skipped", "interrupted")
        raise


def _check(bench: Bench, time_s: float) -> None:
    """Do what the command doctor does."""
    bench.notes[bench.part] = [*run_checks()]


_MEASURE: dict[str, Callable[[Bench, float], None]] = {
    "doctor": _check,
    "ceilings": measure_ceilings,
    "collectives": measure_links,
    "networks": measure_networks,
    "soak": measure_soak,
    "storage": measure_storage,
    POWER_CURVE: measure_power_curve,
}


def _make_card(bench: Bench, minutes: float, load: LoadWatch) -> Card:
    """Return the card of everything that was measured."""
    times_s, ends = bench.clock.totals_s(), bench.ends
    # Corruption is searched in the soak.
    if "soak" in ends and not any(figure.name == "rounds" for figure in bench.figures):
        ends["corruption"] = ends["soak"]
    parts = []
    for name in PARTS:
        done = ("measured", None) if name in times_s else ("skipped", "interrupted")
        status, reason = ends.get(name, done)
        figures = tuple(one for one in bench.figures if FIGURES[one.name].part == name)
        checks = tuple(bench.notes.get(name, ()))
        parts.append(Part(name, status, times_s.get(name, 0.0), reason, figures, checks))
    return Card(
        jaxbench_version=__version__,
        created_at=now().isoformat(timespec="seconds"),
        minutes_asked=minutes,
        minutes_taken=bench.clock.wall_s() / 60,
        environment=describe_environment(bench.mesh.devices),
        preset=bench.preset.name,
        load=load.load(),
        parts=tuple(parts),
    )


def _put_out(bench: Bench, card: Card) -> bool:
    """Print the card, then write it; return whether it could be written.

    In this order: a full disk must not take the results along.
    """
    console = bench.console
    for line in ("", *card_lines(card), ""):
        console.say(line) if line else console.print(line)
    try:
        path = write_card(bench.folder, card)
    except OSError as error:
        warn(f"jaxbench: {bench.folder / CARD}: {error.strerror}: the card is not written")
        return False
    console.say(f"card: {path}")
    say_command(console, "report", "jaxbench", "report", str(path.parent))
    say_command(console, "check", "jaxbench", "qualify", "check", str(path))
    return True
