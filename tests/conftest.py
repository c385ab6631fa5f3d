"""Eight simulated devices, set before JAX is imported; the limits of the fast half; helpers.

The fast half is every test beside this file and in the folders that mirror jaxbench/: it runs in
one process and ends in minutes. Whatever starts a process stands in tests/integration.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tests compile far more than they compute.
_FLAGS = {"--xla_force_host_platform_device_count": 8, "--xla_backend_optimization_level": 1}
_GIVEN = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_GIVEN, *(f"{flag}={value}" for flag, value in _FLAGS.items() if flag not in _GIVEN)]
).strip()
# For child processes that compute for long: code as users get it.
OPTIMIZED = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_backend_optimization_level=3"}
# For those that compute next to nothing: compiled a tenth quicker. Not where `quickstart` trains,
# whose code then takes 14 times as long.
UNOPTIMIZED = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_backend_optimization_level=0"}
# Simulated devices are the CPU's, whatever else the machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A shell that starts pytest in the background has it ignore Ctrl-C, and so would all its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Compiled programs are kept for the next test run, in pytest's own cache: `--cache-clear` forgets
# them. A newer JAX has a folder of its own.
_CACHE = ROOT / ".pytest_cache" / "d" / f"xla-jax-{importlib.metadata.version('jax')}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import grain  # noqa: E402, F401 (defines flags, which a command must not take with it)
import jax  # noqa: E402
import pytest  # noqa: E402
from absl import app, flags  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402

from jaxbench import catalog, price_flags  # noqa: E402, F401 (defines flags, once)
from jaxbench.train import train_and_evaluate  # noqa: E402
from jaxbench.writers.console import PlainConsole  # noqa: E402

# The experiment for whatever does not ask about the network: see there.
MICRO = str(ROOT / "tests" / "micro.py")


def pytest_report_header():
    return f"jax {jax.__version__}, {jax.device_count()} x {jax.devices()[0].device_kind}"


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("JAXBENCH_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set JAXBENCH_TEST_DATA)")
    return folder.resolve()


# A fast test fails the run if it takes longer, both by the clock and of processor time. Where
# other work slows the machine down the clock alone may show CLOCK_MARGIN times as much.
LONGEST_S, CLOCK_MARGIN = 5.0, 3.0
# What the program itself asks: for its commit, and for a library's path.
_MAY_START = ("git", "uname", "ldconfig", "gcc", "cc", "ld", "objdump")
_started: list[str] = []
_taken_s: dict[str, float] = {}
_too_long: list[str] = []


def pytest_collection_modifyitems(items):
    for item in items:
        in_folder = "integration" in item.path.relative_to(ROOT / "tests").parts
        if in_folder and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.integration)


def is_fast(item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("integration", "slow"))


def takes_too_long(clock_s: float, cpu_s: float) -> bool:
    return clock_s > LONGEST_S and (cpu_s > LONGEST_S or clock_s > LONGEST_S * CLOCK_MARGIN)


def _note_process(event: str, args: tuple) -> None:
    if event == "subprocess.Popen" and pathlib.Path(os.fsdecode(args[0])).name not in _MAY_START:
        _started.append(str(args[1]))


sys.addaudithook(_note_process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    _started.clear()
    result = yield
    assert not (is_fast(item) and _started), f"belongs in tests/integration: starts {_started}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    item.began_cpu_s = time.process_time()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    try:
        return (yield)
    finally:
        cpu_s = time.process_time() - item.began_cpu_s
        item.user_properties += [("fast", is_fast(item)), ("cpu_s", cpu_s)]


def pytest_runtest_logreport(report):
    """Adds a test's phases up, where pytest's own process sees those of all workers."""
    _taken_s[report.nodeid] = _taken_s.get(report.nodeid, 0.0) + report.duration
    said = dict(report.user_properties)
    if report.when != "teardown" or not said.get("fast"):
        return
    clock_s, cpu_s = _taken_s[report.nodeid], said["cpu_s"]
    if takes_too_long(clock_s, cpu_s):
        _too_long.append(f"{report.nodeid}: {clock_s:.1f} s, {cpu_s:.1f} s of processor time")


def pytest_sessionfinish(session):
    # A worker that takes over 10 s to exit is killed, and what it knows of coverage with it.
    if "coverage" in sys.modules and (running := sys.modules["coverage"].Coverage.current()):
        running.save()
    if _too_long and not hasattr(session.config, "workerinput") and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if _too_long:
        terminalreporter.section(f"fast tests over {LONGEST_S:g} s", red=True)
        for line in _too_long:
            terminalreporter.line(line)


class Finished(NamedTuple):
    """What a command came to, with the names that subprocess gives it."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_cli(tmp_path):
    """Runs a command in this process in an empty folder. See `run_command`."""
    return functools.partial(run_command, tmp_path)


