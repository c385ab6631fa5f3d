"""Our training step against PyTorch's: same network, parameters, images, batch and precision.

    python benchmarks/versus_pytorch.py --experiment=wrn28_10 --batch_size=512 --precision=bf16
        [--variants=eager,channels_last,compile,channels_last_compile] [--rounds=11]
        [--min_ratio=1.2] [--pytorch_python=PYTHON] [--json=FILE]

The networks are resnet50's, wrn28_10's and cnn10's (pytorch_networks.py; forward_vs_pytorch.py
proves that they are ours). A step is the whole of it: forward, backward, SGD with the experiment's
momentum and weight decay at its learning rate, held. One synthetic batch stays on one device. Every
contestant is a process of its own that waits, stopped, while the others have their turn:

  jaxbench  the compiled step of --mode=throughput, which also normalises the images (uint8) and
            counts hits
  pytorch   images normalised beforehand, in the network's layout; torch.optim.SGD, fused where
            there is such a thing; cudnn.benchmark. --precision=bf16 is autocast, fp16 too, with
            GradScaler. --variants: eager, channels_last, compile (torch.compile),
            channels_last_compile; default all of them on a GPU and the first two on a CPU.
            `--variants=` measures ours alone.

All start from the same parameters and are shown the same batch: the losses of their first steps
are printed and must agree, and how far each parameter has gone by then. Warm-up, medians and
intervals are those of jaxbench; every round gives each a turn, there and back again. Nothing comes
from a compilation cache; torch.compile's time is that of its first step less a later one. Peak
memory is a process's own, with what choosing algorithms took. On GPUs no memory is preallocated,
and PyTorch gives its cache back after its turn (each turn begins with a step that is not timed).
What has to fit at once is ours, the activations of its largest variant, and of each variant
parameters, momentum and images; --variants takes them one at a time.

Without PyTorch a line says so and ours is measured alone (exit code 0; 2 if --variants,
--pytorch_python or --min_ratio asked for it). Exit code 1 if a contestant failed (out of memory,
say: its line has the reason), if both sides did other work or their losses did not fall, if MFU is
above 100 %, or if not all of the 95 % interval is above --min_ratio times the best variant. Faster
or slower is said where neither the ratio's interval nor those of the rates leave it open.
"""

import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

VARIANTS = ("eager", "channels_last", "compile", "channels_last_compile")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# The first steps, whose losses are printed; of so many they must agree to this share. Rounding
# grows from step to step.
FIRST_STEPS, AGREEING_STEPS = 5, 3
AGREEMENT = {"fp32": 5e-3, "bf16": 3e-2, "fp16": 1e-2}
# Losses hardly tell one optimizer from another so early; how far each parameter has gone by then
# does. Half of all distances must agree to this share (without momentum they are 46 % less), which
# leaves room for TF32, and every one to the last: rounding can make much of a small one, and one
# that was left out has not moved. Whether weights decay shows in neither.
DISTANCE_AGREEMENT = {"fp32": 2e-2, "bf16": 1e-1, "fp16": 3e-2}
DISTANCE_LIMIT = 0.9


def serve(
    answers: TextIO,
    train: Callable[[int], float],
    distances: Callable[[], dict[str, float]],
    release: Callable[[], None] | None,
    peak_memory_bytes: Callable[[], int | None],
    facts: dict[str, Any],
) -> None:
    """A contestant's side: reads numbers of steps, answers with seconds and the loss; 0 ends it.

    Args:
      answers: where they go.
      train: trains so many steps, waits for all that they compute; returns the last one's loss.
      distances: tells how far each parameter is from its start (the norm of the difference).
      release: gives back memory that only a step needs; None where nothing is given back.
      peak_memory_bytes: the most that was in use on the device, None where nobody counts.
      facts: told with the first answer.
    """
    start_s = time.perf_counter()
    losses = [train(1)]
    first_step_s = time.perf_counter() - start_s
    losses += [train(1) for _ in range(AGREEING_STEPS - 1)]
    gone = distances()
    losses += [train(1) for _ in range(FIRST_STEPS - AGREEING_STEPS)]
    if release:
        release()

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    say(facts | {"first_step_s": first_step_s, "losses": losses, "distances": gone})
    for line in sys.stdin:
        steps = int(line)
        if not steps:
            break
        if release:
            train(1)
        start_s = time.perf_counter()
        loss = train(steps)
        answer = {"elapsed_s": time.perf_counter() - start_s, "loss": loss}
        if release:
            release()
        say(answer)
    say({"peak_memory_bytes": peak_memory_bytes(), "host_peak_memory_bytes": host_peak_bytes()})


