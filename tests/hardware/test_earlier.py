"""Telemetry of a resumed run: the readings of its earlier processes are read back."""

import csv
import datetime

import pytest

from jaxbench.hardware.telemetry.sampler import COLUMNS
from jaxbench.hardware.telemetry.summary import Window, read_series, summarize

START = datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC)


def write_readings(path, *processes):
    """A GPU of 100 W, and the host, read each second.

    Args:
      processes: (seconds of the day, the run's clock, the counter in J) at the beginning, and the
        number of readings.
    """
    with open(path, "w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for day_s, elapsed_s, energy_j, count in processes:
            for second in range(count):
                when = START + datetime.timedelta(seconds=day_s + second)
                row = {"time": when.isoformat(), "elapsed_s": elapsed_s + second}
                board = {"power_w": 100.0, "energy_j": energy_j + 100.0 * second}
                rows.writerow(row | {"device": "gpu0", "kind": "gpu", "load_percent": 50} | board)
                rows.writerow(row | {"device": "host", "kind": "host", "cpu_percent": 10})


def energy_of(series, *windows):
    return summarize(series, windows, 1.0, {})[0]


@pytest.mark.parametrize("counter_j", [1e6, 0.0], ids=["counts on", "driver reloaded"])
def test_energy_between_two_processes_is_not_the_runs(tmp_path, counter_j):
    """Lost work, another program and idle time, all on the same counter."""
    path = tmp_path / "telemetry.csv"
    write_readings(path, (0, 0.0, 500.0, 21), (500, 20.0, counter_j, 31), (900, 50.0, 2e6, 11))
    series = read_series(path)
    found = energy_of(series, Window(5, 15, 100), Window(25, 45, 200), Window(52, 58, 60))
    assert found["energy_j"] == pytest.approx(3600) and found["energy_window_s"] == 36
    assert found["measured_images"] == 360 and found["devices"]["gpu0"]["samples"] == 63
    assert found["devices"]["host"]["cpu_percent_mean"] == 10


def test_power_is_added_up_over_processes_that_are_far_apart(tmp_path):
    """A board without a counter; the second process began its first reading after 30 s."""
    path = tmp_path / "telemetry.csv"
    write_readings(path, (0, 0.0, 0.0, 21), (500, 50.0, 0.0, 31))
    text = [line.split(",") for line in path.read_text().splitlines()]
    place = text[0].index("energy_j")
    path.write_text("".join(",".join([*c[:place], "", *c[place + 1 :]]) + "\n" for c in text[1:]))
    path.write_text(",".join(text[0]) + "\n" + path.read_text())
    series = read_series(path)
    assert energy_of(series, Window(5, 15, 1), Window(55, 75, 1))["energy_j"] == pytest.approx(3000)
    # Nobody knows the power of a window that has no reading.
    assert energy_of(series, Window(5, 15, 1), Window(25, 45, 1))["energy_j"] is None


def test_what_the_next_process_reads_goes_on(tmp_path):
    path = tmp_path / "telemetry.csv"
    write_readings(path, (0, 0.0, 500.0, 21))
    series = read_series(path)
    for second in range(11):
        series["gpu0"].add(20.5 + second, {"energy_j": 7e6 + 200.0 * second})
    assert energy_of(series, Window(5, 15, 1), Window(21, 30, 1))["energy_j"] == pytest.approx(2800)


def test_damaged_lines_are_left_out(tmp_path):
    path = tmp_path / "telemetry.csv"
    assert read_series(path) == {}
    write_readings(path, (0, 0.0, 0.0, 3))
    with open(path, "a") as file:
        file.write("2026,x,gpu0,gpu\nnot a line\n" + "a," * 40 + "\n\x00")
    assert {device: len(one) for device, one in read_series(path).items()} == {"gpu0": 3, "host": 3}
    path.write_text("a,b\n1,2\n")
    assert read_series(path) == {}
