"""Images per second of the streamed pipeline against other libraries', in one interleaved run.

    python benchmarks/input_pipeline.py --folder=IMAGES [--tensorflow_python=PYTHON]
        [--pytorch_python=PYTHON] [--spdl_python=PYTHON] [--dali_python=PYTHON]
        [--rounds=7] [--threads=0]

IMAGES is searched for JPEG files, which are read again and again (from memory, after the first
round). Every contestant is a process of its own that is told "so many images", one after the other,
and all do the same work, see input_contestants.py:

  jaxbench   `StreamFeed`
  decode     libjpeg-turbo decoding every file whole in threads, nothing else: what it all costs
             that does not decode less
  tf.data    decode_and_crop_jpeg and AUTOTUNE (in an environment that has tensorflow)
  flax       the same as flax's ImageNet example has it: bicubic, and normalised to float32
  pytorch    a DataLoader with a worker process for each core, and PIL (torch, pillow)
  spdl       threads, FFmpeg's decoder and filters (spdl, spdl-io, and FFmpeg's libraries)
  dali       its CPU operators (nvidia-dali-cuda120 or -cuda130; no GPU is needed)

Those without a Python are left out, with a line that says so. Exit code 1 if the lower end of a
ratio's 95 % interval is below the goal: 2.0 times both of tf.data, 1.3 times SPDL and DALI.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

from input_contestants import BATCH, SIZE, jpeg_files

CONTESTANTS = pathlib.Path(__file__).with_name("input_contestants.py").resolve()
# {contestant: the flag for its Python}.
PEERS = {
    "tf.data": "tensorflow_python",
    "flax": "tensorflow_python",
    "pytorch": "pytorch_python",
    "spdl": "spdl_python",
    "dali": "dali_python",
}
GOALS = {"tf.data": 2.0, "flax": 2.0, "spdl": 1.3, "dali": 1.3}


def compare() -> int:
    from absl import flags

    from jaxbench.analysis.statistics import median_interval
    from jaxbench.errors import BadInput
    from jaxbench.hardware.system import available_cores

    files = jpeg_files(flags.FLAGS.folder)
    if not files:
        raise BadInput(f"--folder={flags.FLAGS.folder}: no JPEG files in it")
    threads = flags.FLAGS.threads or available_cores()
    pythons = {"jaxbench": sys.executable, "decode": sys.executable}
    for name, flag in PEERS.items():
        if python := flags.FLAGS[flag].value:
            pythons[name] = python
        else:
            print(f"{name} is left out: give --{flag}")
    images = max(BATCH, flags.FLAGS.images // BATCH * BATCH)
    children = {}
    try:
        for name, python in pythons.items():
            task = json.dumps({"contestant": name, "files": files, "threads": threads})
            children[name] = subprocess.Popen(
                [python, str(CONTESTANTS), task],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # its worker processes are stopped with it
                env=os.environ
                | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            if children[name].stdout.readline().strip() != "ready":
                raise BadInput(f"{name}: {python} could not start it (its words stand above)")
            os.killpg(children[name].pid, signal.SIGSTOP)
        rates: dict[str, list[float]] = {name: [] for name in children}
        for number in range(flags.FLAGS.rounds):
            # Forwards, then backwards: what drifts hits all alike.
            order = list(children) if number % 2 == 0 else list(reversed(children))
            for name in order:
                child = children[name]
                child.stdin.write(f"{images}\n")
                child.stdin.flush()
                # Stopped between its turns: else it would work ahead in the others' time.
                os.killpg(child.pid, signal.SIGCONT)
                rates[name].append(images / float(child.stdout.readline()))
                os.killpg(child.pid, signal.SIGSTOP)
    finally:
        for child in children.values():
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdin.close()
            child.stdout.close()
    print(
        f"{len(files)} files, {threads} threads, batches of {BATCH} x {SIZE} x {SIZE}, "
        f"{flags.FLAGS.rounds} rounds of {images} images"
    )
    failed = False
    for name, own in rates.items():
        rate, low, high = median_interval(own)
        line = f"{name:<9} {rate:9,.0f} images/s  ({low:,.0f} to {high:,.0f})"
        if name != "jaxbench":
            ratio, low, high = median_interval(
                [ours / other for ours, other in zip(rates["jaxbench"], own, strict=True)]
            )
            line += f"   jaxbench / {name} {ratio:.2f} (95 % interval {low:.2f} to {high:.2f})"
        if goal := GOALS.get(name):
            reached = low >= goal
            failed |= not reached
            line += f", at least {goal:g}: {'yes' if reached else 'no'}"
        print(line)
    return int(failed)


def main() -> None:
    from absl import app, flags

    from jaxbench.errors import BadInput

    flags.DEFINE_string("folder", None, "Where JPEG files are.")
    for flag in dict.fromkeys(PEERS.values()):
        flags.DEFINE_string(flag, None, f"A Python that has what {flag.partition('_')[0]} needs.")
    flags.DEFINE_integer("rounds", 7, "Measurements of each.", lower_bound=3)
    flags.DEFINE_integer("images", 1024, "Images a measurement.", lower_bound=1)
    flags.DEFINE_integer("threads", 0, "Threads, or worker processes; 0: one a core.", 0)
    try:
        app.run(lambda _: compare())
    except BadInput as error:
        print(f"jaxbench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
