"""What the hardware did meanwhile: read, written, summed up, and never in the run's way."""

import collections
import csv
import datetime
import math
import sys
import threading
import types

import jax
import pynvml
import pytest

from jaxbench.analysis.statistics import drift, slowed_down
from jaxbench.clock import Clock, Stopwatch, wait_until
from jaxbench.files import LINE_LENGTH
from jaxbench.hardware.telemetry import readers, sampler
from jaxbench.hardware.telemetry.nvml import NvmlReader
from jaxbench.hardware.telemetry.readers import HostReader, TpuReader
from jaxbench.hardware.telemetry.sampler import COLUMNS, Telemetry, create_readers
from jaxbench.hardware.telemetry.summary import Series, Window, read_series, summarize
from jaxbench.modes import throughput
from jaxbench.modes.train import run_training
from jaxbench.records.writers.console import Console
from jaxbench.schema import ThroughputRecord
from jaxbench.xla.compile_cache import without_cache
from tests import conftest, fake_nvml
from tests.conftest import MICRO, config_of, records, run_json
from tests.fake_nvml import Board, Cuda, Nvml

INTERVAL_S = 0.02


@pytest.fixture
def table(tmp_path):
    return lambda: conftest.table(tmp_path / "telemetry.csv")


@pytest.fixture
def start(tmp_path):
    """Starts telemetry on some readers; ends it with the test."""
    started = []

    def begin(*readers):
        path = tmp_path / "telemetry.csv"
        telemetry = Telemetry(path, INTERVAL_S, Clock(), readers)
        started.append(telemetry)
        telemetry.start()
        return telemetry

    yield begin
    for telemetry in started:
        telemetry.stop()


@pytest.fixture
def two_boards(monkeypatch):
    """gpu0 is CUDA's first device and NVML's second: the driver orders them by speed."""
    boards = [Board(bus=0x0F, load=12, fan=38), Board(bus=0xB7)]
    fake_nvml.install(monkeypatch, Nvml(boards), Cuda([0xB7, 0x0F]))
    return boards


def telemetry_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("telemetry-")]


@pytest.fixture
def sampled(start, table):
    """Has telemetry write so many rows; returns it, stopped."""

    def run(*readers, rows=1):
        telemetry = start(*readers)
        wait_until(lambda: len(table()) >= rows)
        telemetry.stop()
        return telemetry

    return run


def test_a_board_is_read_in_the_units_that_the_columns_name(sampled, table, two_boards):
    two_boards[1].reasons = 0x4 | 0x40 | 0x4000
    telemetry = sampled(NvmlReader({"gpu0": 0, "gpu1": 1}), rows=6)
    rows = table()
    assert [row["device"] for row in rows[:4]] == ["gpu0", "gpu1"] * 2
    values = {k: v for k, v in rows[0].items() if v and k not in ("time", "elapsed_s", "device")}
    assert values == {
        "kind": "gpu",
        "load_percent": "97",
        "memory_used_bytes": str(30 * 2**30),
        "memory_total_bytes": str(80 * 2**30),
        "sm_clock_mhz": "1410",
        "memory_clock_mhz": "1593",
        "temperature_c": "61",  # a sensor that is not there, as its fan's, is an empty cell
        "power_w": "398.25",
        "energy_j": "1234567.89",
        "throttle_reasons": "sw_power_cap|hw_thermal_slowdown|0x4000",
    }
    assert (rows[1]["load_percent"], rows[1]["fan_percent"]) == ("12", "38")
    assert rows[1]["throttle_reasons"] == ""
    elapsed_s = [float(row["elapsed_s"]) for row in rows]
    assert elapsed_s == sorted(elapsed_s) and elapsed_s[-1] > elapsed_s[0]
    described, warnings = telemetry.summarize()
    assert described["errors"] == {}
    gpu0 = described["devices"]["gpu0"]
    reasons = ("sw_power_cap", "hw_thermal_slowdown", "0x4000")
    assert gpu0["throttle_reasons"] == dict.fromkeys(reasons, 1.0)
    assert (gpu0["power_w_mean"], gpu0["sm_clock_mhz_median"]) == (398.25, 1410)
    throttled, unequal = warnings
    assert throttled.startswith("gpu0 was throttled in 100% of")
    assert "gpu0 97 %, gpu1 12 %" in unequal


@pytest.mark.parametrize(
    ("limits", "lowered"),
    [
        ({}, ""),
        ({"limit_mw": 399_000}, "|power_limit_lowered"),
        ({"limit_mw": 450_000}, ""),
        ({"default_limit_mw": None}, ""),  # nobody knows
    ],
)
def test_a_power_limit_below_the_boards_default_is_told(
    sampled, table, monkeypatch, limits, lowered
):
    nvml = Nvml([Board(reasons=0x4, **limits)])
    fake_nvml.install(monkeypatch, nvml, Cuda([0x0F]))
    sampled(NvmlReader({"gpu0": 0}))
    assert table()[0]["throttle_reasons"] == f"sw_power_cap{lowered}"


