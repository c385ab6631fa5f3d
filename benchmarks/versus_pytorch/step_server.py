"""One side of the comparison: trains in its turns, waits in the others'.

    python step_server.py TASK

TASK is JSON from __main__.py. PyTorch's side needs PyTorch and NumPy alone, nothing of
jaxbench: any Python that has the two will do.
"""

import contextlib
import inspect
import json
import os
import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

# The loss of each of the first steps is told, and after the last of the agreeing ones how far each
# parameter has gone.
FIRST_STEPS, AGREEING_STEPS = 5, 3


def serve(
    answers: TextIO,
    train: Callable[[int], float],
    distances: Callable[[], dict[str, float]],
    release: Callable[[], None] | None,
    peak_memory_bytes: Callable[[], int | None],
    facts: dict[str, Any],
) -> None:
    """Be a contestant: read numbers of steps, answer with seconds and the loss; end at 0.

    Args:
      answers: where they go.
      train: trains the given number of steps, waits for all that they compute; returns the
        last one's loss.
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
    """Return the most memory that this process has had; PyTorch's Python has no jaxbench."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            # getrusage's figure begins with the parent's.
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def run_jaxbench(task: dict[str, Any], answers: TextIO) -> None:
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.xla.compile_cache import use_compile_cache

    use_compile_cache("off")
    prepare_backend()
    import jax
    import numpy as np
    from pytorch_names import NAMES, convert
    from task import load_config

    from jaxbench.data.feeds.feed import create_feed
    from jaxbench.hardware.environment import describe_environment
    from jaxbench.modes.windows import wait_for_steps
    from jaxbench.parallel.mesh import create_training_mesh
    from jaxbench.train import build_program
    from jaxbench.training.compilation import compile_step

    config = load_config(task["experiment"], task["batch_size"], task["precision"])
    mesh, layout = create_training_mesh(config)
    feed = create_feed(config, None, mesh, layout)
    program = build_program(config, mesh, layout, feed.steps_per_epoch)
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
    examples_Bx = np.asarray(row["images"])[0]
    if not config.data.sequence_length:
        mean_C, std_C = np.asarray(feed.train_data["mean"]), np.asarray(feed.train_data["std"])
        examples_Bx = (examples_Bx.astype(np.float32) - mean_C) / std_C
    batch = {"examples": examples_Bx, "labels": np.asarray(row["labels"])[0]}
    np.savez(task["start"], **batch, **start, **running)
    compiled = compile_step("train_step", program.train_step, state, feed.train_data, row)

    def train(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, metrics = program.train_step(state, feed.train_data, row)
        return wait_for_steps(state, program.network.unpack_train_sums(metrics))[0]

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
        lambda: mesh.peak_memory_bytes,
        {
            "platform": jax.default_backend(),
            "environment": describe_environment(mesh.devices),
            "flops_per_image": program.network.analysis.training_flops,
            "compile_s": compiled.lower_s + compiled.compile_s,
            "planned_memory": compiled.memory,
        },
    )


def run_pytorch(task: dict[str, Any], answers: TextIO) -> None:
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
    examples_Bx, labels_Bx = arrays.pop("examples"), arrays.pop("labels")
    named = convert(arrays, NAMES[task["model"]])
    counters = {k: v for k, v in network.state_dict().items() if k.endswith("num_batches_tracked")}
    network.load_state_dict({k: torch.from_numpy(v) for k, v in named.items()} | counters)
    network = network.to(device=device, memory_format=layout).train()
    examples = torch.from_numpy(examples_Bx).to(device)
    if examples.ndim == 4:
        examples = examples.permute(0, 3, 1, 2).contiguous(memory_format=layout)
    else:  # tokens
        examples = examples.long()
    labels = torch.from_numpy(labels_Bx.astype(np.int64)).to(device).flatten()

    rule = task["optimizer"]
    decay, parameters = rule["weight_decay"], [*network.parameters()]
    groups = [
        {"params": [x for x in parameters if x.ndim > 1], "weight_decay": decay},
        {
            "params": [x for x in parameters if x.ndim == 1],
            "weight_decay": decay if rule["weight_decay_on"] == "all" else 0.0,
        },
    ]
    create_optimizer = getattr(torch.optim, rule["name"])
    fused = True
    try:
        optimizer = create_optimizer(groups, **rule["settings"], fused=True)
    except (RuntimeError, TypeError):  # not on this device, not in this PyTorch
        fused = False
        optimizer = create_optimizer(groups, **rule["settings"])
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(task["precision"])
    # PyTorch's defaults are ours (jaxbench/training/loss_scale.py). Not enabled, it hands on.
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
    model = network
    if "compile" in task["variant"]:
        model = torch.compile(network, mode=task["compile_mode"])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, half, enabled=half is not None):
            logits_Bx = model(examples)
            loss = F.cross_entropy(
                logits_Bx.flatten(0, -2), labels, label_smoothing=task["label_smoothing"]
            )
        scaler.scale(loss).backward()
        if rule["max_gradient_norm"]:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(network.parameters(), rule["max_gradient_norm"])
        scaler.step(optimizer)
        scaler.update()
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


if __name__ == "__main__":
    # Libraries print to standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])
    (run_pytorch if task["variant"] else run_jaxbench)(task, answers)
