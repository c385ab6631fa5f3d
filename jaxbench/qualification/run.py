"""Qualify a machine: the parts one after the other, whatever happens to one, and the card."""

import importlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from jaxbench import __version__
from jaxbench.cards.card import Card, HostLoad, Part
from jaxbench.cards.card_file import CARD, make_folder, write_card
from jaxbench.cards.expected import FEWEST_CARDS, expect
from jaxbench.cards.figures import CPU, FIGURES, PARTS, STANDARD
from jaxbench.cards.verdict import failures, judge
from jaxbench.clock import now
from jaxbench.config import Experiment
from jaxbench.errors import BadInput, Terminated, as_refusal, first_line
from jaxbench.hardware.accelerators import unused_accelerators
from jaxbench.hardware.distorters import distortion_warnings
from jaxbench.hardware.environment import describe_environment
from jaxbench.hardware.telemetry.nvml import cuda_ordinals, other_gpu_processes
from jaxbench.hardware.telemetry.readers import HostReader
from jaxbench.parallel.mesh import create_mesh
from jaxbench.parallel.signals import defer_signals
from jaxbench.qualification.console_card import answer_lines
from jaxbench.qualification.plan import make_plan
from jaxbench.qualification.predicted import predict
from jaxbench.qualification.session import RUNS, PartFailed, QualifySession
from jaxbench.records.run_dir import create_timed_folder
from jaxbench.records.writers.console import Console
from jaxbench.terminal import four_digits, warn


def qualify(
    minutes: float,
    out: str | None,
    console: Console,
    *,
    soak_minutes: float | None = None,
    fleet: Sequence[Card] = (),
) -> int:
    """Measure a card, write it and print the answer; return 1 if it fails, else 0.

    Args:
      out: a new or empty folder; None makes runs/qualify/TIME.
      soak_minutes: of the soak; None for what the other parts leave.

    Raises:
      BadInput: before anything is measured or written.
      KeyboardInterrupt, Terminated: a signal came; the card of what was measured is written.
    """
    host = HostReader()
    [*host.read()]  # the next reading is of what follows
    # pmap refuses functions that have only replicated arguments, such as the one of `RepeatCheck`.
    mesh = create_mesh(Experiment(parallelism="shard_map"))
    platform = mesh.devices[0].platform
    # The CPU is not what somebody with accelerators wants to know, and takes minutes.
    unused = unused_accelerators(platform)
    plan = make_plan(
        minutes,
        num_devices=mesh.num_devices,
        on_cpu=platform == "cpu",
        soak_minutes=soak_minutes,
        only_doctor="the accelerators of this machine are not used" if unused else None,
    )
    folder = _new_folder(out)
    preset = CPU if platform == "cpu" else STANDARD
    session = QualifySession(mesh, folder, preset, console, plan)
    lines = [f"{line}; or set JAX_PLATFORMS=cpu to measure the CPU" for line in unused]
    lines = lines or [f"warning: {line}" for line in distortion_warnings()]
    for line in (*lines, *([] if unused else _describe_plan(session))):
        console.say(line)
    ordinals = cuda_ordinals(mesh.devices)
    gpu_processes = [other_gpu_processes(ordinals)]
    ended: BaseException | None = None
    try:
        for name in plan.times_s:
            _measure(session, name)
    except (KeyboardInterrupt, Terminated) as error:
        ended = error
    with defer_signals():
        console.close()
        gpu_processes.append(None if ended else other_gpu_processes(ordinals))
        [reading] = host.read()
        load = HostLoad(
            other_cpu_percent=reading.values["other_cpu_percent"],
            cpu_percent=reading.values["cpu_percent"],
            other_gpu_processes=max((n for n in gpu_processes if n is not None), default=None),
        )
        console.say("predicting the rates of the networks")
        card = expect(_make_card(session, minutes, load), fleet, predict)
        bases = {one.expected.basis for one in card.figures() if one.expected}
        if len(fleet) >= FEWEST_CARDS and "fleet" not in bases:
            console.say("no fleet: too few sound cards are of this kind, or they differ too much")
        card = replace(card, verdict=judge(card))
        is_written = _publish(session, card)
    if ended:
        raise ended
    return int(not is_written or bool(unused or failures(card.verdict)))


def _new_folder(out: str | None) -> pathlib.Path:
    """Make the folder of the card, with the one of its runs, which no other program has made."""
    if out == "":
        raise BadInput("--out=: must name a folder")
    with as_refusal(f"--out={out or 'runs/qualify'}"):
        folder = make_folder(out) if out else create_timed_folder(pathlib.Path("runs", "qualify"))
        (folder / RUNS).mkdir()
    return folder


def _describe_plan(session: QualifySession) -> Iterator[str]:
    mesh, plan = session.mesh, session.plan
    yield (
        f"qualifying {mesh.num_devices} x {mesh.devices[0].device_kind}, "
        f"preset {session.preset.name}, about {plan.total_s / 60:.3g} min"
    )
    yield from plan.lines()
    if session.on_cpu:
        shared = "; simulated devices share one processor" if mesh.num_devices > 1 else ""
        yield f"these are CPU devices: small networks, no published peak to judge by{shared}"


def _measure(session: QualifySession, name: str) -> None:
    """Measure one part; whatever is raised is its end, and not that of the other parts."""
    time_s = session.plan.part_s(name, session.clock.wall_s())
    session.part = name
    session.show("begins")
    try:
        with session.clock.phase(name):
            importlib.import_module(f"{__package__}.{name}").measure(session, time_s)
    except Exception as error:
        is_ours = isinstance(error, PartFailed | BadInput)
        words = str(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"
        session.ends[name] = ("failed", " ".join(words.split())[:500])
        session.console.say(f"{name} failed: {session.ends[name][1]}")
    except (KeyboardInterrupt, Terminated):
        session.ends[name] = ("skipped", "interrupted")
        raise


def _make_card(session: QualifySession, minutes: float, load: HostLoad) -> Card:
    """Return the card of everything that was measured."""
    times_s, parts = session.clock.totals_s(), []
    skipped = {name: ("skipped", reason) for name, reason in session.plan.skipped.items()}
    ends: dict[str, Any] = skipped | session.ends
    for name, kind in PARTS.items():
        figures = tuple(one for one in session.figures if FIGURES[one.name].part == name)
        end: Any = ends.get(kind.measured_in if kind.measured_in and not figures else name)
        if end is None:
            end = ("measured", None) if name in times_s else ("skipped", "interrupted")
        checks = tuple(session.notes.get(name, ()))
        parts.append(Part(name, end[0], times_s.get(name, 0.0), end[1], figures, checks))
    return Card(
        jaxbench_version=__version__,
        created_at=now().isoformat(timespec="seconds"),
        minutes_asked=minutes,
        minutes_taken=session.clock.wall_s() / 60,
        environment=describe_environment(session.mesh.devices),  # type: ignore[arg-type]
        preset=session.preset.name,
        load=load,
        parts=tuple(parts),
    )


def _publish(session: QualifySession, card: Card) -> bool:
    """Write the card, and print the answer; return whether it could be written.

    If not, as on a full disk, all metrics are printed: the results must not be lost.
    """
    console, error = session.console, None
    try:
        write_card(session.folder, card)
    except OSError as caught:
        error = caught
        for figure in card.figures():
            console.say(f"{figure}: {four_digits(figure.value)}")
    console.print("")
    for line in answer_lines(card, session.folder):
        console.print(line)
    if error:
        warn(f"jaxbench: {session.folder / CARD}: {error.strerror}: the card is not written")
    return error is None