def test_drivers_that_lack_a_function_leave_its_column_empty(sampled, table, monkeypatch):
    names = ("CurrentClocksEventReasons", "TemperatureV", "MigMode", "TotalEnergyConsumption")
    missing = tuple(f"nvmlDeviceGet{name}" for name in names)
    fake_nvml.install(monkeypatch, Nvml([Board(reasons=0x1)], missing), Cuda([0x0F]))
    telemetry = sampled(NvmlReader({"gpu0": 0}))
    # Those that had another name before are asked for by it.
    assert (table()[0]["throttle_reasons"], table()[0]["temperature_c"]) == ("gpu_idle", "61")
    assert table()[0]["energy_j"] == ""
    assert telemetry.summarize()[0]["errors"] == {}


@pytest.mark.parametrize(
    ("nvml", "cuda", "told"),
    [
        (None, Cuda([0x0F]), "NVML: NVML Shared Library Not Found"),
        (Nvml([Board()]), None, "NVML: libcuda.so.1: cannot open shared object file"),
        (Nvml([Board()]), Cuda([]), "NVML: the CUDA driver does not say which board device 0 is"),
        (Nvml([Board()]), Cuda([0x33]), "NVML: Not Found"),
    ],
)
def test_where_the_boards_cannot_be_found_the_host_is_still_read(
    sampled, table, monkeypatch, nvml, cuda, told
):
    fake_nvml.install(monkeypatch, nvml, cuda)
    telemetry = sampled(HostReader(), NvmlReader({"gpu0": 0}), rows=3)
    assert {row["device"] for row in table()} == {"host"}
    described, warnings = telemetry.summarize()
    [(message, count)] = described["errors"].items()
    assert message.startswith(told) and count >= 2  # it is asked again each time
    assert f"telemetry: {message} ({count} times)" in warnings
    assert described["energy_j"] is None


