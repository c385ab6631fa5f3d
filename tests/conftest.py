"""Eight simulated devices, or with `-m device` the machine's; what all tests share.

`fast_half.py` says what is a fast test and what an integration test.
"""

import contextlib
import csv
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import signal

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tests compile far more than they compute.
_FLAGS = {"--xla_force_host_platform_device_count": 8, "--xla_backend_optimization_level": 1}
# For child processes that compute for long: code as users get it.
OPTIMIZED = {}
# For those that compute next to nothing: compiled a tenth quicker. Not where `quickstart` trains,
# whose code then takes 14 times as long.
UNOPTIMIZED = {}
# Tests need no network, and do not look for one.
os.environ["JAXBENCH_DOWNLOAD"] = "0"
# A shell that starts pytest in the background has it ignore Ctrl-C, and so would all its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Compiled programs are kept for the next test run, in pytest's own cache: `--cache-clear` forgets
# them. A newer JAX has a folder of its own.
_CACHE = ROOT / ".pytest_cache" / "d" / f"xla-jax-{importlib.metadata.version('jax')}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from jaxbench.cli import registry  # noqa: E402
from jaxbench.clock import pause  # noqa: E402
from jaxbench.data.feeds.feed import abstract_args  # noqa: E402
from jaxbench.data.feeds.stream import StreamFeed  # noqa: E402
from jaxbench.errors import BadInput  # noqa: E402
from jaxbench.hardware import distorters  # noqa: E402
from jaxbench.hardware.backend_flags import prepare_backend  # noqa: E402
from jaxbench.modes.runner import prepare_run  # noqa: E402
from jaxbench.modes.train import run_training  # noqa: E402
from jaxbench.parallel.mesh import create_training_mesh  # noqa: E402
from jaxbench.records.writers.console import Console  # noqa: E402
from jaxbench.schema import RunDocument, decode_record  # noqa: E402
from jaxbench.train import build_program  # noqa: E402
from jaxbench.xla.variables import added_flags, flags_of  # noqa: E402
from tests.in_process import run_command  # noqa: E402
from tests.recorded import filled  # noqa: E402

# No run of a test is to say that coverage counts its lines.
if any(distorters.watchers().values()):
    distorters.watchers = dict

pytest_plugins = ["tests.fast_half", "tests.ci_skips", "pytester"]
# The same examples in each run; no folder for them in the checkout.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("same")
# The experiment for whatever does not ask about the network: see there.
# The module of the training loop; `jaxbench.train` is the function of the API.
LOOP = importlib.import_module("jaxbench.train")
MICRO = str(ROOT / "tests" / "micro.py")


def tests_the_machine(config) -> bool:
    """Whether to use the machine's devices: for `-m device`, or an expression that begins so."""
    return config.option.markexpr.startswith("device")


