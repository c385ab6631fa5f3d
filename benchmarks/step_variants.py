"""The training step in several forms: what XLA makes of each, and how fast it is.

    python benchmarks/step_variants.py --experiment=wrn28_10 --experiment.precision=bf16
        --experiment.batch_size=512 --variant="remat remat=save_dots"
        --variant="lhs xla_gpu_enable_latency_hiding_scheduler=true"
        --variant="calls steps_per_call=4" [--rounds=7] [--window_s=1] [--json]

The first form is the experiment as it is given. A variant is a name and what is different:

  FIELD=VALUE       a field of the experiment
  xla_OPTION=VALUE  an option of XLA's compiler; one that it does not know, or a value that the
                    option cannot have, leaves the variant out, with a line
  steps_per_call=N  N steps are one call; what is counted is a call's, its loop of N steps once,
                    but for bytes
  layers=flax_norm  flax's own batch norm in place of ours; flax_pool its max-pooling; flax both
  feed=resident     the step draws its batch out of a data set on the devices, crops and flips it;
                    else (synthetic) one batch stays there

Every form's own step is compiled. The forms take turns; a ratio is of two windows of one round, its
interval as everywhere. A form that runs out of memory fails with its reason, the others go on. Exit
code 1 if one does, or does not donate its whole state.

    python benchmarks/step_variants.py ... --target=gpu:h200

compiles for a machine that is not here and runs nothing (feed=resident: a data set of one batch
stands in). docs/howto/targets.md has the targets, and what they need. XLA then picks cuDNN's
algorithms unmeasured: kernels, layouts and bytes are the GPU's, times stay unknown.
"""

import contextlib
import json
import math
import os
import re
import sys
import unittest.mock
from collections.abc import Iterator
from typing import Any, NamedTuple

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import OUT_OF_MEMORY, BadInput