def test_a_gpu_that_is_lost_and_comes_back(start, table, two_boards):
    telemetry = start(NvmlReader({"gpu0": 0, "gpu1": 1}))
    wait_until(lambda: len(table()) >= 2)
    two_boards[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
    wait_until(lambda: table()[-2]["load_percent"] == "" or table()[-1]["load_percent"] == "")
    two_boards[1].error = pynvml.NVML_SUCCESS
    wait_until(lambda: [row["power_w"] for row in table()[-2:]] == ["398.25"] * 2)
    telemetry.stop()
    assert all(row["power_w"] for row in table() if row["device"] == "gpu1")
    [message] = telemetry.summarize()[0]["errors"]
    assert message == "gpu0: GPU is lost"


def test_a_sensor_that_may_not_be_read_is_told_and_the_others_are_read(
    sampled, table, two_boards, monkeypatch
):
    forbidden = lambda *_: pynvml.NVML_ERROR_NO_PERMISSION  # noqa: E731
    monkeypatch.setattr(Nvml, "_nvmlDeviceGetPowerUsage", forbidden)
    telemetry = sampled(NvmlReader({"gpu0": 0}))
    assert (table()[0]["power_w"], table()[0]["energy_j"]) == ("", "1234567.89")
    assert list(telemetry.summarize()[0]["errors"]) == ["gpu0: power_w: Insufficient Permissions"]


def test_a_call_that_never_returns_holds_nobody_up(start, table, two_boards, monkeypatch):
    monkeypatch.setattr(sampler, "_LONGEST_STOP_S", 0.1)
    answer = threading.Event()
    telemetry = start(HostReader(), NvmlReader({"gpu0": 0}))
    wait_until(lambda: {row["device"] for row in table()} == {"gpu0", "host"})
    two_boards[1].before = lambda: answer.wait(30)
    reached = len(table()) + 5
    wait_until(lambda: len(table()) >= reached)  # the host's rows go on
    assert table()[-1]["device"] == table()[-2]["device"] == "host"
    for _ in range(3):
        with telemetry.measured(1):
            pass
    telemetry.stop()
    assert telemetry_threads() == ["telemetry-NVML"]
    rows, (described, _) = table(), telemetry.summarize()
    assert described["errors"] == {"NVML: did not answer any more": 1}
    answer.set()
    wait_until(lambda: telemetry_threads() == [])
    # What came too late is left out.
    assert table() == rows and telemetry.summarize()[0] == described


def test_two_slices_of_one_board_are_one(start, table, monkeypatch):
    fake_nvml.install(monkeypatch, Nvml([Board(mig=True, load=None)]), Cuda([0x0F, 0x0F]))
    telemetry = start(NvmlReader({"gpu0": 0, "gpu1": 1}))
    wait_until(lambda: len(table()) >= 2)
    with telemetry.measured(100):
        wait_until(lambda: len(table()) >= 4)
    telemetry.stop()
    assert {(row["device"], row["kind"], row["load_percent"]) for row in table()} == {
        ("gpu0", "mig", "")
    }
    described, _ = telemetry.summarize()
    assert "which this run had a slice" in described["energy_covers"]
    assert described["joules_per_image"] is None


def test_a_full_disk_ends_nothing(start):
    reader = HostReader()
    telemetry = start(reader)

    class Full:
        def writerow(self, row):
            raise OSError(28, "No space left on device")

    telemetry._rows = Full()
    wait_until(lambda: any("No space" in message for message in telemetry._errors))
    telemetry.stop()
    described, _ = telemetry.summarize()
    assert described["devices"]["host"]["samples"] >= 2  # summed up all the same


def test_the_ends_of_what_is_measured_are_sampled_too(tmp_path, table, two_boards):
    """At long intervals nothing else comes between the first and the last reading."""

    def begin(interval_s):
        path = tmp_path / "telemetry.csv"
        path.unlink(missing_ok=True)  # it would be gone on with
        readers = [HostReader(), NvmlReader({"gpu0": 0})]
        telemetry = Telemetry(path, interval_s, Clock(), readers)
        telemetry.start()
        wait_until(lambda: len(table()) >= 2)
        return telemetry

    def counts():
        devices = [row["device"] for row in table()]
        return devices.count("gpu0"), devices.count("host")

    telemetry = begin(600)
    with telemetry.measured(1):
        pass
    telemetry.stop()
    # Too soon after the first, for the interval: the limit of what it may cost holds.
    assert counts() == (2, 2)
    watch = Stopwatch()
    telemetry = begin(5)
    wait_until(lambda: watch.elapsed_s() > 1.1)
    with telemetry.measured(1):
        wait_until(lambda: len(table()) >= 3)
        inside = table()[-1]
    telemetry.stop()
    assert inside["device"] == "gpu0" and counts() == (3, 2)


def test_which_readers_there_are():
    def device(platform, number, place):
        client = types.SimpleNamespace(local_devices=lambda: devices)
        return types.SimpleNamespace(
            platform=platform, id=number, local_hardware_id=place, client=client
        )

    devices = [device("gpu", 4, 0), device("gpu", 5, 1)]
    _, reader = create_readers(devices)
    assert isinstance(reader, NvmlReader) and reader._ordinals == {"gpu4": 0, "gpu5": 1}
    devices = [device("tpu", 8, 0), device("tpu", 9, 1)]
    _, reader = create_readers(devices[1:])
    assert isinstance(reader, TpuReader) and reader._places == {"tpu9": 1}
    [reader] = create_readers([device("cpu", 0, 0)])  # NVML is not asked
    assert isinstance(reader, HostReader)


def test_tpu_chips_are_read_as_libtpu_lists_them(monkeypatch):
    lists = {
        "duty_cycle_pct": ["81.50", "12.00"],
        "hbm_capacity_usage": ["1073741824", "0"],
        "hbm_capacity_total": ["33550000000", "33550000000"],
    }

    def get_metric(name):
        return types.SimpleNamespace(data=lambda: lists[name])

    def second():
        [reading] = TpuReader({"tpu1": 1}, 2).read()
        return reading

    sdk = types.ModuleType("libtpu.sdk")
    sdk.tpumonitoring = types.SimpleNamespace(get_metric=get_metric)
    monkeypatch.setitem(sys.modules, "libtpu", types.ModuleType("libtpu"))
    monkeypatch.setitem(sys.modules, "libtpu.sdk", sdk)
    assert (second().device, second().kind, second().errors) == ("tpu1", "tpu", [])
    sizes = {"memory_used_bytes": 0.0, "memory_total_bytes": 33550000000.0}
    assert second().values == {"load_percent": 12.0} | sizes
    # Two cores a chip: as many readings as there are chips.
    cores = {f"tpu{core}": core for core in range(4)}
    assert [reading.device for reading in TpuReader(cores, 4).read()] == ["tpu0", "tpu1"]
    del lists["duty_cycle_pct"]
    assert second().values == sizes and second().errors == ["duty_cycle_pct: 'duty_cycle_pct'"]
    lists.clear()
    with pytest.raises(OSError, match="hbm_capacity_usage"):
        second()
    monkeypatch.setitem(sys.modules, "libtpu.sdk", None)
    with pytest.raises(ImportError):
        second()


def a_run(power_of, *, every_s=1.0, until_s=60.0, counter=True, kind="gpu", **columns):
    """The readings of a board that takes power_of(t) watts: its counter is exact."""
    series = Series(kind)
    steps, energy_j = 1000, 5e6
    for sample in range(int(until_s / every_s) + 1):
        elapsed_s = sample * every_s
        values = {"power_w": power_of(elapsed_s)} if power_of else {}
        if counter and power_of:
            values["energy_j"] = energy_j
        values |= {name: of(elapsed_s) for name, of in columns.items()}
        series.add(elapsed_s, values)
        moments = [elapsed_s + every_s * (step + 0.5) / steps for step in range(steps)]
        energy_j += sum(map(power_of, moments)) * every_s / steps if power_of else 0.0
    return series


def energy_of(series, windows, interval_s=1.0):
    return summarize(series, windows, interval_s, {})[0]


@pytest.mark.parametrize("counter", [True, False])
def test_energy_is_that_of_the_windows(counter):
    """300 W while it trains, 100 W while it evaluates, from the 20th to the 40th second."""

    def power_w(elapsed_s):
        return 100.0 if 20 <= elapsed_s < 40 else 300.0

    boards = {f"gpu{n}": a_run(power_w, counter=counter) for n in range(2)}
    boards["host"] = a_run(None, kind="host")
    windows = [Window(2.5, 20.0, 700), Window(40.0, 57.5, 700)]
    energy = energy_of(boards, windows)
    # A power that is only seen each second is not known within the second that it changed in.
    assert energy["energy_j"] == pytest.approx(2 * 35 * 300, abs=1 if counter else 2 * 2 * 100)
    how = "total energy counter" if counter else "power reading every 1 s"
    assert energy["energy_covers"] == (
        f"GPU boards: gpu0 by NVML's {how}, gpu1 by NVML's {how}; not the host"
    )
    assert energy["energy_window_s"] == 35 and energy["energy_window_long_enough"]
    assert energy["joules_per_image"] == pytest.approx(energy["energy_j"] / 1400)
    assert energy["images_per_kwh"] == pytest.approx(3.6e6 * 1400 / energy["energy_j"])


@pytest.mark.parametrize(
    ("windows", "long_enough"),
    [
        ([Window(5.0, 15.0, 1)], True),
        ([Window(5.0, 14.0, 1)], False),  # nine intervals
        # As long in all, but its ends lie between samples again and again.
        ([Window(5 + 2 * n + 0.5, 6 + 2 * n + 0.5, 1) for n in range(20)], False),
        ([Window(5 + 2 * n, 6 + 2 * n, 1) for n in range(20)], True),  # sampled at every edge
    ],
)
def test_whether_the_window_was_long_enough(windows, long_enough):
    energy = energy_of({"gpu0": a_run(lambda _: 200.0)}, windows)
    assert energy["energy_window_long_enough"] is long_enough
    assert (energy["energy_j"] is not None) is long_enough
    assert (energy["joules_per_image"] is not None) is long_enough


def test_gaps_between_samples_are_told():
    """Four minutes without a sample: the counter tells their energy, and the summary the gap."""
    boards = {"gpu0": a_run(lambda _: 200.0, until_s=300.0)}
    boards["gpu1"] = Series("gpu")
    for elapsed_s in (*range(30), *range(270, 301)):
        boards["gpu1"].add(float(elapsed_s), {"energy_j": 200.0 * elapsed_s})
    energy = energy_of(boards, [Window(10.0, 290.0, 100)])
    assert energy["energy_j"] == 2 * 280 * 200
    assert (energy["energy_longest_gap_s"], energy["energy_covered"]) == (241, 39 / 280)


@pytest.mark.parametrize(
    "series",
    [
        {"host": a_run(None, kind="host")},
        {"tpu0": a_run(None, kind="tpu", load_percent=lambda _: 90.0)},
        {"gpu0": a_run(None)},
        {"gpu0": a_run(lambda _: 200.0), "gpu1": a_run(None)},  # one of two tells nothing of both
        {"gpu0": a_run(lambda _: 200.0, until_s=30.0)},  # lost before the end
        {"gpu0": a_run(lambda _: 200.0, every_s=10.0, counter=False)},  # long gaps
        # A counter that began anew beside power readings that end, or are impossible.
        {"gpu0": a_run(lambda t: 200.0 if t < 30 else -200.0)},
        {"gpu0": a_run(lambda _: 65535.0, counter=False)},
        {"gpu0": a_run(lambda _: 0.0)},
        {"gpu0": Series("gpu")},
    ],
)
def test_energy_that_is_not_known_is_not_told(series):
    energy = energy_of(series, [Window(5.0, 50.0, 100)])
    assert energy["energy_j"] is energy["joules_per_image"] is energy["energy_covers"] is None


def test_means_are_of_the_windows_and_the_most_memory_of_the_run():
    """Or of the run, without windows."""
    one = a_run(lambda t: 10 * t + 1, memory_used_bytes=lambda t: 60 - t)
    gpu = energy_of({"gpu0": one}, [Window(10.0, 20.0, 1)])["devices"]["gpu0"]
    assert gpu["power_w_mean"] == 151 and gpu["power_w_max"] == 201
    assert gpu["memory_used_bytes_max"] == 60
    assert "temperature_c_max" not in gpu  # no such sensor
    telemetry = energy_of({"gpu0": one}, [])
    assert telemetry["over"] == "the run" and telemetry["energy_j"] is None
    assert telemetry["devices"]["gpu0"]["power_w_mean"] == pytest.approx(301)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("power_w", value) for value in (3.7e6, 65535.0, 0.0, -5.0, math.nan, math.inf)),
        *(("load_percent", value) for value in (4294967295.0, -1.0)),
        *(("temperature_c", value) for value in (255.0, -273.0)),
        *(("sm_clock_mhz", value) for value in (0.0, 2.0**32)),
        *(("memory_used_bytes", value) for value in (81 * 2.0**30, -1.0)),
        ("energy_j", 2.0**64),
    ],
)
def test_an_impossible_reading_is_left_out_and_said_once(tmp_path, column, value):
    """Also of a file; and of a board its own limit counts, not that of any board."""
    good = {"power_w": 300.0, "load_percent": 99.0, "temperature_c": 60.0, "sm_clock_mhz": 1900.0}
    good |= {"memory_used_bytes": 2.0**30, "memory_total_bytes": 80 * 2.0**30}
    series, path = Series("gpu"), tmp_path / "telemetry.csv"
    with open(path, "w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for second in range(61):
            values = good | {"energy_j": 300.0 * second}
            values |= {column: value} if second in (30, 31) else {}
            series.add(float(second), values)
            when = (START + datetime.timedelta(seconds=second)).isoformat()
            row = {"time": when, "elapsed_s": second, "device": "gpu0", "kind": "gpu"}
            rows.writerow(row | values)
    for boards in ({"gpu0": series}, read_series(path)):
        telemetry, [warning] = summarize(boards, [Window(5, 55, 100)], 1.0, {})
        assert f"out of 61 samples: 2 of {column} (such as" in warning
        gpu = telemetry["devices"]["gpu0"]
        assert (gpu["power_w_mean"], gpu["power_w_max"], gpu["load_percent_max"]) == (300, 300, 99)
        assert (gpu["temperature_c_max"], gpu["sm_clock_mhz_median"]) == (60, 1900)
        assert gpu["memory_used_bytes_max"] == 2**30 and telemetry["energy_j"] == 15000
    hot = {"gpu0": Series("gpu", "NVIDIA H100 80GB HBM3")}
    hot["gpu0"].add(0.0, {"power_w": 1051.0})
    assert "1 of power_w" in summarize(hot, [], 1.0, {})[1][0]
    hot = {"gpu0": Series("gpu", "NVIDIA GeForce RTX 3080")}
    hot["gpu0"].add(0.0, {"power_w": 450.0})  # of some makers
    assert not summarize(hot, [], 1.0, {})[1]


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        (lambda t: 1000.0, "stood still for 50 s"),
        (lambda t: 300.0 * min(t, 40), "stood still for 15 s"),
        (lambda t: 200.0 if t == 30 else 1000 + 300.0 * t, "went backwards"),
        (lambda t: (4290000 + 300 * t) % (2**32 / 1e3), "went backwards"),
        (lambda t: 0.3 * t, "counted 0.3 W, the power readings 300 W"),
        (lambda t: 1000 * 300.0 * t, "counted 3e+05 W"),
    ],
)
@pytest.mark.parametrize("power_w", [300.0, None])
def test_a_counter_that_cannot_be_right_is_not_used(counter, said, power_w):
    series = Series("gpu")
    for second in range(62):
        power = {"power_w": power_w} if power_w else {}
        series.add(float(second), {"energy_j": counter(second)} | power)
    telemetry, warnings = summarize({"gpu0": series}, [Window(5.0, 55.0, 100)], 1.0, {})
    if power_w is None and "readings" in said:
        assert not warnings  # nothing contradicts it
        return
    assert telemetry["energy_j"] == (15000 if power_w else None)
    [warning] = warnings
    assert said in warning and warning.endswith("by its power readings" if power_w else "unknown")


