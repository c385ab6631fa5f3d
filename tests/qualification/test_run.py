"""The parts one after the other, whatever happens to one; the exit code; what the console says."""

import errno
import os
import types

import jax
import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import measured
from jaxbench.cards.card_file import read_card
from jaxbench.cards.check import check_card
from jaxbench.cards.figures import PARTS
from jaxbench.errors import Terminated
from jaxbench.hardware.system import Check
from jaxbench.hardware.telemetry.readers import HostReader, Reading
from jaxbench.parallel.mesh import DataMesh
from jaxbench.qualification import ceilings, collectives, doctor, run
from jaxbench.qualification.corruption import CorruptionCheck
from jaxbench.qualification.plan import Plan
from jaxbench.qualification.session import PartFailed, QualifySession
from tests.conftest import refusal
from tests.qualification.conftest import corrupt_device

_MEASURED = ("fp32", "bf16", "fp16", "fp8")
run_make_plan, measure_ceilings = run.make_plan, ceilings.measure
OK = Check("jax", "ok", "0.10.2")


def others_take(monkeypatch, percent):
    reading = Reading("host", "host", {"other_cpu_percent": percent, "cpu_percent": percent})
    monkeypatch.setattr(HostReader, "read", lambda _: iter([reading]))


def nothing(session, time_s):
    """A part that measures nothing."""


@pytest.fixture
def qualify(monkeypatch, tmp_path, session, output, preset):
    """Qualifies two devices on an idle host; returns the exit code and the card."""
    others_take(monkeypatch, 0.0)
    monkeypatch.setattr(doctor, "run_checks", lambda _: [OK])
    monkeypatch.setattr(run, "CPU", preset)
    monkeypatch.setattr(run, "create_mesh", lambda experiment: session.mesh)
    measured_parts = ("doctor", "ceilings", "collectives", "networks", "soak")
    plan = Plan(dict.fromkeys(measured_parts, 0.1), {})

    def make_plan(minutes, *, only_doctor, **how):
        return run_make_plan(minutes, only_doctor=only_doctor, **how) if only_doctor else plan

    monkeypatch.setattr(run, "make_plan", make_plan)

    def replace_part(name, measure):
        monkeypatch.setattr(f"jaxbench.qualification.{name}.measure", measure)

    for name, kind in PARTS.items():
        if name != "doctor" and not kind.measured_in:
            replace_part(name, nothing)

    def go(**parts):
        for name, measure in parts.items():
            replace_part(name, measure)
        out = tmp_path / "card"
        try:
            code = run.qualify(1.0, str(out), session.console)
        except BaseException as error:
            code = type(error)
        return code, read_card(out) if (out / "card.json").exists() else None

    return go


def triad(session, time_s):
    session.figures.append(measured("triad_gb_per_s", Estimate(20.0, 19.0, 21.0), device=0))


def test_a_card_of_an_idle_machine(qualify, output, tmp_path):
    code, card = qualify(ceilings=triad)
    assert code == 0 and card.verdict.outcome == "incomplete"  # the parts measure nothing
    assert check_card(tmp_path / "card") == []
    assert [part.name for part in card.parts] == [*PARTS]
    done = [part.name for part in card.parts if part.status == "measured"]
    assert done == ["doctor", "ceilings", "collectives", "networks", "soak"]
    assert [str(figure) for figure in card.figures()] == ["triad_gb_per_s, device 0"]
    text = output.getvalue()
    assert "plan: doctor 0 s" in text and "verdict: INCOMPLETE; no expectation" in text
    # The folder is not below the working folder.
    assert text.splitlines()[-1] == f"all of it: jaxbench report {tmp_path / 'card'}"


def test_a_busy_host_is_inconclusive_and_says_why(qualify, monkeypatch, output):
    others_take(monkeypatch, 100.0)
    code, card = qualify()
    assert (code, card.verdict.outcome) == (0, "inconclusive")
    assert card.load.other_cpu_percent == 100
    assert "the host was busy: 100, limit 10" in output.getvalue()


