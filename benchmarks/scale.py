"""Time and memory of what reads records, as the records grow: is it linear, is it below 2 GiB?

    python benchmarks/scale.py [--cases=reports,sweeps,metrics,telemetry] [--part=1] [--folder=TMP]

  reports    5,000 run directories: the page, the CSV file, the API's table
  sweeps     1,000 trials: the sweep's own work while they run (trials that take no time), what it
             does when it is called again and all are done, and the page
  metrics    10 million training steps in one run's metrics.jsonl: reading the run, the API's table
             of the steps, the page, and what a resumed run checks
  telemetry  72 GPUs and their host, once a second for a week: the page, and what a resumed run
             reads back and sums up at its end

Each is measured at a sixteenth, a quarter and the whole of that, in a process of its own, so that
its peak memory is known. The time is the process's on the CPU: other work on the machine does not
count. The records are copies of those of one small run, which is trained first,
or are made up. Needs 10 GB of disk for telemetry. --part=0.01 takes a hundredth of everything.

Exit code 1 if memory is above 2 GiB, or if the last two sizes say that the time grows faster than
linearly: by an exponent above 1.15 (of what takes longer than a second).
"""

import contextlib
import datetime
import json
import math
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.clock import process_cpu_s
from jaxbench.errors import BadInput, one_of

_CASES = flags.DEFINE_list("cases", None, "Some of the cases.")
_PART = flags.DEFINE_float("part", 1.0, "Share of the sizes to measure.", 0.001, 1.0)
_FOLDER = flags.DEFINE_string("folder", None, "Where there is room for the records.")

_SHARES = (1 / 16, 1 / 4, 1)
_MOST_BYTES, _EXPONENT, _LEAST_S = 2 * 2**30, 1.15, 1.0
_DEVICES = 72
TEMPLATE = "template"


# What is made.