def test_a_counter_may_stand_still_between_windows_and_processes():
    series = Series("gpu")
    for second in range(41):
        series.add(float(second), {"energy_j": 300.0 * min(second, 20), "power_w": 300.0})
    series.resume()
    for second in range(60, 101):
        series.add(float(second), {"energy_j": 7e6 + 300.0 * second, "power_w": 300.0})
    telemetry, warnings = summarize({"gpu0": series}, [Window(5, 20, 1), Window(65, 95, 1)], 1, {})
    assert telemetry["energy_j"] == 45 * 300 and warnings == []


WINDOW = [Window(0.0, 60.0, 100)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"throttle_reasons": lambda t: "hw_slowdown|gpu_idle" if t < 6 else ""}, "in 10% of 61"),
        ({"throttle_reasons": lambda t: "sw_power_cap"}, None),  # at full load
        (
            {"throttle_reasons": lambda t: "sw_power_cap|power_limit_lowered"},
            "100% of 61 samples: power_limit_lowered",
        ),
        ({"throttle_reasons": lambda t: "gpu_idle|applications_clocks_setting"}, None),
        ({"throttle_reasons": lambda t: "hw_slowdown" if t > 61 else ""}, None),
        ({"sm_clock_mhz": lambda t: 1410 if t < 30 else 1320}, "fell by 6.4%"),
        ({"sm_clock_mhz": lambda t: 1410 if t < 30 else 1395}, None),
        ({"sm_clock_mhz": lambda t: 1320 if t < 30 else 1410}, None),
        ({"sm_clock_mhz": lambda t: 1410 if t % 2 else 1300}, None),
    ],
)
def test_what_the_clocks_did_is_said(columns, said):
    _, warnings = summarize({"gpu0": a_run(None, **columns)}, WINDOW, 1.0, {})
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