def test_a_wrong_wheel_fails(qualify, monkeypatch, output):
    wrong = Check("jax-cuda12-plugin", "problem", "0.9.0, but jaxlib is 0.10.2", "pip install")
    monkeypatch.setattr(doctor, "run_checks", lambda _: [OK, wrong])
    code, card = qualify()
    assert (code, card.verdict.outcome) == (1, "fail")
    assert card.part("doctor").checks[1].detail == wrong.detail
    text = " ".join(output.getvalue().split())
    assert "fail: doctor: problems: 1 (jax-cuda12-plugin)" in text and "next: pip install" in text


def test_accelerators_that_are_not_used_end_it_after_the_doctor(qualify, monkeypatch, output):
    told = "JAX uses the CPU, but the machine has 8 NVIDIA GPUs: pip install"
    monkeypatch.setattr(run, "unused_accelerators", lambda platform: [told])
    code, card = qualify(ceilings=lambda *_: pytest.fail("was measured"))
    assert code == 1
    assert [part.name for part in card.parts if part.status == "measured"] == ["doctor"]
    assert card.part("networks").reason == "the accelerators of this machine are not used"
    text = " ".join(output.getvalue().split())
    assert f"{told}; or set JAX_PLATFORMS=cpu" in text and "plan:" not in text


def test_a_part_that_raises_is_failed_and_the_next_ones_follow(qualify, output):
    def fail(session, time_s):
        session.figures.append(measured("copy_gb_per_s", 1.0, device=0))
        raise ValueError("no such thing\nand more")

    def networks(session, time_s):
        session.note("x", "warning", "not measured")
        raise PartFailed("cnn10 bf16 64: it burns")

    code, card = qualify(ceilings=fail, networks=networks)
    part = card.part("ceilings")
    assert code == 1 and (part.status, part.reason) == ("failed", "ValueError: no such thing")
    assert [figure.name for figure in part.figures] == ["copy_gb_per_s"]
    assert card.part("networks").reason == "cnn10 bf16 64: it burns"
    assert card.part("soak").status == "measured"
    assert "fail: ceilings: status: failed: ValueError: no such thing\n" in output.getvalue()


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated])
def test_a_signal_midway_leaves_the_card_of_what_was_measured(qualify, error, output, tmp_path):
    def end(session, time_s):
        session.figures.append(measured("copy_gb_per_s", 20.0, device=0))
        raise error

    code, card = qualify(ceilings=triad, networks=end)
    assert code is error and check_card(tmp_path / "card") == []
    ends = {part.name: (part.status, part.reason) for part in card.parts}
    assert ends["ceilings"] == ("measured", None)
    interrupted = ("skipped", "interrupted")
    assert {ends[name] for name in ("networks", "soak", "corruption")} == {interrupted}
    assert len([*card.figures()]) == 2
    assert "verdict: " in output.getvalue()


@pytest.mark.parametrize("given", ["", "full", "file"])
def test_a_folder_that_is_used_is_refused(qualify, tmp_path, given, monkeypatch, session):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    for path in ("full/other", "file"):
        (tmp_path / path).write_text("other")
    refusal(run.qualify, 1.0, given, session.console, told=f"--out={given}: ")
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_a_full_disk_leaves_the_card_on_the_console(qualify, tmp_path, monkeypatch, output, capsys):
    def write(folder, card):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run, "write_card", write)
    code, card = qualify(ceilings=triad)
    assert code == 1 and card is None
    assert "triad_gb_per_s, device 0: 20" in output.getvalue()
    told = f"jaxbench: {tmp_path / 'card' / 'card.json'}: No space left on device: "
    assert capsys.readouterr().err == f"{told}the card is not written\n"


@pytest.fixture
def as_gpus(monkeypatch):
    """Has the simulated devices be judged as GPUs."""
    described = run.describe_environment

    def describe(devices):
        return described(devices) | {"backend": "gpu", "device_kind": "GPU"}

    monkeypatch.setattr(run, "describe_environment", describe)
    monkeypatch.setattr(QualifySession, "on_cpu", False)


