"""What a resident feed's input costs inside the step, in several forms of crop and flip.

    python benchmarks/resident_input.py --experiment=cnn10 --experiment.data.source=synthetic
        --experiment.data.crop_padding=4 --experiment.data.flip=true [--rounds=7] [--window_s=1]

Every form draws the batch out of the data set that stays on the device, draws each example's crop
and flip, cuts, mirrors and normalises; it is timed alone, in turns with the training step of a
batch that is made already. The share is one's time beside the other's. Inside a step XLA joins the
last of it to the first convolution, so that it costs less there.

  gather    each pixel by its place: rows and columns computed and reflected (`data/augment.py`)
  slice     pad, then a slice of each image at its own corner
  two_step  the same rows first, then the columns
  one_hot   rows, then columns, picked by products with matrices of 0 and 1

Exit code 1 if a form makes other pixels than the host's, if XLA makes a loop of `gather`, or if
`gather` takes more than --max_share of the step, by more than the 95 % interval.
"""

import contextlib
import json
import sys

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput

_ROUNDS = flags.DEFINE_integer("rounds", 7, "Windows of each form.", lower_bound=6)
_WINDOW_S = flags.DEFINE_float("window_s", 1.0, "Seconds that a window takes, about.")
_MAX_SHARE = flags.DEFINE_float("max_share", 0.03, "The most of the step that the input may take.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")


def make_forms(data):
    """Returns {name: (windows, images_BxHxWxC) -> images_BxHxWxC}."""
    import jax
    import jax.numpy as jnp

    from jaxbench.data import augment

    def places(windows, images):
        """Rows and columns reflected, and what makes those outside black."""
        height, width = images.shape[1:3]
        rows = jnp.arange(height) + windows.top_B[:, None] - data.crop_padding
        columns = jnp.arange(width) + windows.left_B[:, None] - data.crop_padding
        if data.flip:
            columns = jnp.where(windows.flipped_B[:, None], columns[:, ::-1], columns)

        def reflect(places, size):
            places = jnp.abs(places)
            return jnp.where(places >= size, 2 * (size - 1) - places, places)

        def blacken(images):
            if data.padding_mode != "black":
                return images
            outside_BxH = (rows < 0) | (rows >= height)
            outside_BxW = (columns < 0) | (columns >= width)
            outside_BxHxW = outside_BxH[:, :, None] | outside_BxW[:, None, :]
            return jnp.where(outside_BxHxW[..., None], 0, images)

        return reflect(rows, height), reflect(columns, width), blacken

    def slices(windows, images):
        def one(window, image_HxWxC):
            margins = ((data.crop_padding,) * 2, (data.crop_padding,) * 2, (0, 0))
            mode = {"reflect": "reflect", "black": "constant"}[data.padding_mode]
            padded = jnp.pad(image_HxWxC, margins, mode=mode)
            start = (window.top_B, window.left_B, jnp.int32(0))
            cut = jax.lax.dynamic_slice(padded, start, image_HxWxC.shape)
            return jnp.where(window.flipped_B, cut[:, ::-1], cut) if data.flip else cut

        return jax.vmap(one)(windows, images)

    def two_step(windows, images):
        rows, columns, blacken = places(windows, images)
        images = jnp.take_along_axis(images, rows[:, :, None, None], axis=1)
        return blacken(jnp.take_along_axis(images, columns[:, None, :, None], axis=2))

    def one_hot(windows, images):
        rows, columns, blacken = places(windows, images)
        # Whole numbers up to 255 are exact in 16 bits of bfloat.
        pick_rows = jax.nn.one_hot(rows, images.shape[1], dtype=jnp.bfloat16)
        pick_columns = jax.nn.one_hot(columns, images.shape[2], dtype=jnp.bfloat16)
        picked = jnp.einsum("bih,bhwc->biwc", pick_rows, images.astype(jnp.bfloat16))
        picked = jnp.einsum("bjw,biwc->bijc", pick_columns, picked)
        return blacken(picked.astype(images.dtype))

    return {
        "gather": lambda windows, images: augment.crop_and_flip(windows, images, data),
        "slice": slices,
        "two_step": two_step,
        "one_hot": one_hot,
    }


def describe_form(
    times_s: list[float], step_times_s: list[float]
) -> dict[str, float | list[float]]:
    """Returns what windows of a form say, each beside the step's of the same round.

    Args:
      times_s: of one batch, the mean of each window.
      step_times_s: of one training step, likewise.
    """
    from jaxbench.analysis.statistics import median_interval

    pairs = zip(times_s, step_times_s, strict=True)
    time_s, *interval_s = median_interval(times_s)
    share, *share_interval = median_interval([own_s / step_s for own_s, step_s in pairs])
    return {
        "time_s": time_s,
        "time_interval_s": interval_s,
        "share": share,
        "share_interval": share_interval,
        "times_s": times_s,
    }