@pytest.mark.parametrize(("loads", "warned"), [((95, 86), False), ((95, 84), True)])
def test_devices_that_are_not_equally_loaded(loads, warned):
    series = {f"gpu{load}": a_run(None, load_percent=lambda _, load=load: load) for load in loads}
    warnings = summarize(series, WINDOW, 1.0, {})[1]
    assert any("not equally loaded: gpu95 95 %, gpu84 84 %" in line for line in warnings) == warned


@pytest.mark.parametrize(
    ("others", "whole", "device", "busy"),
    [
        (40.0, 100.0, None, True),
        (12.0, 60.0, None, True),
        (8.0, 100.0, None, False),
        (None, None, None, None),
        (12.0, 60.0, "gpu0", False),  # a GPU's host has processors to spare
        (40.0, 95.0, "gpu0", True),
    ],
)
def test_a_host_that_is_busy_with_other_work_is_told(others, whole, device, busy):
    columns = {"other_cpu_percent": lambda _: others, "cpu_percent": lambda _: whole}
    series = {"host": a_run(None, **(columns if others else {}))}
    series |= {device: a_run(None)} if device else {}
    telemetry, warnings = summarize(series, WINDOW, 1.0, {})
    assert telemetry["host_busy"] is busy and len(warnings) == bool(busy)
    if busy:
        assert f"other processes took {others:.0f} % of the host's processor" in warnings[0]