_VARIANTS = flags.DEFINE_multi_string("variant", [], '"NAME FIELD=VALUE ...": what is different.')
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Windows of each form.", lower_bound=6)
_WINDOW_S = flags.DEFINE_float("window_s", 1.0, "Seconds that a window takes, about.")
_TARGET = flags.DEFINE_string("target", None, "Compile for a machine that is not here.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
# Whose layers a form has: {value: those that are flax's}.
_LAYERS = {
    "jaxbench": (),
    "flax_norm": ("BatchNorm",),
    "flax_pool": ("max_pool",),
    "flax": ("BatchNorm", "max_pool"),
}
_FEEDS = ("synthetic", "resident")
# What XLA says of an option that it does not know, and of a value that an option cannot have.
_BAD_OPTION = re.compile("No such compile option|While setting option")
_LONGEST_REASON = 200


class Variant(NamedTuple):
    """What is different in a form of the step."""

    name: str
    overrides: list[str]
    xla_options: dict[str, str]
    steps_per_call: int = 1
    layers: str = "jaxbench"
    feed: str = "synthetic"


def parse_variant(text: str) -> Variant:
    """Read `NAME FIELD=VALUE ...`."""
    name, *assignments = text.split() or [""]
    if not name or "=" in name:
        raise BadInput(f"--variant={text}: must be a name, then FIELD=VALUE ...")
    variant = Variant(name, [], {})
    for assignment in assignments:
        field, equals, value = assignment.partition("=")
        if not equals:
            raise BadInput(f"--variant={text}: {assignment!r} must be FIELD=VALUE")
        if field.startswith("xla_"):
            # What XLA_FLAGS takes in small letters the compiler's options do not.
            variant.xla_options[field] = {"true": "True", "false": "False"}.get(value, value)
        elif field in ("layers", "feed"):
            allowed = {"layers": tuple(_LAYERS), "feed": _FEEDS}[field]
            if value not in allowed:
                raise BadInput(f"--variant={text}: {field} must be one of {', '.join(allowed)}")
            variant = variant._replace(**{field: value})
        elif field == "steps_per_call":
            if not re.fullmatch("[1-9][0-9]*", value):
                raise BadInput(f"--variant={text}: steps_per_call must be a whole number")
            variant = variant._replace(steps_per_call=int(value))
        else:
            variant.overrides.append(f"--experiment.{assignment}")
    return variant


@contextlib.contextmanager
def layers_of(whose: str) -> Iterator[None]:
    """Has networks that are built and traced inside the `with` use flax's own layers."""
    import flax.linen as nn

    from jaxbench.models import layers, mnist_cnn, resnet, speed_net, unet, vgg

    def norm(*, relu: bool = False, **fields):
        own = nn.BatchNorm(**fields)
        return lambda x: nn.relu(own(x)) if relu else own(x)

    def pool(x, window, stride, padding=0):
        sides = ((padding, padding), (padding, padding))
        return nn.max_pool(x, (window, window), (stride, stride), sides)

    flaxs = {"BatchNorm": norm, "max_pool": pool}
    with contextlib.ExitStack() as stack:
        for module in (layers, mnist_cnn, resnet, speed_net, unet, vgg):
            for name in set(_LAYERS[whose]) & vars(module).keys():
                stack.enter_context(unittest.mock.patch.object(module, name, flaxs[name]))
        yield


def mesh_of(config: Any, devices: Any) -> tuple[Any, Any]:
    """Return the devices here that the experiment asks for, else those to compile for.

    Beside them, how the batch is split over them.
    """
    from jaxbench.batch_layout import BatchLayout
    from jaxbench.parallel.mesh import DataMesh, create_training_mesh

    if devices is None:
        return create_training_mesh(config)
    return DataMesh(tuple(devices), "shard_map"), BatchLayout.create(config, len(devices))


class Form:
    """One form of the step, compiled."""

    def __init__(self, variant: Variant, config: Any, devices: Any):
        import jax
        import numpy as np

        from jaxbench.clock import Stopwatch
        from jaxbench.data.feeds.feed import abstract_args, create_feed
        from jaxbench.data.sources.load import load_dataset
        from jaxbench.modes.describe import list_layers
        from jaxbench.modes.runner import with_feed
        from jaxbench.modes.throughput import repeat_train_step
        from jaxbench.precision import get_precision
        from jaxbench.train import build_program
        from jaxbench.xla.hlo import count_collectives, count_work

        self.name = variant.name
        steps, options = variant.steps_per_call, variant.xla_options
        config = with_feed(config, variant.feed)
        self.enabled = get_precision(config.precision).enabled
        with self.enabled(), layers_of(variant.layers):
            self.mesh, layout = mesh_of(config, devices)
            program = build_program(config, self.mesh, layout, steps_per_epoch=1)
            program.check()
            step = repeat_train_step(program, steps) if steps > 1 else program.train_step
            self._place, param_dtype = program.place_train_state, program.precision.param_dtype
            self._train_metrics = program.unpack_train_sums
            self._feed = None
            labels = program.task.label_shape(config.data.image_shape)
            args = abstract_args(config, layout, labels, param_dtype)
            if devices is None:
                dataset = load_dataset(config) if variant.feed == "resident" else None
                self._feed = create_feed(config, dataset, self.mesh, layout, param_dtype)
                args = self._feed.train_data, next(self._feed.train_batches(0, 1))
                state = self._place()
            else:
                state = program.abstract_placed_state()
            watch = Stopwatch()
            compiled = step.lower(state, *args).compile(compiler_options=options or None)
            compile_s = watch.elapsed_s()
            self._step, self._args, self._state = compiled, args, None
            self.images_per_call = layout.images_per_step * steps
            share = layout.batch_per_device // layout.gradient_accumulation_steps
            shapes = [config.data.image_shape]
            shapes += [row["output_shape"] for row in list_layers(program)]
            sizes = {share * math.prod(shape) for shape in shapes if len(shape) == 3}
            memory = compiled.memory_analysis()
            cost = compiled.cost_analysis() or {}
            text = compiled.as_text()
            state_bytes = sum(
                math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
                for leaf in jax.tree.leaves(program.abstract_train_state())
            )
            self.record: dict[str, Any] = {
                "variant": self.name,
                "failed": None,
                "feed": variant.feed,
                "steps_per_call": steps,
                "xla_options": options,
                "compile_s": compile_s,
                "temporary_bytes": memory.temp_size_in_bytes,
                "donated_bytes": memory.alias_size_in_bytes,
                "state_bytes": state_bytes,
                "donated": memory.alias_size_in_bytes >= state_bytes,
                "xla_flops": cost.get("flops"),
                "xla_bytes": cost.get("bytes accessed"),
                **count_work(text, sizes),
                "bytes_lower_bound": program.bytes_lower_bound(
                    steps * layout.batch_per_device, steps * state_bytes
                ),
                "collectives": count_collectives(text),
            }

    def run(self, calls: int) -> float:
        """Call the step `calls` times; return the seconds that it took."""
        import jax

        from jaxbench.clock import Stopwatch
        from jaxbench.modes.windows import wait_for_steps
        from jaxbench.training.run import DispatchLimiter

        with self.enabled():
            if self._state is None:
                self._state = self._place()
                jax.block_until_ready(self._state)
            backlog = DispatchLimiter()
            watch = Stopwatch()
            for _ in range(calls):
                self._state, metrics = self._step(self._state, *self._args)
                backlog.add(metrics)
            wait_for_steps(self._state, self._train_metrics(metrics))
            return watch.elapsed_s()

    def close(self) -> None:
        """Frees the arrays on the devices."""
        if self._feed is not None:
            self._feed.close()
        self._feed = self._args = self._state = self._step = None


@contextlib.contextmanager
def failing_alone(record: dict[str, Any]) -> Iterator[None]:
    """Note in the record that what is inside the `with` ran out of memory, and go on."""
    try:
        yield
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, BadInput) or not OUT_OF_MEMORY.search(said):
            raise
        record["failed"] = f"out of memory: {said[:_LONGEST_REASON]}"


