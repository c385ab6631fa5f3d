"""Our training step against PyTorch's: same network, parameters, images, batch and precision.

    python benchmarks/versus_pytorch --experiment=wrn28_10 --batch_size=512 --precision=bf16
        [--variants=eager,channels_last,compile,channels_last_compile] [--rounds=11]
        [--min_ratio=1.2] [--pytorch_python=PYTHON] [--json=FILE]

The networks are resnet50's, wrn28_10's and cnn10's, vision transformers and language models
(pytorch_networks.py; tests/integration/test_pytorch_parity.py checks that they compute the same). A
step is the whole of it: forward, backward, SGD or AdamW with the experiment's settings at its
learning rate, held. One synthetic batch stays on one device. Every contestant is a process of its
own that waits, stopped, while the others have their turn:

  jaxbench  the compiled step of --mode=throughput, which also normalises the images (uint8) and
            counts hits
  pytorch   images normalised beforehand, in the network's layout; optimizer fused where
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
above 100 %, or if not all of the 95 % interval is above --min_ratio times the best variant. The
interval contains what changes within this one run of each. It is no verdict: repeat the command to
see what changes between runs.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from absl import flags
from contestant import Contestant, contestants
from step_server import FIRST_STEPS
from task import PRECISIONS, load_config, pytorch_task

from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.microbench.interleaved import check_window_s, unsettled_warnings, warm_up
from results import describe, environment_lines, headline, print_results

VARIANTS = ("eager", "channels_last", "compile", "channels_last_compile")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compare() -> int:
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
            "compile_mode": given.compile_mode,
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
        if config.data.sequence_length:  # tokens have one layout
            variants = [variant for variant in variants if "channels_last" not in variant]
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
            calls = found.calls + FIRST_STEPS
            warmups[contestant.name] = dataclasses.replace(found, calls=calls)
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
    """Raise BadInput where a file could not be written after all the work."""

    file = pathlib.Path(path).expanduser()
    if path and not file.parent.is_dir():
        raise BadInput(f"--json={path}: no such folder")
    if path and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise BadInput(f"--json={path}: cannot be written; give a file's path")


def look_for_pytorch(python: str) -> tuple[bool | None, str | None]:
    """Return whether a Python's PyTorch sees a GPU, and the line to say where it has none."""
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


def main() -> None:
    flags.DEFINE_string("experiment", "wrn28_10", "NAME, NAME:tiny or a file of your own.")
    flags.DEFINE_integer("batch_size", 0, "The batch; 0: the experiment's.", lower_bound=0)
    flags.DEFINE_string("precision", "", f"{', '.join(PRECISIONS)}; empty: the experiment's.")
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
    main()