def pytest_configure(config):
    """Has JAX make the devices, with the flags that users run with."""
    given = os.environ.get("XLA_FLAGS", "")
    if not tests_the_machine(config):
        simulated = [f"{flag}={value}" for flag, value in _FLAGS.items() if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([given, *simulated]).strip()
        # Simulated devices are the CPU's, whatever else the machine has.
        jax.config.update("jax_platforms", os.environ.setdefault("JAX_PLATFORMS", "cpu"))
    for level, flags in ((3, OPTIMIZED), (0, UNOPTIMIZED)):
        value = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level={level}"
        flags["XLA_FLAGS"] = value.strip()
    prepare_backend()
    # No run of a test is to say that the suite's flags distort it.
    added_flags.update(flags_of("XLA_FLAGS"))
    if tests_the_machine(config):
        # For tests/micro.py, whose experiment takes two devices.
        os.environ["JAXBENCH_TEST_DEVICES"] = str(min(2, jax.device_count()))
    elif jax.device_count() < 8:
        raise pytest.UsageError(f"the tests need 8 devices: XLA_FLAGS={given} leaves fewer")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One process: JAX reserves most of a GPU's memory. A number after `-n` overrides it."""
    return 0 if tests_the_machine(config) else None


def pytest_report_header():
    return f"jax {jax.__version__}, {jax.device_count()} x {jax.devices()[0].device_kind}"


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("JAXBENCH_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set JAXBENCH_TEST_DATA)")
    return folder.resolve()


@pytest.fixture
def run_cli(tmp_path):
    """Runs a command in this process in an empty folder. See `run_command`."""
    return functools.partial(run_command, tmp_path)


@pytest.fixture
def refused(run_cli, tmp_path):
    """Checks that a command is refused: one line with `told`, exit code 2, nothing written.

    Nothing is printed either, but for one that has begun (`begun=True`).
    """

    def files():
        paths = [path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts]
        return {path: path.read_bytes() if path.is_file() else None for path in paths}

    def check(*args, told, begun=False, **how):
        before = files()
        done = run_cli(*map(str, args), **how)
        assert done.returncode == 2 and (begun or not done.stdout), done
        assert done.stderr.startswith("jaxbench: ") and done.stderr.count("\n") == 1, done.stderr
        assert told in done.stderr and files() == before
        return done

    return check


@pytest.fixture
def train(tmp_path):
    """Trains an experiment in this process, in a folder of its own; returns its Recorder.

    Fields are given by their dotted path with `__` for the dots: `train(data__flip=True)`.
    """
    count = 0

    def run(experiment="quickstart:tiny", profile=None, target_accuracy=None, **fields):
        nonlocal count
        count += 1
        config = config_of(experiment, **fields)
        how = {"profile": profile, "target_accuracy": target_accuracy}
        return run_training(config, str(tmp_path / f"run{count}"), Console(), **how)

    return run


def config_of(experiment: str, **fields):
    """An experiment with these fields, `data__flip` for data.flip."""
    config = registry.load(experiment)
    set_fields(config, **fields)
    return config


def program_of(experiment: str, steps_per_epoch: int = 1, **fields):
    """The training program of an experiment, on one device unless the fields say otherwise."""
    config = config_of(experiment, **{"num_devices": 1} | fields)
    return build_program(config, *create_training_mesh(config), steps_per_epoch)


def step_args(program):
    """What a program's training step takes beside the state, as shapes."""
    return abstract_args(program.network.config, program.layout)


def prepared(experiment: str, **fields):
    """A run of an experiment, prepared and not started: a context manager."""
    return prepare_run(config_of(experiment, **fields), None, Console())


@contextlib.contextmanager
def compilations(kind: str = "backend_compile"):
    """The names of the functions that JAX compiles (`jaxpr_trace`: traces) in the meantime."""
    names = []

    def listen(event, duration_s, **details):
        if event == f"/jax/core/compile/{kind}_duration":
            names.append(details.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def fp32_products():
    """Has GPUs multiply fp32 in fp32; by default they round the factors to TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def slow_feed(monkeypatch):
    """Has one thread of the streamed feed take so many seconds for a batch; the fields for it."""

    def slow(batch_s: float) -> dict:
        genuine = StreamFeed.assemble

        def assemble(self, *args):
            pause(batch_s)
            return genuine(self, *args)

        monkeypatch.setattr(StreamFeed, "assemble", assemble)
        return {"data__feed": "stream", "data__num_threads": 1, "data__prefetch_batches": 1}

    return slow


def refusal(act, *args, told: str = "", **fields) -> str:
    """Returns the one line, with `told` in it, that refuses bad input."""
    with pytest.raises(BadInput) as error:
        act(*args, **fields)
    line = str(error.value)
    assert told in line and line.count("\n") == 0 < len(line)
    return line


def assert_same_state(one, other):
    """Bit for bit."""
    for ours, theirs in zip(*map(jax.tree.leaves, jax.device_get((one, other))), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


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
    """The lines of a run's metrics.jsonl, every one of which must be whole and of the schema."""
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    for record in parsed:
        decode_record(record)
    return [record for record in parsed if kind in (None, record["kind"])]


def last_step(folder) -> int:
    """The step that a run's records have come to; 0 before there are any."""
    try:
        found = re.findall(r'"step": (\d+)', (pathlib.Path(folder) / "metrics.jsonl").read_text())
    except OSError:
        return 0
    return int(found[-1]) if found else 0


def table(path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


# The first run.json of a training run.
run_document = functools.partial(filled, RunDocument, mode="train", status="running")


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


@pytest.fixture
def no_waiting():
    """Ends a test that waits for a pipe."""

    def end(*_):
        raise AssertionError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