def run_command(
    folder: pathlib.Path,
    *args: str,
    module: str = "jaxbench.main",
    env: dict[str, str] | None = None,
) -> Finished:
    """Runs a command in this process as `python -m` would in a folder, with fresh flags."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        fresh_process_state(),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as ended,
    ):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [module, *args])
        # What ends a process at once would end this one.
        patch.setattr(os, "_exit", lambda code: sys.exit(code))
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return Finished(ended.value.code or 0, stdout.getvalue(), stderr.getvalue())


def _copy(of):
    """Copies dicts and the lists in them, not the flags."""
    if isinstance(of, dict):
        return {key: list(value) if isinstance(value, list) else value for key, value in of.items()}
    return of


@contextlib.contextmanager
def fresh_process_state() -> Iterator[None]:
    """Inside the `with` absl's flags, signals and the compilation cache are as at a start."""
    state = vars(flags.FLAGS)
    defined = {name: _copy(of) for name, of in state.items()}
    values = {flag: dict(vars(flag)) for flag in defined["__flags"].values()}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    settings = {name: getattr(jax.config, name) for name in _COMPILE_SETTINGS}
    compilation_cache.reset_cache()  # it looks at the settings only once
    for module, own in flags.FLAGS.flags_by_module_dict().items():
        for flag in list(own):
            # The command is run anew and defines its own; others' of the same name are in the way.
            if module in _COMMANDS and flag.name in flags.FLAGS:
                delattr(flags.FLAGS, flag.name)
    # Those that the command imports are imported anew too, for their flags.
    modules = _forget_commands()
    try:
        yield
    finally:
        _forget_commands()
        for name, module in modules.items():
            sys.modules[name] = module
            setattr(*_parent(name), module)
        state.clear()
        state.update(defined)
        for flag, attributes in values.items():
            vars(flag).clear()
            vars(flag).update(attributes)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _parent(name: str):
    """Returns the package of a module, and the module's name in it."""
    package, _, name = name.rpartition(".")
    return importlib.import_module(package), name


def _forget_commands() -> dict:
    """Has the next import of each command run it; returns those that had been imported."""
    found = {}
    for command in _COMMANDS:
        if command in sys.modules:
            found[command] = sys.modules.pop(command)
            package, name = _parent(command)
            vars(package).pop(name, None)
    return found


# Once for all commands: absl defines --help when the first one starts.
app.define_help_flags()
_COMMANDS = [f"jaxbench.{name}" for name in ("main", "sweep", "compare", "cost", "report.__main__")]
_COMPILE_SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_compilation_cache_include_metadata_in_key",
)


@pytest.fixture
def train(tmp_path):
    """Trains an experiment in this process; returns its Result. See `training_in`."""
    return training_in(tmp_path)


def training_in(folder: pathlib.Path):
    """Returns what trains in this process, each run in a folder of its own.

    Fields are given by their dotted path with `__` for the dots: `train(data__flip=True)`.
    """
    count = 0

    def run(experiment="quickstart:tiny", profile=None, **fields):
        nonlocal count
        count += 1
        config = catalog.load(experiment)
        set_fields(config, **fields)
        needs_devices(config.num_devices)
        workdir = folder / f"run{count}"
        with open(os.devnull, "w") as quiet:
            return train_and_evaluate(config, str(workdir), PlainConsole(quiet), profile=profile)

    return run


def needs_devices(count: int) -> None:
    """Skips a test where XLA_FLAGS from outside left fewer devices."""
    if jax.device_count() < count:
        pytest.skip(f"needs {count} devices, there are {jax.device_count()}")


def set_fields(config, **fields):
    for path, value in fields.items():
        *parents, name = path.split("__")
        holder = config
        for parent in parents:
            holder = getattr(holder, parent)
        if not hasattr(holder, name):
            raise AttributeError(path)
        setattr(holder, name, value)


def records(folder, kind=None) -> list[dict]:
    """The lines of a run's metrics.jsonl, every one of which must be whole."""
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    return [record for record in parsed if kind in (None, record["kind"])]


def last_step(folder) -> int:
    """The step that a run's records have come to; 0 before there are any."""
    try:
        found = re.findall(r'"step": (\d+)', (pathlib.Path(folder) / "metrics.jsonl").read_text())
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def run_json(folder) -> dict:
    return json.loads((pathlib.Path(folder) / "run.json").read_text())


def step_losses(result) -> list[float]:
    return [record["loss"] for record in records(result.run_dir.path, "step")]


def equations(jaxpr) -> list:
    """All equations of a jaxpr in the order of the program, those of its inner ones included."""
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += equations(inner)
    return found


def image_feature(channels):
    shape = {"dimensions": ["-1", "-1", str(channels)]}
    return {
        "image": {"dtype": "uint8", "shape": shape, "encodingFormat": "png"},
        "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
    }


def write_tfds(folder, name, features, splits):
    """A prepared TFDS folder, written without TensorFlow: PNG images in tf.train.Examples.

    `splits` holds lists of {feature: image or whole number}.
    """
    import cv2
    import numpy as np
    from array_record.python import array_record_module
    from tensorflow_datasets.proto import tf_example_pb2

    folder = folder / name / "1.0.0"
    folder.mkdir(parents=True)
    for split, examples in splits.items():
        path = folder / f"{name}-{split}.array_record-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for example in examples:
            message = tf_example_pb2.Example()
            for key, value in example.items():
                feature = message.features.feature[key]
                if np.ndim(value):
                    # OpenCV writes blue, green, red.
                    png = cv2.imencode(".png", value[..., ::-1] if value.ndim == 3 else value)[1]
                    feature.bytes_list.value.append(png.tobytes())
                else:
                    feature.int64_list.value.append(int(value))
            writer.write(message.SerializeToString())
        writer.close()
    (folder / "features.json").write_text(
        json.dumps(
            {
                "featuresDict": {"features": features},
                "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            }
        )
    )
    (folder / "dataset_info.json").write_text(
        json.dumps(
            {
                "name": name,
                "version": "1.0.0",
                "fileFormat": "array_record",
                "splits": [
                    {
                        "name": split,
                        "numBytes": "1",
                        "shardLengths": [str(len(examples))],
                        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    }
                    for split, examples in splits.items()
                ],
            }
        )
    )