def test_own_work_is_not_that_of_others(monkeypatch):
    """This process, a worker of it that has ended and one that runs take 1.5 of 4 cores' 3 s."""
    reader, seconds = HostReader(), {"own": 0.0, "worker": 0.0}

    class Process:
        def __init__(self, pid=None):
            self.pid = pid

        def cpu_times(self):
            if self.pid:
                return (seconds["worker"], 0.0, 0.0, 0.0, 0.0)
            return (seconds["own"], 0.0, seconds["own"], 0.0, 0.0)

        def memory_info(self):
            return types.SimpleNamespace(rss=1)

    reader._process = Process()
    monkeypatch.setattr(readers.psutil, "Process", Process)
    monkeypatch.setattr(readers.psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(readers.psutil, "cpu_percent", lambda: 75.0)
    workers = [types.SimpleNamespace(pid=7)]
    monkeypatch.setattr(readers.multiprocessing, "active_children", lambda: workers)
    monkeypatch.setattr(readers, "Stopwatch", lambda: types.SimpleNamespace(elapsed_s=lambda: 1.0))
    [first] = reader.read()
    seconds |= {"own": 0.5, "worker": 0.5}
    [second] = reader.read()
    assert "other_cpu_percent" not in first.values
    assert second.values["other_cpu_percent"] == pytest.approx(75 - 100 * 1.5 / 4)


def test_drift_is_more_than_noise():
    noise = [1.00, 1.08, 0.97, 1.03, 0.99, 1.05]
    assert drift(noise[:4] + noise[:3]) is None  # too few
    assert drift(noise + noise[::-1]) == 0.0
    assert drift(noise + [t + 0.02 for t in noise]) == 0.0  # within it
    slower = noise + [t + 0.2 for t in noise]
    assert drift(slower) == pytest.approx(0.2 / 1.015, rel=1e-3)
    [said] = slowed_down("epochs", slower)
    assert said == "epochs of the second half took 19.7% longer than those of the first"
    assert slowed_down("epochs", slower[::-1]) == []  # faster
    assert slowed_down("epochs", [1.0] * 6 + [1.01] * 6) == []  # less than 2 %
    assert slowed_down("epochs", [1.0] * 6) == []


def run_tiny(tmp_path, mode=run_training, fields=(), **how):
    config = config_of(MICRO, **dict(fields))
    return mode(config, str(tmp_path / "run"), Console(), **how)


@pytest.mark.parametrize("mode", [run_training, throughput.measure_throughput])
def test_a_run_on_gpus_says_what_an_image_took(tmp_path, monkeypatch, two_boards, mode, slow_feed):
    """On simulated devices, beside two boards of 100 and 300 W."""
    watch = Stopwatch()
    for board, power_w in zip(two_boards, (100, 300), strict=True):
        board.energy_mj = lambda power_w=power_w: int(power_w * 1e3 * watch.elapsed_s())
    readers = [HostReader(), NvmlReader({"gpu0": 0, "gpu1": 1})]
    monkeypatch.setattr("jaxbench.modes.runner.create_readers", lambda devices: readers)
    how = {"rounds": 6, "window_s": 0.5, "fields": {"num_devices": 1, "optimizer__name": "sgd"}}
    if mode is run_training:
        # Epochs of a second: of shorter ones the ends are too close to be sampled.
        how = {"fields": slow_feed(0.1)}
    with without_cache():  # else the steps to be measured are compiled two or three times
        result = run_tiny(tmp_path, mode, telemetry_s=0.1, **how)
    assert telemetry_threads() == []
    summary = run_json(tmp_path / "run")["summary"]
    telemetry = summary["telemetry"]
    assert telemetry["energy_covers"].startswith("GPU boards: gpu0 by NVML's total energy counter")
    if mode is run_training:
        epochs = records(tmp_path / "run", "epoch")
        images = sum(epoch["images"] for epoch in epochs)
        measured_s = sum(epoch["train_time_s"] for epoch in epochs)
    else:
        stage = result.of_kind(ThroughputRecord)[0]
        images = 6 * stage.steps_per_window * stage.batch_size
        measured_s = sum(stage.windows_s)
    assert telemetry["measured_images"] == images
    assert telemetry["measured_s"] == pytest.approx(measured_s, rel=0.1, abs=0.1)
    # The boards' own clock and the readings' differ by what a busy machine lets lie between: this
    # is to notice the larger board left out or counted twice, or the energy of the whole run.
    assert 200 * measured_s < telemetry["energy_j"] < 600 * measured_s
    assert telemetry["joules_per_image"] == telemetry["energy_j"] / images
    assert any("not equally loaded" in line for line in summary["warnings"])


def test_a_run_on_a_cpu_reads_the_host(tmp_path):
    result = run_tiny(tmp_path, telemetry_s=0.1)
    assert telemetry_threads() == []
    assert run_json(tmp_path / "run")["telemetry_s"] == 0.1
    rows = conftest.table(tmp_path / "run" / "telemetry.csv")
    assert {row["device"] for row in rows} == {"host"}
    assert rows[0]["cpu_percent"] == "" and 0 <= float(rows[1]["cpu_percent"]) <= 100
    for row in rows:
        assert 2**26 < float(row["rss_bytes"]) <= float(row["memory_total_bytes"])
        assert float(row["load_1min"]) >= 0 and row["power_w"] == ""
    elapsed_s = [float(row["elapsed_s"]) for row in rows]
    last_s = records(tmp_path / "run", "step")[-1]["elapsed_s"]
    # The same clock as the steps', from before the first to after the last.
    assert elapsed_s[0] < last_s < elapsed_s[-1] and elapsed_s == sorted(elapsed_s)
    telemetry = result.summary["telemetry"]
    assert telemetry["devices"]["host"]["samples"] == len(rows)
    assert telemetry["energy_j"] is None and telemetry["errors"] == {}


@pytest.mark.device
def test_the_devices_of_a_run_are_read(tmp_path):
    """GPUs by NVML and TPUs by libtpu: both tell how much memory is used."""
    result = run_tiny(tmp_path, telemetry_s=0.1)
    devices = {
        f"{device.platform}{device.id}"
        for device in jax.local_devices()[: config_of(MICRO).num_devices]
        if device.platform != "cpu"
    }
    rows = conftest.table(tmp_path / "run" / "telemetry.csv")
    assert {row["device"] for row in rows} == {"host", *devices}
    for row in rows:
        assert float(row["memory_used_bytes"]) > 0 or row["device"] == "host"
    assert result.summary["telemetry"]["errors"] == {}


@pytest.mark.device
def test_telemetry_that_cannot_be_summed_up_costs_the_run_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "summarize", lambda *_: 1 / 0)
    result = run_tiny(tmp_path)
    assert run_json(tmp_path / "run")["status"] == "done"
    assert any("ZeroDivisionError" in line for line in result.summary["warnings"])