def measure(forms: list[Any], window_s: float, rounds: int) -> None:
    """Time forms by turns and add what they say to their records.

    Args:
      forms: each with a `record`, `images_per_call`, `run(calls)` and `close()`. One that runs out
        of memory fails alone and is closed.
      window_s: seconds that a window takes, about.
      rounds: windows of each form.
    """
    from jaxbench.microbench.interleaved import warm_up
    from jaxbench.modes.windows import describe_windows

    calls, windows_s = [0] * len(forms), [[] for _ in forms]

    def attempt(number: int, work: Any) -> None:
        form = forms[number]
        if not form.record["failed"]:
            with failing_alone(form.record):
                work(number, form)
            if form.record["failed"]:
                form.close()

    def warm(number: int, form: Any) -> None:
        calls[number] = warm_up(form.run, window_s, rounds).calls_per_window

    def take_window(number: int, form: Any) -> None:
        windows_s[number].append(form.run(calls[number]))

    for number in range(len(forms)):
        attempt(number, warm)
    for turn in range(rounds):
        # Forwards, then backwards: what drifts hits all alike.
        for number in list(range(len(forms)))[:: 1 if turn % 2 == 0 else -1]:
            attempt(number, take_window)
    for form, own_calls, own_s in zip(forms, calls, windows_s, strict=True):
        if not form.record["failed"]:
            images = form.images_per_call * own_calls
            form.record["images_per_window"] = images
            form.record |= describe_windows(images, own_s)


def times_the_base(record: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return by how much a form's rate is the base's, round by round; nothing where one is none.

    Of rates, not of times: a form may have a batch, models, or steps of its own.
    """
    from jaxbench.analysis.statistics import median_interval

    if "windows_s" not in record or "windows_s" not in base:
        return {}
    rates, base_rates = (
        [one["images_per_window"] / window_s for window_s in one["windows_s"]]
        for one in (record, base)
    )
    pairs = zip(rates, base_rates, strict=True)
    ratio, *interval = median_interval([own / first for own, first in pairs])
    return {"ratio": ratio, "ratio_interval": interval}


def absent_devices(name: str) -> Any:
    """Return the devices of a target, which can only be compiled for."""
    from jaxbench.hardware.targets.target import compiler_version, environment, parse_target

    target = parse_target(name)
    compiler_version(target)
    variables = environment(target)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        # The same command again, in variables that must be set before JAX is imported.
        sys.stdout.flush()
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, os.environ | variables)
    from jaxbench.modes.targets import create_devices

    return create_devices(target)


def main(spec: str | None, overrides: list[str]) -> int:
    from jaxbench.config import Config
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.microbench.interleaved import check_window_s

    check_window_s(_WINDOW_S.value)
    if not spec or spec == "list":
        raise BadInput("a benchmark needs one experiment: --experiment=NAME")
    variants = [Variant("base", [], {}), *map(parse_variant, _VARIANTS.value)]
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise BadInput(f"variants need names of their own, base is the first's: {names}")
    configs = [
        entry_point.load_experiment(spec, [*overrides, *each.overrides]) for each in variants
    ]
    config = configs[0]
    if not isinstance(config, Config):
        raise BadInput(f"--experiment={spec}: has no training step")
    devices = absent_devices(_TARGET.value) if _TARGET.value else None
    prepare_backend()
    mesh, _ = mesh_of(config, devices)
    with contextlib.ExitStack() as stack:
        forms, records = [], []
        for variant, own_config in zip(variants, configs, strict=True):
            record = {"variant": variant.name, "failed": None}
            try:
                with failing_alone(record):
                    form = Form(variant, own_config, devices)
                    stack.callback(form.close)
                    forms.append(form)
                    record = form.record
            except RuntimeError as error:
                if not _BAD_OPTION.search(str(error)):
                    raise
                print(
                    f"{variant.name} is left out: {' '.join(str(error).split())}", file=sys.stderr
                )
                continue
            records.append(record)
        if devices is None:
            measure(forms, _WINDOW_S.value, _ROUNDS.value)
    for record in records:
        record |= times_the_base(record, records[0])
    kind = mesh.devices[0].device_kind
    if _JSON.value:
        print(json.dumps({"device": kind, "forms": records}))
    else:
        print(
            f"{config.name}, {mesh.num_devices} x {kind}"
            f"{' (compiled for, not run)' if devices else ''}, batch {config.batch_size}, "
            f"{config.precision}"
        )
        for record in records:
            print_record(record)
    problems = {
        "failed": [record["variant"] for record in records if record["failed"]],
        "the state is not donated whole": [
            record["variant"] for record in records if not record.get("donated", True)
        ],
    }
    for problem, whose in problems.items():
        if whose:
            print(f"{problem}: {', '.join(whose)}", file=sys.stderr)
    return int(any(problems.values()))


def print_record(record: dict[str, Any]) -> None:
    """Print a form's name and what is known of it, a line each."""
    print(record["variant"])
    for name, value in record.items():
        if name not in ("variant", "windows_s") and value is not None:
            print(f"  {name:<22} {as_text(value)}")


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {as_text(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return " to ".join(map(as_text, value))
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value) if isinstance(value, (bool, str)) else f"{value:,}"


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
