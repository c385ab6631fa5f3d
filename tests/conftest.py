"""Eight simulated devices, set before JAX is imported; helpers that run the real program."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

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
# The same small programs are compiled again and again, here and in child processes.
_CACHE = tempfile.TemporaryDirectory(prefix="jaxbench-test-cache-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _CACHE.name)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax  # noqa: E402
import pytest  # noqa: E402

from jaxbench import catalog  # noqa: E402
from jaxbench.train import train_and_evaluate  # noqa: E402
from jaxbench.writers.console import PlainConsole  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_report_header():
    return f"jax {jax.__version__}, {jax.device_count()} x {jax.devices()[0].device_kind}"


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    folder = pathlib.Path(os.environ.get("JAXBENCH_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder} (set JAXBENCH_TEST_DATA)")
    return folder.resolve()


def program(*args: str) -> list[str]:
    """The command line of the entry point."""
    return [sys.executable, "-m", "jaxbench.main", *args]


@pytest.fixture
def run_main(tmp_path):
    """Runs the entry point in an empty folder; returns the finished process."""

    def run(*args, env=None, timeout_s=240):
        return subprocess.run(
            program(*args),
            cwd=tmp_path,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run


@pytest.fixture
def train(tmp_path):
    """Trains an experiment in this process; returns its Result.

    Fields are given by their dotted path with `__` for the dots: `train(data__flip=True)`.
    """
    count = 0

    def run(experiment="quickstart:tiny", profile=None, **fields):
        nonlocal count
        count += 1
        config = catalog.load(experiment)
        set_fields(config, **fields)
        needs_devices(config.num_devices)
        workdir = tmp_path / f"run{count}"
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