@pytest.mark.parametrize(
    ("late_s", "cpu_s", "told"),
    [(8.0, 0.1, True), (8.0, 6.0, False), (1.5, 0.0, False), (-0.9, 0.0, False)],
)
def test_a_process_that_stood_still_is_told(late_s, cpu_s, told):
    """A thread that waits for its own process's work stands still with the process at work."""
    telemetry = Telemetry(None, 1.0, Clock(), [])
    telemetry.note_wait(late_s, cpu_s)
    _, warnings = telemetry.summarize()
    assert len(warnings) == told
    assert not told or warnings[0].startswith(
        "the process stood still, as if stopped: for 8.0 s from"
    )


def test_the_hosts_load_is_known_of_windows_between_two_readings():
    """A run that is shorter than the interval has a reading at its start and one at its end."""
    columns = {"other_cpu_percent": lambda _: 50.0, "cpu_percent": lambda _: 99.0}
    series = {"host": a_run(None, kind="host", until_s=1.0, **columns)}
    telemetry, warnings = summarize(series, [Window(0.2, 0.8, 100)], 1.0, {})
    assert telemetry["host_busy"] is True and "other processes took 50 %" in warnings[0]


START = datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC)


def write_readings(path, *processes, zoned=lambda time: time):
    """A GPU of 100 W, and the host, read each second.

    Args:
      processes: (seconds of the day, the run's clock, the counter in J) at the beginning, and the
        number of readings.
      zoned: what is done to the times of the last one.
    """
    with open(path, "w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for place, (day_s, elapsed_s, energy_j, count) in enumerate(processes, 1):
            for second in range(count):
                when = START + datetime.timedelta(seconds=day_s + second)
                when = zoned(when) if place == len(processes) else when
                row = {"time": when.isoformat(), "elapsed_s": elapsed_s + second}
                board = {"power_w": 100.0, "energy_j": energy_j + 100.0 * second}
                rows.writerow(row | {"device": "gpu0", "kind": "gpu", "load_percent": 50} | board)
                rows.writerow(row | {"device": "host", "kind": "host", "cpu_percent": 10})


@pytest.mark.parametrize("counter_j", [1e6, 0.0], ids=["counts on", "driver reloaded"])
@pytest.mark.parametrize("day_s", [500, -86400, 19], ids=["later", "date set back", "by a second"])
def test_energy_between_two_processes_is_not_the_runs(tmp_path, counter_j, day_s):
    """Lost work, another program and idle time, all on the same counter."""
    path = tmp_path / "telemetry.csv"
    write_readings(path, (0, 0.0, 500.0, 21), (day_s, 20.0, counter_j, 31), (900, 50.0, 2e6, 11))
    series = read_series(path)
    found = energy_of(series, [Window(5, 15, 100), Window(25, 45, 200), Window(52, 58, 60)])
    assert found["energy_j"] == pytest.approx(3600) and found["energy_window_s"] == 36
    assert found["measured_images"] == 360 and found["devices"]["gpu0"]["samples"] == 63
    assert found["devices"]["host"]["cpu_percent_mean"] == 10


def test_power_is_added_up_over_processes_that_are_far_apart():
    """A board without a counter; the second process began its first reading after 30 s."""
    series = Series("gpu")
    for second in (*range(21), *range(50, 81)):
        series.add(float(second), {"power_w": 100.0})
    energy = energy_of({"gpu0": series}, [Window(5, 15, 1), Window(55, 75, 1)])
    assert energy["energy_j"] == pytest.approx(3000)
    # Nobody knows the power of a window that has no reading.
    energy = energy_of({"gpu0": series}, [Window(5, 15, 1), Window(25, 45, 1)])
    assert energy["energy_j"] is None


def test_what_the_next_process_reads_goes_on(tmp_path):
    path = tmp_path / "telemetry.csv"
    write_readings(path, (0, 0.0, 500.0, 21))
    series = read_series(path)
    for second in range(11):
        series["gpu0"].add(20.5 + second, {"energy_j": 7e6 + 200.0 * second})
    assert energy_of(series, [Window(5, 15, 1), Window(21, 30, 1)])["energy_j"] == pytest.approx(
        2800
    )


@pytest.mark.parametrize("length", [200_000, LINE_LENGTH])
def test_a_line_that_is_too_long_costs_only_what_follows(tmp_path, length):
    path, errors = tmp_path / "telemetry.csv", collections.Counter()
    write_readings(path, (0, 0.0, 500.0, 21))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, "x" * length, lines[-2]]))
    series = read_series(path, errors=errors)
    assert len(series["gpu0"]) == 21
    [(said, count)] = errors.items()
    assert said.startswith("telemetry.csv is read only in part: ") and count == 1