def make_reports(folder: pathlib.Path, count: int) -> None:
    """Make runs of `count` / 8 settings, 8 seeds each."""
    template = folder.parent / TEMPLATE
    document = json.loads((template / "run.json").read_text())
    for number in range(count):
        document["config"]["seed"] = number % 8
        document["config"]["optimizer"]["learning_rate"] = 0.001 * (number // 8 + 1)
        _copy_run(template, folder / f"run{number}", document)


def make_sweeps(folder: pathlib.Path, count: int) -> None:
    """Make nothing: the first of the operations makes the sweep's folder."""
    del folder, count


def make_metrics(folder: pathlib.Path, count: int) -> None:
    """Make a run of `count` steps in as many epochs as the template has."""
    template, run = folder.parent / TEMPLATE, folder / "run"
    _copy_run(template, run, json.loads((template / "run.json").read_text()))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    with open(run / "metrics.jsonl", "w") as file:
        epochs = max(1, sum('"kind": "epoch"' in line for line in lines))
        step = 0
        for line in lines:
            if '"kind": "epoch"' in line:
                for _ in range(count // epochs):
                    step += 1
                    record = {"kind": "step", "step": step, "epoch": 1, "loss": random.random()}
                    record |= {"top1": random.random(), "learning_rate": 0.1, "elapsed_s": step / 8}
                    file.write(json.dumps(record) + "\n")
            if '"kind": "step"' not in line:
                file.write(line + "\n")


def make_telemetry(folder: pathlib.Path, count: int) -> None:
    """Make a run with `count` seconds of telemetry."""
    from jaxbench.hardware.telemetry.sampler import COLUMNS

    template, run = folder.parent / TEMPLATE, folder / "run"
    _copy_run(template, run, json.loads((template / "run.json").read_text()))
    # A few hundred different rows, written again and again: randomness would take the time.
    values = [
        f"gpu,{random.randint(60, 100)},7{random.randrange(10**10):010d},85899345920,"
        f"{random.randint(1400, 1980)},2619,{random.randint(40, 80)},,"
        f"{random.uniform(300, 700):.3f}"
        for _ in range(997)
    ]
    began = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
    with open(run / "telemetry.csv", "w") as file:
        file.write(",".join(COLUMNS) + "\n")
        for second in range(count):
            now = began + datetime.timedelta(seconds=second)
            start = f"{now.isoformat(timespec='milliseconds')},{second}.0"
            file.write(f"{start},host,host,,,,,,,,,,,{second % 100}.5,9000000000,3.25,1.5\n")
            file.writelines(
                f"{start},gpu{device},{values[(second * 31 + device) % 997]},"
                f"{second * 500}.5,,,,,\n"
                for device in range(_DEVICES)
            )


def _copy_run(template: pathlib.Path, path: pathlib.Path, document: dict) -> None:
    path.mkdir(parents=True)
    for name in ("metrics.jsonl", "epochs.csv", "telemetry.csv"):
        shutil.copyfile(template / name, path / name)
    (path / "run.json").write_text(json.dumps(document, indent=2))


# What is measured.


def report(folder: pathlib.Path, form: str = "html") -> None:
    from jaxbench.reports.write import write_report

    write_report([str(folder)], str(folder.parent / f"report.{form}"))


def table_of_runs(folder: pathlib.Path) -> None:
    import jaxbench

    jaxbench.load_runs(folder)


def sweep(folder: pathlib.Path) -> None:
    """Run a sweep whose trials leave copies of the template at once."""
    from jaxbench.launchers.launcher import Ended
    from jaxbench.parallel.child import ProcessResult
    from jaxbench.records.writers.console import Console
    from jaxbench.sweeps.grid import make_trials
    from jaxbench.sweeps.trials import run_trials, running_sweep

    class AtOnce:
        slots, hardware = 1, ()

        def start(self, job):
            self.key = job.key
            job.log.write_text("")
            shutil.copytree(folder.parent / TEMPLATE, job.run_path)

        def attach(self, job):
            return False

        def wait(self):
            return [Ended(self.key, ProcessResult("exited", None, 0, 1.0), None)]

        def last_line(self, key):
            return ""

        def close(self):
            pass

    count = int(folder.name.rpartition("-")[2])
    trials = make_trials("quickstart:tiny", (), {"seed": [*map(str, range(count))]})
    with open(os.devnull, "w") as quiet:
        console = Console(quiet)
        launcher = AtOnce()
        with running_sweep(trials, str(folder / "sweep"), console, launcher, ()) as runner:
            run_trials(runner, trials)


def read_run(folder: pathlib.Path) -> None:
    from jaxbench.records.reader import load_run

    load_run(str(folder / "run"))


def table_of_steps(folder: pathlib.Path) -> None:
    import jaxbench

    jaxbench.Run(folder / "run").table("step")


def check_resume(folder: pathlib.Path) -> None:
    """Do what a resumed run does with metrics.jsonl before it begins."""
    from jaxbench.checkpoints.resume import mark_records, read_epochs

    assert read_epochs(folder / "run", {"records": mark_records(folder / "run")})


def sum_up_telemetry(folder: pathlib.Path) -> None:
    """Do what a resumed run does with telemetry.csv: read it back, and sum it up at its end."""
    from jaxbench.hardware.telemetry.summary import Window, read_series, summarize

    series = read_series(folder / "run" / "telemetry.csv")
    end_s = max(one.known("power_w")[0][-1] for name, one in series.items() if name != "host")
    windows = [Window(end_s * n / 100, end_s * (n + 0.9) / 100, 1000) for n in range(100)]
    summarize(series, windows, 1.0, {})


Operation = Callable[[pathlib.Path], None]
# {case: (unit, whole size, what makes it, {operation: function})}; operations in their order.
CASES: dict[str, tuple[str, int, Callable[[pathlib.Path, int], None], dict[str, Operation]]] = {
    "reports": (
        "runs",
        5_000,
        make_reports,
        {
            "page": report,
            "CSV": lambda folder: report(folder, "csv"),
            "table of the API": table_of_runs,
        },
    ),
    "sweeps": (
        "trials",
        1_000,
        make_sweeps,
        {"run": sweep, "called again": sweep, "page": report},
    ),
    "metrics": (
        "lines",
        10_000_000,
        make_metrics,
        {
            "read": read_run,
            "table of the steps": table_of_steps,
            "page": report,
            "check before resuming": check_resume,
        },
    ),
    "telemetry": (
        f"seconds of {_DEVICES} GPUs",
        7 * 86_400,
        make_telemetry,
        {"page": report, "read back and sum up": sum_up_telemetry},
    ),
}


def main(arguments: list[str]) -> int:
    if arguments:
        raise BadInput(f"{arguments[0]!r}: flags begin with --")
    for case in _CASES.value or ():
        if case not in CASES:
            what = one_of(case, CASES)
            raise BadInput(f"--cases={case}: {what}")
    if _FOLDER.value and not os.path.isdir(_FOLDER.value):
        raise BadInput(f"--folder={_FOLDER.value}: is no folder")
    print(
        "| case | size | operation | CPU time [s] | per unit [µs] | peak memory [MiB] | exponent |"
    )
    print("|---|---|---|---|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as base:
        command = ["-m", "jaxbench.main", "--experiment=quickstart:tiny", "--experiment.epochs=8"]
        _run([*command, f"--workdir={base}/{TEMPLATE}"])
        for case in _CASES.value or CASES:
            unit, whole, _, operations = CASES[case]
            before: dict[str, tuple[int, float]] = {}
            for share in _SHARES:
                size = max(8, round(whole * share * _PART.value))
                with _made(pathlib.Path(base, f"{case}-{size}"), case, size):
                    for name in operations:
                        said = _run([__file__, "--do", f"{base}/{case}-{size}", case, name])
                        time_s, peak_bytes = json.loads(said.splitlines()[-1])
                        exponent = None
                        earlier, earlier_s = before.get(name, (size, time_s))
                        if size > earlier:
                            exponent = math.log(time_s / earlier_s) / math.log(size / earlier)
                        before[name] = size, time_s
                        told = "" if exponent is None else f"{exponent:.2f}"
                        each = f"{time_s / size * 1e6:,.1f} | {peak_bytes / 2**20:,.0f} | {told}"
                        print(f"| {case} | {size:,} {unit} | {name} | {time_s:.2f} | {each} |")
                        grows = time_s > _LEAST_S and (exponent or 0) > _EXPONENT
                        failed |= peak_bytes > _MOST_BYTES or (grows and share == 1)
    return int(failed)


@contextlib.contextmanager
def _made(folder: pathlib.Path, case: str, size: int) -> Iterator[None]:
    folder.mkdir()
    try:
        _run([__file__, "--make", str(folder), case, str(size)])
        yield
    finally:
        shutil.rmtree(folder)


def _run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BadInput(f"{' '.join(arguments)}: {(done.stderr or done.stdout)[-600:]}")
    return done.stdout


def _child(role: str, folder: str, case: str, what: str) -> None:
    path = pathlib.Path(folder)
    if role == "--make":
        CASES[case][2](path, int(what))
        return
    began_s = process_cpu_s()
    CASES[case][3][what](path)
    cpu_s = process_cpu_s() - began_s
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([cpu_s, peak_bytes]))


if __name__ == "__main__":
    if sys.argv[1:2] in (["--make"], ["--do"]):
        _child(*sys.argv[1:])
    else:
        entry_point.run_with_arguments(main)