def host_peak_bytes() -> int:
    """Returns the most memory that this process has had; PyTorch's Python has no jaxbench."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            # getrusage's figure begins with the parent's.
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def load_config(experiment: str, batch_size: int, precision: str) -> Any:
    """Returns the experiment as it is compared: on one device, with a synthetic batch.

    Raises:
      BadInput: it is none that can be compared.
    """
    from pytorch_names import NAMES

    from jaxbench.cli import registry
    from jaxbench.config import Config, DataConfig
    from jaxbench.errors import BadInput
    from jaxbench.jobs.setup import with_feed

    config = registry.load(experiment)
    model = type(getattr(config, "model", None)).__name__.removesuffix("Config")
    if not isinstance(config, Config) or model not in NAMES:
        raise BadInput(
            f"--experiment={experiment}: its network has no counterpart in "
            "benchmarks/pytorch_networks.py; resnet50, wrn28_10 and cnn10 have"
        )
    if config.optimizer.name not in ("sgd", "nesterov"):
        raise BadInput(
            f"--experiment={experiment}: optimizer.name={config.optimizer.name!r}; sgd and "
            "nesterov are compared"
        )
    plain = {"bias_learning_rate": 0, "head_learning_rate": 0, "weight_decay_mode": "coupled"}
    for field, value in plain.items():
        if getattr(config.optimizer, field) != value:
            raise BadInput(
                f"--experiment={experiment}: optimizer.{field}="
                f"{getattr(config.optimizer, field)!r}; compared is {value!r} alone, what "
                "torch.optim.SGD does"
            )
    config.data = DataConfig(
        source="synthetic", image_shape=config.data.image_shape, num_classes=config.data.num_classes
    )
    held = {"schedule": "constant", "warmup_epochs": 0.0, "decay_epochs": ()}
    for field in dataclasses.fields(config.optimizer):
        if field.name in ("pct_start", "start_factor", "end_factor"):
            held[field.name] = field.default
    config.optimizer = dataclasses.replace(config.optimizer, **held)
    config.batch_size = batch_size or config.batch_size
    config.precision = precision or config.precision
    if config.precision not in AGREEMENT:
        raise BadInput(f"--precision={config.precision}: must be one of {', '.join(AGREEMENT)}")
    config.num_devices, config.gradient_accumulation_steps, config.replicas = 1, 1, "data_parallel"
    return with_feed(config, "synthetic")


def run_jaxbench(task: dict[str, Any], answers: TextIO) -> None:
    from jaxbench.hardware.backend_flags import add_backend_flags
    from jaxbench.xla.compile_cache import use_compile_cache

    use_compile_cache("off")
    add_backend_flags()
    import jax
    import numpy as np
    from pytorch_names import NAMES, convert

    from jaxbench.data.feeds.feed import create_feed
    from jaxbench.distributed.mesh import create_training_mesh, peak_memory_bytes
    from jaxbench.hardware.environment import describe_environment
    from jaxbench.jobs.windows import wait_for_steps
    from jaxbench.precision import get_precision
    from jaxbench.training.compilation import compile_step
    from jaxbench.training.program import build_program

    config = load_config(task["experiment"], task["batch_size"], task["precision"])
    mesh, geometry = create_training_mesh(config)
    feed = create_feed(config, None, mesh, geometry, get_precision(config.precision).param_dtype)
    program = build_program(config, mesh, geometry, feed.steps_per_epoch)
    program.check()
    state = program.place_train_state()
    row = next(feed.train_batches(0, 1))

    def arrays_of(tree: Any) -> dict[str, np.ndarray]:
        # Copies: on a CPU the step writes into what it was given.
        return {
            "/".join(key.key for key in path): np.array(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    start, running = arrays_of(state.params), arrays_of(state.batch_stats)
    mean_C, std_C = np.asarray(feed.train_data["mean"]), np.asarray(feed.train_data["std"])
    images_BxHxWxC = (np.asarray(row["images"])[0].astype(np.float32) - mean_C) / std_C
    batch = {"images": images_BxHxWxC, "labels": np.asarray(row["labels"])[0]}
    np.savez(task["start"], **batch, **start, **running)
    compiled = compile_step("train_step", program.train_step, state, feed.train_data, row)

    def train(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, metrics = program.train_step(state, feed.train_data, row)
        return wait_for_steps(state, program.train_metrics(metrics))[0]

    def distances() -> dict[str, float]:
        now = arrays_of(state.params)
        gone = convert({path: now[path] - start[path] for path in now}, NAMES[task["model"]])
        return {name: float(np.linalg.norm(array)) for name, array in gone.items()}

    serve(
        answers,
        train,
        distances,
        # Nothing is given back, but this side's turns are to begin like the other's.
        (lambda: None) if jax.default_backend() != "cpu" else None,
        lambda: peak_memory_bytes(mesh.devices),
        {
            "platform": jax.default_backend(),
            "environment": describe_environment(mesh.devices),
            "flops_per_image": program.training_flops,
            "compile_s": compiled.lower_s + compiled.compile_s,
            "planned_memory": compiled.memory,
        },
    )


def run_pytorch(task: dict[str, Any], answers: TextIO) -> None:
    """Needs PyTorch and NumPy, nothing of jaxbench: any Python that has the two will do."""
    import numpy as np
    import pytorch_networks as networks
    import torch
    import torch.nn.functional as F
    from pytorch_names import NAMES, convert

    device = torch.device(task["device"])
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = on_gpu
    layout = torch.channels_last if "channels_last" in task["variant"] else torch.contiguous_format
    create = getattr(networks, task["model"])
    arguments = task["arguments"]
    # Fields that choose among spellings of the same network are ours alone; that it is the same
    # parameters and losses tell.
    network = create(**{k: arguments[k] for k in inspect.signature(create).parameters})
    with np.load(task["start"]) as start:
        arrays = {name: start[name] for name in start.files}
    images_BxHxWxC, labels_B = arrays.pop("images"), arrays.pop("labels")
    named = convert(arrays, NAMES[task["model"]])
    counters = {k: v for k, v in network.state_dict().items() if k.endswith("num_batches_tracked")}
    network.load_state_dict({k: torch.from_numpy(v) for k, v in named.items()} | counters)
    network = network.to(device=device, memory_format=layout).train()
    images = torch.from_numpy(images_BxHxWxC).permute(0, 3, 1, 2)
    images = images.to(device).contiguous(memory_format=layout)
    labels = torch.from_numpy(labels_B.astype(np.int64)).to(device)

    sgd = task["optimizer"]
    kernels = [x for x in network.parameters() if x.ndim > 1]
    others = [x for x in network.parameters() if x.ndim == 1]
    decay = sgd["weight_decay"]
    groups = [
        {"params": kernels, "weight_decay": decay},
        {"params": others, "weight_decay": decay if sgd["weight_decay_on"] == "all" else 0.0},
    ]
    settings = {k: sgd[k] for k in ("lr", "momentum", "nesterov")}
    fused = True
    try:
        optimizer = torch.optim.SGD(groups, **settings, fused=True)
    except (RuntimeError, TypeError):  # not on this device, not in this PyTorch
        fused = False
        optimizer = torch.optim.SGD(groups, **settings)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(task["precision"])
    # PyTorch's defaults are ours (jaxbench/loss_scale.py).
    scaler = torch.amp.GradScaler(device.type) if half is torch.float16 else None
    model = network
    if "compile" in task["variant"]:
        model = torch.compile(network, mode=task["compile_mode"])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, half, enabled=half is not None):
            loss = F.cross_entropy(model(images), labels, label_smoothing=task["label_smoothing"])
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return loss.detach()

    def train(steps: int) -> float:
        for _ in range(steps):
            loss = step()
        if on_gpu:
            torch.cuda.synchronize()
        return float(loss)

    def distances() -> dict[str, float]:
        return {
            name: float(np.linalg.norm(parameter.detach().float().cpu().numpy() - named[name]))
            for name, parameter in network.named_parameters()
        }

    serve(
        answers,
        train,
        distances,
        torch.cuda.empty_cache if on_gpu else None,
        lambda: torch.cuda.max_memory_allocated() if on_gpu else None,
        {
            "fused_optimizer": fused,
            "environment": {
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "device_kind": torch.cuda.get_device_name() if on_gpu else "cpu",
                "threads": torch.get_num_threads(),
                "tf32_convolutions": torch.backends.cudnn.allow_tf32 if on_gpu else None,
                "tf32_matmul": torch.backends.cuda.matmul.allow_tf32 if on_gpu else None,
            },
        },
    )


class Contestant:
    """A process that runs nothing but in its turns.

    Attributes:
      name: as it is printed.
      facts: what it said when it was ready.
      failed: why it is out, None while it is in.
      windows_s: its measurements.
    """

    def __init__(self, name: str, python: str, task: dict[str, Any], folder: pathlib.Path):
        from jaxbench.distributed.child import LAUNCHER

        self.name = name
        self.facts: dict[str, Any] = {}
        self.failed: str | None = None
        self.windows_s: list[float] = []
        self.last_loss: float | None = None
        self.calls = 0
        self._log = folder / f"{name.replace(' ', '-')}.log"
        caches = str(folder / name.replace(" ", "-"))
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                # The launcher has it killed with this process, however that ends.
                [*LAUNCHER, str(os.getpid()), "0", python, str(pathlib.Path(__file__).resolve())]
                + ["--serve", json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # torch.compile's workers are stopped with it
                env=os.environ
                | {
                    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                    "TORCHINDUCTOR_CACHE_DIR": caches,
                    "TRITON_CACHE_DIR": caches,
                },
            )
        self.facts = self._answer() or {}

    def turn(self, steps: int) -> float | None:
        """Trains so many steps; returns their seconds, None if it failed."""
        answer = self._ask(steps)
        if answer is None:
            return None
        self.last_loss = answer["loss"]
        return answer["elapsed_s"]

    def finish(self) -> None:
        """Takes down its peak memory and lets it end."""
        self.facts |= self._ask(0) or {}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # what it was asked and did not read
            self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, steps: int) -> dict[str, Any] | None:
        if self.failed:
            return None
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        line = self._process.stdout.readline()
        if line:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)
            return json.loads(line)
        from jaxbench.errors import OUT_OF_MEMORY

        lines = [x.strip() for x in self._log.read_text(errors="replace").splitlines() if x.strip()]
        said = [x for x in lines if OUT_OF_MEMORY.search(x)] or lines or ["it said nothing"]
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (by the system, if it was out of memory)"
        self.failed = f"{how}: {said[-1][:300]}"
        return None


@contextlib.contextmanager
def contestants() -> Iterator[list[Contestant]]:
    """A list for contestants, all of whom are gone at the end of the `with`."""
    found: list[Contestant] = []
    try:
        yield found
    finally:
        for contestant in found:
            contestant.kill()


def compare() -> int:
    from absl import flags

    from jaxbench.errors import BadInput
    from jaxbench.microbench.interleaved import check_window_s, unsettled_warnings, warm_up

    given = flags.FLAGS
    check_window_s(given.window_s)
    config = load_config(given.experiment, given.batch_size, given.precision)
    for variant in given.variants or ():
        if variant not in VARIANTS:
            raise BadInput(f"--variants={variant}: must be among {', '.join(VARIANTS)}")
        if given.variants.count(variant) > 1:
            raise BadInput(f"--variants: {variant} is named {given.variants.count(variant)} times")
    check_output(given.json)
    python = given.pytorch_python or sys.executable
    with_cuda, absent = (None, None) if given.variants == [] else look_for_pytorch(python)
    if absent and (given.variants or given.pytorch_python):
        raise BadInput(absent)
    if given.min_ratio and (absent or given.variants == []):
        raise BadInput(f"--min_ratio={given.min_ratio:g}: {absent or 'of no variant'}")

    def write(results: list[dict[str, Any]], problems: list[str]) -> int:
        document = {
            "experiment": config.name,
            "config": dataclasses.asdict(config),
            "rounds": given.rounds,
            "contestants": results,
            "pytorch_absent": absent,
            "problems": problems,
        }
        if given.json:
            pathlib.Path(given.json).expanduser().write_text(json.dumps(document, indent=1) + "\n")
        return int(bool(problems))

    with tempfile.TemporaryDirectory() as name, contestants() as field:
        folder = pathlib.Path(name)
        task = {
            "experiment": given.experiment,
            "batch_size": config.batch_size,
            "precision": config.precision,
            "model": type(config.model).__name__.removesuffix("Config"),
            "start": str(folder / "start.npz"),
        }
        print(headline(config, given.rounds, given.window_s), flush=True)
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > cores / 2:
            print(
                f"warning: this machine has other work (load {load:.1f} on {cores} cores), which "
                "takes more from one side than from the other where they compute on it"
            )
        ours = Contestant("jaxbench", sys.executable, task | {"variant": ""}, folder)
        field.append(ours)
        if ours.failed:
            print(f"jaxbench failed: {ours.failed}")
            return write([describe(ours, config, ours)], ["jaxbench failed"])
        platform = ours.facts["platform"]
        if not absent and with_cuda is not None and platform not in ("cpu", *["gpu"] * with_cuda):
            absent = f"PyTorch is left out: {python} has none for the {platform} that JAX uses"
            if given.variants or given.pytorch_python or given.min_ratio:
                raise BadInput(absent)
        variants = VARIANTS if platform == "gpu" else VARIANTS[:2]
        if absent:
            print(absent)
            variants = ()
        elif given.variants is not None:
            variants = given.variants
        for variant in variants:
            own = task | pytorch_task(config, variant, platform)
            field.append(Contestant(f"pytorch {variant}", python, own, folder))
        warmups = {}
        for contestant in field:
            if contestant.failed:
                continue
            found = warm_up(
                # One that fails here is as good as warm; it is left out below.
                lambda calls, own=contestant: own.turn(calls) or given.window_s,
                given.window_s,
                given.rounds,
            )
            contestant.calls = found.calls_per_window
            warmups[contestant.name] = found, found.calls + FIRST_STEPS
        for number in range(given.rounds):
            # Forwards, then backwards: what drifts hits all alike.
            for contestant in field if number % 2 == 0 else field[::-1]:
                elapsed_s = contestant.turn(contestant.calls)
                if elapsed_s is not None:
                    contestant.windows_s.append(elapsed_s)
        for contestant in field:
            contestant.finish()
    for warning in unsettled_warnings(warmups):
        print(f"warning: {warning}")
    results = [describe(contestant, config, ours) for contestant in field]
    print("\n".join(environment_lines(field, config)))
    return write(results, print_results(results, config.precision, given.min_ratio))


def check_output(path: str) -> None:
    """Raises BadInput where a file could not be written after all the work."""
    from jaxbench.errors import BadInput

    file = pathlib.Path(path).expanduser()
    if path and not file.parent.is_dir():
        raise BadInput(f"--json={path}: no such folder")
    if path and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise BadInput(f"--json={path}: cannot be written; give a file's path")


def look_for_pytorch(python: str) -> tuple[bool | None, str | None]:
    """Returns whether a Python's PyTorch sees a GPU, and the line to say where it has none."""
    try:
        done = subprocess.run(
            [python, "-c", "import torch; print(torch.cuda.is_available())"],
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return None, f"--pytorch_python={python}: {error.strerror}"
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, (
            f"PyTorch is left out: {python} cannot import it ({said}); pip install torch, or "
            "--pytorch_python=PYTHON names a Python that has it"
        )
    if done.stdout.split()[-1:] not in (["True"], ["False"]):
        return None, f"--pytorch_python={python}: is no Python"
    return done.stdout.split()[-1] == "True", None


def pytorch_task(config: Any, variant: str, platform: str) -> dict[str, Any]:
    from absl import flags

    optimizer = config.optimizer
    return {
        "variant": variant,
        "device": "cuda" if platform == "gpu" else "cpu",
        "compile_mode": flags.FLAGS.compile_mode,
        "arguments": dataclasses.asdict(config.model) | {"num_classes": config.data.num_classes},
        "label_smoothing": config.label_smoothing,
        "optimizer": {
            "lr": optimizer.learning_rate * config.batch_size / optimizer.base_batch_size,
            "momentum": optimizer.momentum,
            "nesterov": optimizer.name == "nesterov" and optimizer.momentum > 0,
            "weight_decay": optimizer.weight_decay,
            "weight_decay_on": optimizer.weight_decay_on,
        },
    }


def describe(contestant: Contestant, config: Any, ours: Contestant) -> dict[str, Any]:
    """Returns a contestant's record; what is unknown is null."""
    from jaxbench.analysis.statistics import median_interval
    from jaxbench.hardware.peak_table import find_peak
    from jaxbench.jobs.windows import describe_windows

    record = {
        "contestant": contestant.name,
        "failed": contestant.failed,
        "steps_per_window": contestant.calls,
        "last_loss": contestant.last_loss,
        "mfu": None,
        "ratio": None,
    } | contestant.facts
    if contestant.failed:
        return record
    record |= describe_windows(config.batch_size * contestant.calls, contestant.windows_s)
    environment = ours.facts["environment"]
    peak = find_peak(environment["device_kind"], config.precision, environment["matmul_precision"])
    if peak:
        flops_per_s = record["images_per_s"] * ours.facts["flops_per_image"]
        record |= {"mfu": flops_per_s / peak.flops_per_s, "peak": peak._asdict()}
    if "compile" in contestant.name:
        # It compiles in its first step, and does not say how long.
        step_s = statistics.median(contestant.windows_s) / contestant.calls
        record["compile_s"] = max(0.0, record["first_step_s"] - step_s)
    if contestant is not ours and not ours.failed:
        steps = ours.calls / contestant.calls
        record["ratio"] = median_interval(
            [
                steps * theirs / own
                for own, theirs in zip(ours.windows_s, contestant.windows_s, strict=True)
            ]
        )
    return record


def headline(config: Any, rounds: int, window_s: float) -> str:
    sgd = config.optimizer
    rate = sgd.learning_rate * config.batch_size / sgd.base_batch_size
    return (
        f"{config.name}: batch {config.batch_size} of "
        f"{'x'.join(map(str, config.data.image_shape))}, {config.precision}, {sgd.name} (rate "
        f"{rate:g}, momentum {sgd.momentum:g}, weight decay {sgd.weight_decay:g} on "
        f"{sgd.weight_decay_on}), label smoothing {config.label_smoothing:g}, one device, "
        f"{rounds} rounds of {window_s:g} s"
    )


def environment_lines(field: list[Contestant], config: Any) -> list[str]:
    ours = field[0].facts["environment"]
    versions = ours["versions"]
    lines = [
        f"jax {versions['jax']}, {ours['device_kind']}, {ours['cpu']}, {ours['cpu_cores']} cores"
        + (f", driver {ours['driver']}" if ours["driver"] else "")
    ]
    facts = next((c.facts for c in field[1:] if c.facts), None)
    theirs = facts["environment"] if facts else None
    if theirs:
        lines.append(
            f"torch {theirs['torch']}, {theirs['device_kind']}, {theirs['threads']} threads"
            + (f", CUDA {theirs['cuda']}, cuDNN {theirs['cudnn']}" if theirs["cuda"] else "")
            + {"bf16": ", bf16 by autocast", "fp16": ", fp16 by autocast and GradScaler"}.get(
                config.precision, ""
            )
            + ("" if facts["fused_optimizer"] else ", no fused SGD for it")
        )
    if config.precision == "fp32" and field[0].facts["platform"] != "cpu":
        asked = ours["matmul_precision"] or "default (TF32 where the GPU has it)"
        lines.append(
            f"fp32 is multiplied by JAX as: {asked}"
            + (
                f"; by PyTorch in TF32: convolutions {theirs['tf32_convolutions']}, "
                f"dense layers {theirs['tf32_matmul']}"
                if theirs
                else ""
            )
        )
    return lines


def print_results(results: list[dict[str, Any]], precision: str, min_ratio: float) -> list[str]:
    """Prints the table and the verdict; returns what makes it no comparison, or a lost one."""
    width = max(len(record["contestant"]) for record in results)
    print(
        f"\n{'':{width}}  {'images/s (95 % interval)':<32}  {'MFU':>6}  {'peak memory':>13}"
        f"  {'compile':>8}  {'first step':>10}  jaxbench / it (95 % interval)"
    )
    problems = []
    for record in results:
        name = record["contestant"]
        if record["failed"]:
            print(f"{name:{width}}  failed: {record['failed']}")
            problems.append(f"{name} failed")
            continue
        interval = f"({record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
        mfu = f"{record['mfu']:.1%}" if record["mfu"] is not None else "-"
        memory = record["peak_memory_bytes"]
        where = "" if memory is not None else " host"
        memory = f"{(memory or record['host_peak_memory_bytes']) / 2**30:.2f} GiB{where}"
        compile_s = f"{record['compile_s']:.1f} s" if "compile_s" in record else "-"
        ratio = ""
        if record["ratio"]:
            ratio = "{:.3f} ({:.3f} to {:.3f})".format(*record["ratio"])
        line = (
            f"{name:{width}}  {record['images_per_s']:9,.1f} {interval:<22}  {mfu:>6}  {memory:>13}"
            f"  {compile_s:>8}  {record['first_step_s']:8.2f} s  {ratio}"
        )
        print(line.rstrip())
        if record["mfu"] is not None and record["mfu"] > 1:
            problems.append(f"{name} cannot be that fast: its MFU is above 100 %")
    running = [record for record in results if not record["failed"]]
    print(f"\nloss after steps 1 to {FIRST_STEPS} from the same parameters, and after all windows:")
    for record in running:
        losses = "  ".join(f"{loss:8.5f}" for loss in record["losses"])
        print(f"{record['contestant']:{width}}  {losses}  ...  {record['last_loss']:8.5f}")
        if not record["last_loss"] < record["losses"][0]:
            problems.append(f"the loss of {record['contestant']} did not fall")
    for record in running[1:]:
        pairs = list(zip(running[0]["losses"], record["losses"], strict=True))[:AGREEING_STEPS]
        apart = max(abs(own - other) / abs(own) for own, other in pairs)
        if not apart <= AGREEMENT[precision]:
            problems.append(
                f"{record['contestant']} does other work: its first {AGREEING_STEPS} losses differ "
                f"by up to {apart:.2%}, {AGREEMENT[precision]:.1%} is allowed"
            )
        if problem := other_updates(running[0]["distances"], record["distances"], precision):
            problems.append(f"{record['contestant']} does other work: {problem}")
    compared = [record for record in running if record["ratio"]]
    if compared:
        best = max(compared, key=lambda record: record["images_per_s"])
        ratio, low, high = best["ratio"]
        verdict = "not told apart"
        if any("other work" in problem for problem in problems):
            verdict = "no comparison"
        # Both: the ratio's interval, and the rates', which hold what both sides had in common too.
        elif low > 1 and running[0]["images_per_s_low"] > best["images_per_s_high"]:
            verdict = "faster"
        elif high < 1 and running[0]["images_per_s_high"] < best["images_per_s_low"]:
            verdict = "slower"
        print(
            f"\nbest PyTorch variant: {best['contestant']}; jaxbench / it {ratio:.3f} "
            f"(95 % interval {low:.3f} to {high:.3f}): {verdict}"
        )
        if low < min_ratio:
            how = "is" if high < min_ratio else "may be"
            problems.append(f"jaxbench {how} below {min_ratio:g} times the best PyTorch variant")
    for problem in problems:
        print(problem)
    return problems


def other_updates(ours: dict[str, float], theirs: dict[str, float], precision: str) -> str | None:
    """Returns why parameters have not gone as far on both sides; None where they have."""
    if ours.keys() != theirs.keys():
        return f"its parameters are others: {', '.join(sorted(ours.keys() ^ theirs.keys()))[:200]}"
    apart = {
        name: abs(ours[name] - theirs[name]) / max(ours[name], theirs[name], 1e-30) for name in ours
    }
    farthest = max(apart, key=apart.__getitem__)
    if not apart[farthest] <= DISTANCE_LIMIT:
        return (
            f"after {AGREEING_STEPS} steps {farthest} is {theirs[farthest]:.3g} from its start, "
            f"ours {ours[farthest]:.3g}"
        )
    typical = statistics.median(apart.values())
    if not typical <= DISTANCE_AGREEMENT[precision]:
        return (
            f"after {AGREEING_STEPS} steps the distances of parameters from their start differ by "
            f"{typical:.1%} (median), {DISTANCE_AGREEMENT[precision]:.0%} is allowed"
        )
    return None


def main() -> None:
    from absl import flags

    from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
    from jaxbench.cli import entry_point
    from jaxbench.errors import BadInput

    flags.DEFINE_string("experiment", "wrn28_10", "NAME, NAME:tiny or a file of your own.")
    flags.DEFINE_integer("batch_size", 0, "The batch; 0: the experiment's.", lower_bound=0)
    flags.DEFINE_string("precision", "", f"{', '.join(AGREEMENT)}; empty: the experiment's.")
    flags.DEFINE_list("variants", None, f"Of PyTorch: {', '.join(VARIANTS)}; empty for none.")
    flags.DEFINE_enum("compile_mode", "default", COMPILE_MODES, "torch.compile's mode.")
    flags.DEFINE_integer("rounds", 11, "Turns of each.", lower_bound=FEWEST_FOR_INTERVAL)
    flags.DEFINE_float("window_s", 1.0, "A turn has as many steps as take about so long.")
    flags.DEFINE_float("min_ratio", 0.0, "What ours must reach of the best variant's rate.")
    flags.DEFINE_string("pytorch_python", "", "A Python that has torch; default: this one.")
    flags.DEFINE_string("json", "", "Where the records go, with environment; is overwritten.")

    def checked(rest: list[str]) -> int:
        if rest:
            raise BadInput(f"{rest[0]!r}: flags begin with --")
        return compare()

    entry_point.run_with_arguments(checked)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        # Libraries print to standard output, too.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        task = json.loads(sys.argv[2])
        (run_pytorch if task["variant"] else run_jaxbench)(task, answers)
    else:
        main()