@pytest.mark.parametrize(
    ("zoned", "energy_j", "left_out"),
    [
        (lambda time: time.astimezone(datetime.timezone(datetime.timedelta(hours=9))), 3000, []),
        (lambda time: time.replace(tzinfo=None), None, [2 * 29]),
    ],
    ids=["Tokyo", "none"],
)
def test_the_time_zone_does_not_matter_but_that_there_is_one(tmp_path, zoned, energy_j, left_out):
    """It changes in the middle of the second process."""
    path, errors = tmp_path / "telemetry.csv", collections.Counter()
    second = (500, 20.0, 1e6, 2), (502, 22.0, 1e6 + 200, 29)
    write_readings(path, (0, 0.0, 500.0, 21), *second, zoned=zoned)
    series = read_series(path, errors=errors)
    assert energy_of(series, [Window(5, 15, 1), Window(25, 45, 1)])["energy_j"] == energy_j
    assert [*errors.values()] == left_out and all("no time zone" in line for line in errors)


def test_damaged_lines_of_telemetry_are_left_out(tmp_path):
    path = tmp_path / "telemetry.csv"
    assert read_series(path) == {}
    write_readings(path, (0, 0.0, 0.0, 3))
    with open(path, "a") as file:
        file.write("2026,x,gpu0,gpu\nnot a line\n" + "a," * 40 + "\n\x00")
    assert {device: len(one) for device, one in read_series(path).items()} == {"gpu0": 3, "host": 3}
    path.write_text("a,b\n1,2\n")
    assert read_series(path) == {}