def main(spec: str | None, overrides: list[str]) -> int:
    import jax
    import numpy as np

    from jaxbench.analysis.statistics import median_interval
    from jaxbench.clock import Stopwatch
    from jaxbench.config import Config
    from jaxbench.data import augment
    from jaxbench.data.feeds.feed import create_feed, unpack_resident
    from jaxbench.data.sources.load import load_dataset
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.microbench.interleaved import check_window_s, warm_up
    from jaxbench.modes.runner import with_feed
    from jaxbench.modes.windows import wait_for_steps
    from jaxbench.parallel.mesh import create_training_mesh
    from jaxbench.precision import get_precision
    from jaxbench.train import build_program
    from jaxbench.xla.hlo import instructions

    config = entry_point.load_experiment(spec, overrides)
    if not isinstance(config, Config):
        raise BadInput(f"--experiment={spec}: a benchmark needs one that trains a network")
    check_window_s(_WINDOW_S.value)
    prepare_backend()
    config.num_devices = 1
    data = config.data
    if not data.crop_padding or data.standardization != "dataset":
        raise BadInput(
            f"data.crop_padding={data.crop_padding}, "
            f"data.standardization={data.standardization!r}: this measures "
            "a crop, such as --experiment.data.crop_padding=4, and the data set's scale"
        )
    precision = get_precision(config.precision)
    with precision.enabled(), contextlib.ExitStack() as stack:
        mesh, layout = create_training_mesh(config)
        feed = create_feed(
            with_feed(config, "resident"), load_dataset(config), mesh, layout, np.float32
        )
        stack.callback(feed.close)
        made = with_feed(config, "synthetic")
        made_feed = create_feed(made, None, mesh, layout, precision.param_dtype)
        stack.callback(made_feed.close)
        program = build_program(made, mesh, layout, made_feed.steps_per_epoch)
        state = program.place_train_state()
        made_row = next(made_feed.train_batches(0, 1))
        row = jax.tree.map(lambda leaf: leaf[0], next(feed.train_batches(0, 1)))
        step = jax.numpy.int32(0)

        def make_input(form):
            def take(train_data, row, step):
                batch = unpack_resident(train_data, row, step)
                keys_B = augment.example_keys(batch.seed, batch.epoch, batch.indices_B)
                windows = augment.example_windows(
                    keys_B, batch.seed, batch.epoch, batch.indices_B, data
                )
                pixels = form(windows, batch.inputs_Bx)
                mean, std = train_data["mean"], train_data["std"]
                images = augment.normalize(pixels, mean, std, precision.compute_dtype)
                return images, (windows, batch.inputs_Bx, pixels)

            return take

        runs, loops, wrong = {}, {}, []
        for name, form in make_forms(data).items():
            take = make_input(form)
            images, (windows, before, pixels) = jax.jit(take)(feed.train_data, row, step)
            on_host = augment.crop_and_flip(
                jax.tree.map(np.asarray, windows), np.asarray(before), data
            )
            if not np.array_equal(on_host, np.asarray(pixels)):
                wrong.append(name)
            compiled = (
                jax.jit(lambda *args, take=take: take(*args)[0])
                .lower(feed.train_data, row, step)
                .compile()
            )
            # Of the crop alone: on a CPU JAX draws random numbers in loops.
            alone = jax.jit(form).lower(windows, before).compile().as_text()
            loops[name] = sum(one.opcode == "while" for one in instructions(alone))

            def run(calls: int, compiled=compiled) -> float:
                watch = Stopwatch()
                for _ in range(calls):
                    images = compiled(feed.train_data, row, step)
                jax.block_until_ready(images)
                return watch.elapsed_s()

            runs[name] = run

        def run_step(calls: int) -> float:
            nonlocal state
            watch = Stopwatch()
            for _ in range(calls):
                state, metrics = program.train_step(state, made_feed.train_data, made_row)
            wait_for_steps(state, program.unpack_train_sums(metrics))
            return watch.elapsed_s()

        runs["step"] = run_step
        calls = {
            name: warm_up(run, _WINDOW_S.value, _ROUNDS.value).calls_per_window
            for name, run in runs.items()
        }
        times_s: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(_ROUNDS.value):
            # Forwards, then backwards: what drifts hits all alike.
            for name in list(runs) if number % 2 == 0 else list(runs)[::-1]:
                times_s[name].append(runs[name](calls[name]) / calls[name])
    step_s = median_interval(times_s["step"])
    records = []
    for name in loops:
        records.append(
            {
                "form": name,
                **describe_form(times_s[name], times_s["step"]),
                "while_loops": loops[name],
                "same_pixels": name not in wrong,
            }
        )
    kind = mesh.devices[0].device_kind
    if _JSON.value:
        step = {"step_s": step_s[0], "step_times_s": times_s["step"]}
        print(json.dumps({"device": kind, **step, "forms": records}))
    else:
        print(f"{config.name}, {kind}, batch {config.batch_size}, {config.precision}")
        whole, low, high = (1e3 * time_s for time_s in step_s)
        print(f"step      {whole:10.3f} ms  ({low:.3f} to {high:.3f})")
        for record in records:
            low, high = record["time_interval_s"]
            print(
                f"{record['form']:<9} {record['time_s'] * 1e3:10.3f} ms  "
                f"({low * 1e3:.3f} to {high * 1e3:.3f})  {record['share']:.3%} of the step "
                f"({record['share_interval'][0]:.3%} to {record['share_interval'][1]:.3%}), "
                f"{record['while_loops']} loops"
            )
    ours = records[0]
    failed = bool(wrong) or ours["while_loops"] > 0
    if wrong:
        print(f"other pixels than the host's: {', '.join(wrong)}", file=sys.stderr)
    if ours["while_loops"]:
        print("XLA makes a loop of the crop", file=sys.stderr)
    if ours["share_interval"][0] > _MAX_SHARE.value:
        print(f"the input takes more than {_MAX_SHARE.value:.0%} of the step", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