def test_a_slow_device_fails(qualify, as_gpus, monkeypatch, output):
    rate = Estimate(1e12, 0.99e12, 1.01e12)
    make, rates = ceilings.matmul_calls, {}

    def make_slow(device, arithmetic, shape, window_s):
        if arithmetic == "int8":
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: int8")
        calls = make(device, arithmetic, shape, window_s)
        slower = 0.3 if device.id == 1 else 1.0
        rates[device.id, arithmetic] = shape
        calls.per_s = lambda amount: rate.map(lambda one: slower * one)
        return calls

    # The shape is searched only on the first device.
    monkeypatch.setattr(ceilings, "find_best_shape", lambda *_: ((256,) * 3, [(256,) * 3]))
    monkeypatch.setattr(ceilings, "matmul_calls", make_slow)
    monkeypatch.setattr(ceilings, "_measure_memory", lambda *_: [])
    code, card = qualify(ceilings=measure_ceilings)
    [finding] = [one for one in card.verdict.findings if one.rule == "device_spread"]
    assert code == 1 and finding.status == "fail"
    assert "slowest: device 1" in finding.text
    assert {*rates} == {(device, name) for device in (0, 1) for name in _MEASURED}
    notes = [check.detail for check in card.part("ceilings").checks]
    shape = "m x k x n is 256 x 256 x 256, the best of 1 shapes; no floor applies, because none had"
    shape += " sides of 4,096 or more"
    assert {one.value for one in card.named("matmul_side")} == {256}
    assert notes == [shape, *["not measured: UNIMPLEMENTED: int8"] * 2]
    assert "fail: ceilings: device spread: " in " ".join(output.getvalue().split())


def test_sizes_are_noted_once_for_all_devices(session, monkeypatch):
    monkeypatch.setattr(ceilings, "choose_array_bytes", lambda _: 2**25)
    rates = {"copy": Estimate(9e11, 8e11, 10e11)}
    monkeypatch.setattr(ceilings, "measure_bandwidth", lambda *_, **__: rates)
    transfers = {"pinned_host": Estimate(2e9, 1e9, 3e9), "pageable": Estimate(1e9, 1e9, 1e9)}
    transfers = {("host_to_device", memory): rate for memory, rate in transfers.items()}
    monkeypatch.setattr(ceilings, "measure_transfers", lambda *_, **__: transfers)
    session.part = "ceilings"
    for number in range(2):
        device = types.SimpleNamespace(id=number)
        [figure] = ceilings._measure_memory(session, device, 1.0, 6)
        assert figure == measured("copy_gb_per_s", Estimate(900.0, 800.0, 1000.0), device=number)
        [figure] = ceilings._measure_transfers(session, device, 6)
        assert figure == measured("h2d_gb_per_s", Estimate(2.0, 1.0, 3.0), device=number)
    assert [(one.name, one.detail) for one in session.notes["ceilings"]] == [
        ("memory", "arrays of 32 MiB each"),
        ("host to device", "pinned host memory"),
    ]


@pytest.mark.device
def test_a_call_that_takes_too_long_is_of_a_smaller_shape(monkeypatch, session):
    monkeypatch.setattr(ceilings, "_LONGEST_CALL_S", 0.0)
    monkeypatch.setattr(ceilings, "_SMALLEST_SIDE", 32)
    _, shape = ceilings._calls(session.mesh.devices[0], "fp32", (128, 128, 512), 0.01)
    assert shape == (32, 32, 128)


def test_a_corrupted_device_fails(qualify, monkeypatch):
    corrupt_device(monkeypatch, DataMesh, 1)

    def soak(session, time_s):
        check = CorruptionCheck(session)
        check.burst()
        check.report()

    code, card = qualify(soak=soak)
    assert code == 1 and card.part("corruption").status == "measured"
    wrong = {figure.device: figure.value for figure in card.part("corruption").named("mismatches")}
    assert wrong[0] == wrong[1] > 0  # either may be wrong
    named = [figure.labels for figure in card.named("mismatched_values")]
    assert {one["round"] for one in named} == {0, 1, 2}
    assert "layer1" in {one["tensor"] for one in named}
    [line] = [one.text for one in card.verdict.findings if one.rule == "mismatches"]
    assert "first: device 0 and 1, round 0, tensor layer0" in line


@pytest.mark.parametrize(("num_devices", "pairs"), [(2, 1), (8, 28), (16, 15 + 14)])
def test_pairs_of_many_devices_are_not_all_measured(num_devices, pairs):
    found = collectives._pairs(num_devices)
    assert len(found) == len({*found}) == pairs
    assert {place for pair in found for place in pair} == {*range(num_devices)}
