"""What the telemetry costs: the rate of the bare training step with and without it, interleaved.

    python benchmarks/telemetry_overhead.py --experiment=quickstart [--rounds=101] [--window_s=1]

Each round times the same number of compiled steps, closed by one barrier, twice: with the readers
that a run on these devices has, in their threads and writing their file, and without. A sample
costs the same however often it is taken, and one each second costs too little to be seen. So more
are taken (--sample_every_s), and their cost is divided accordingly. Beside that stands the
processor time that the threads themselves take, as a share of one core. Exit code 1 if either says
that more than --max_cost is lost at the default interval, the ratio by more than its 95 % interval.
"""

import math
import pathlib
import statistics
import tempfile
import time

from absl import flags

from jaxbench.cli import entry_point

_ROUNDS = flags.DEFINE_integer("rounds", 101, "Pairs of measurements.", lower_bound=5)
_WINDOW_S = flags.DEFINE_float("window_s", 1.0, "How long a measurement takes.", lower_bound=0.1)
_EVERY_S = flags.DEFINE_float("sample_every_s", 0.02, "Between samples.", lower_bound=0.01)
_MAX_COST = flags.DEFINE_float("max_cost", 0.005, "The share of the rate that it may take.")


class CountedReader:
    """A reader that notes the processor time of its thread whenever it is asked."""

    def __init__(self, reader):
        self._reader = reader
        self.name, self.reads_energy = reader.name, reader.reads_energy
        self.thread_times_s = []

    def read(self):
        self.thread_times_s.append(time.thread_time())
        yield from self._reader.read()


def main(spec: str | None, overrides: list[str]) -> int:
    import jax

    from jaxbench.analysis.statistics import median_interval
    from jaxbench.clock import Clock, Stopwatch
    from jaxbench.data.feeds.feed import create_feed
    from jaxbench.data.sources.load import load_dataset
    from jaxbench.hardware.backend_flags import prepare_backend
    from jaxbench.hardware.telemetry.sampler import INTERVAL_S, Telemetry, create_readers
    from jaxbench.parallel.mesh import create_training_mesh
    from jaxbench.precision import get_precision
    from jaxbench.train import build_program

    config = entry_point.load_experiment(spec, overrides)
    prepare_backend()
    precision = get_precision(config.precision)
    pairs, samples_s = [], {}
    with precision.enabled(), tempfile.TemporaryDirectory() as folder:
        mesh, layout = create_training_mesh(config)
        feed = create_feed(config, load_dataset(config), mesh, layout, precision.param_dtype)
        program = build_program(config, mesh, layout, feed.steps_per_epoch)
        state = program.place_train_state()

        def train(steps: int) -> float:
            nonlocal state
            rows = feed.train_batches(0, steps)
            watch = Stopwatch()
            for row in rows:
                state, _ = program.train_step(state, feed.train_data, row)
            jax.block_until_ready(state)
            return watch.elapsed_s()

        train(1)  # compiles
        steps = math.ceil(_WINDOW_S.value * 5 / train(5))
        train(steps)  # warm
        print(
            f"{config.name}, {mesh.num_devices} x {mesh.devices[0].device_kind}, batch "
            f"{config.batch_size}, {steps} steps a measurement, a sample every "
            f"{_EVERY_S.value:g} s"
        )

        def train_watched() -> float:
            readers = [CountedReader(reader) for reader in create_readers(mesh.devices)]
            path = pathlib.Path(folder, "telemetry.csv")
            telemetry = Telemetry(path, _EVERY_S.value, Clock(), readers)
            telemetry.start()
            elapsed_s = train(steps)
            telemetry.stop()
            for reader in readers:
                # From one sample's beginning to the next one's: asking, writing and waiting. The
                # first also loads its library, once in a run.
                times_s = reader.thread_times_s[1:]
                differences_s = [b - a for a, b in zip(times_s, times_s[1:], strict=False)]
                samples_s.setdefault(reader.name, []).extend(differences_s)
            return elapsed_s

        for number in range(_ROUNDS.value):
            # A B, then B A: what drifts hits both alike.
            if number % 2:
                pairs.append((train(steps), train_watched()))
            else:
                watched_s = train_watched()
                pairs.append((train(steps), watched_s))
        feed.close()

    images = steps * config.batch_size
    ratio, low, high = median_interval([bare_s / watched_s for bare_s, watched_s in pairs])
    print(f"without telemetry  {images / statistics.median(b for b, _ in pairs):10,.1f} images/s")
    print(f"with telemetry     {images / statistics.median(w for _, w in pairs):10,.1f} images/s")
    print(
        f"with / without     {ratio:.4f}  (median of {len(pairs)} rounds, "
        f"95 % interval {low:.4f} to {high:.4f})"
    )
    scale = _EVERY_S.value / INTERVAL_S
    lost, least, most = ((1 - one) * scale for one in (ratio, high, low))
    print(
        f"so at {INTERVAL_S:g} s telemetry takes {lost:.3%} of the rate  "
        f"(95 % interval {least:.3%} to {most:.3%})"
    )
    share = 0.0
    for name, differences_s in samples_s.items():
        mean_s = statistics.mean(differences_s)
        share += mean_s / INTERVAL_S
        print(
            f"{name}: {mean_s * 1e3:.3f} ms of processor time a sample, mean of "
            f"{len(differences_s)} (largest {max(differences_s) * 1e3:.3f})"
        )
    print(f"and at {INTERVAL_S:g} s its threads take {share:.3%} of one core")
    if max(least, share) > _MAX_COST.value:
        print(f"that is more than {_MAX_COST.value:.1%}")
        return 1
    return 0


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
