"""Measure images per second of the streamed pipeline and other libraries', interleaved.

    python benchmarks/input_pipeline.py --folder=IMAGES [--tensorflow_python=PYTHON]
        [--pytorch_python=PYTHON] [--spdl_python=PYTHON] [--dali_python=PYTHON]
        [--rounds=7] [--threads=0]

IMAGES is searched for JPEG files, which are read again and again (from memory, after the first
round). Every contestant is this script in a Python that has its library, told "so many images", one
after the other. All do the same work: read a JPEG file, decode it, cut out a random part (8 to
100 % of the area, 3:4 to 4:3), resize it to 224x224 (bilinear), flip every other one, and put 128
into a uint8 array:

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

import itertools
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# {contestant: the flag for its Python}.
PEERS = {
    "tf.data": "tensorflow_python",
    "flax": "tensorflow_python",
    "pytorch": "pytorch_python",
    "spdl": "spdl_python",
    "dali": "dali_python",
}
GOALS = {"tf.data": 2.0, "flax": 2.0, "spdl": 1.3, "dali": 1.3}
SIZE, BATCH = 224, 128
SHAPE = (BATCH, SIZE, SIZE, 3)


def jpeg_files(folder: str | None) -> list[str]:
    """Return the JPEG files in and below a folder."""
    found = pathlib.Path(folder).rglob("*") if folder else ()
    return sorted(
        str(path) for path in found if path.suffix.lower() in (".jpeg", ".jpg") and path.is_file()
    )


def serve(work: Callable[[int], None]) -> None:
    """Be a contestant: read numbers of images, answer with seconds."""
    work(4 * BATCH)
    print("ready", flush=True)
    for line in sys.stdin:
        start_s = time.perf_counter()
        work(int(line))
        print(time.perf_counter() - start_s, flush=True)


def serve_batches(batches: Iterator[Any]) -> None:
    """Serve from an endless iterator of batches."""

    def work(images: int) -> None:
        for _ in range(images // BATCH):
            assert next(batches).shape == SHAPE

    serve(work)


def random_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a part, as torchvision draws it."""
    for _ in range(10):
        area = random.uniform(0.08, 1.0) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            left, top = random.randint(0, width - columns), random.randint(0, height - rows)
            return left, top, columns, rows
    return 0, 0, width, height


def jaxbench_batches(files: list[str], threads: int) -> Iterator[Any]:
    """Return an endless iterator of the streamed feed's batches."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxbench.batch_layout import BatchLayout
    from jaxbench.config import DataConfig
    from jaxbench.data.dataset import Dataset
    from jaxbench.data.feeds.stream import StreamFeed
    from jaxbench.data.images.encoded import EncodedSplit, Files
    from jaxbench.data.sampler import EpochSampler
    from jaxbench.parallel.mesh import DataMesh

    # As many "examples" as an epoch of a real set has batches: no new epoch in the middle.
    count = 400 * BATCH
    paths = [files[place % len(files)] for place in range(count)]
    source = Files(paths, np.zeros(count, np.int32))
    split = EncodedSplit(source, (SIZE, SIZE, 3), count)
    data = DataConfig(
        source="folder",
        feed="stream",
        random_resized_crop=True,
        flip=True,
        num_threads=threads,
    )
    layout = BatchLayout(
        global_batch=BATCH,
        global_eval_batch=BATCH,
        num_devices=1,
        process_index=0,
        num_processes=1,
        num_models=1,
        gradient_accumulation_steps=1,
    )
    sampler = EpochSampler(layout, num_train=count, num_eval=count, seeds_R=(0,))
    dataset = Dataset(
        description="files", train=split, eval=split, num_classes=2, statistics="ImageNet's"
    )
    mesh = DataMesh((jax.devices()[0],), "pmap")
    feed = StreamFeed(data, dataset, mesh, sampler, jnp.float32, num_steps=1)
    return (batch["images"][0] for batch in feed.host_batches(0, 2**40))


def run_decode(files: list[str], threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import simplejpeg

    pool = ThreadPoolExecutor(threads)

    def decode(number: int) -> None:
        content = pathlib.Path(files[number % len(files)]).read_bytes()
        simplejpeg.decode_jpeg(content, "RGB")

    serve(lambda images: [None for _ in pool.map(decode, range(images), chunksize=8)] and None)


def run_tfdata(files: list[str], threads: int, *, as_flax: bool = False) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)

    def load(path):
        content = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(content)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        top, left, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        window = tf.stack([top, left, height, width])
        image = tf.io.decode_and_crop_jpeg(content, window, channels=3)
        how = "bicubic" if as_flax else "bilinear"
        image = tf.image.resize([image], [SIZE, SIZE], method=how)[0]
        image = image if as_flax else tf.cast(tf.round(image), tf.uint8)
        image = tf.image.random_flip_left_right(tf.reshape(image, [SIZE, SIZE, 3]))
        return (image - mean) / deviation if as_flax else image

    mean = tf.constant([123.675, 116.28, 103.53], shape=[1, 1, 3])
    deviation = tf.constant([58.395, 57.12, 57.375], shape=[1, 1, 3])

    dataset = tf.data.Dataset.from_tensor_slices(files).repeat().shuffle(len(files))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    # As far ahead as the others: what it prepares until it is stopped counts for its next turn.
    dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    serve_batches(iter(dataset.with_options(options).as_numpy_iterator()))


def run_pytorch(files: list[str], threads: int) -> None:
    import numpy as np
    import torch
    from PIL import Image

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 400 * BATCH

        def __getitem__(self, number):
            image = Image.open(files[number % len(files)]).convert("RGB")
            left, top, columns, rows = random_crop(*image.size)
            box = (left, top, left + columns, top + rows)
            image = image.resize((SIZE, SIZE), Image.BILINEAR, box=box)
            if random.random() < 0.5:
                image = image.transpose(Image.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image))

    def epochs():
        loader = torch.utils.data.DataLoader(
            Images(), batch_size=BATCH, num_workers=threads, shuffle=True, drop_last=True
        )
        while True:
            yield from loader

    serve_batches(epochs())


def run_spdl(files: list[str], threads: int) -> None:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def paths():
        while True:
            yield from random.sample(files, len(files))

    def load(path):
        packets = spdl.io.demux_image(path)
        left, top, columns, rows = random_crop(packets.codec.width, packets.codec.height)
        crop = f"crop={columns}:{rows}:{left}:{top}:exact=1"
        flip = ",hflip" if random.random() < 0.5 else ""
        scale = f"scale={SIZE}:{SIZE}:flags=bilinear{flip},format=pix_fmts=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=f"{crop},{scale}")

    def stack(frames):
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    builder = PipelineBuilder().add_source(paths()).pipe(load, concurrency=threads)
    pipeline = builder.aggregate(BATCH).pipe(stack).add_sink(2).build(num_threads=threads)
    with pipeline.auto_stop():
        serve_batches(iter(pipeline))


def run_dali(files: list[str], threads: int) -> None:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None)
    def batches():
        content, _ = fn.readers.file(files=files, random_shuffle=True)
        images = fn.decoders.image_random_crop(
            content,
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
        images = fn.resize(
            images, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=False
        )
        return fn.flip(images, horizontal=fn.random.coin_flip())

    pipeline = batches()
    pipeline.build()
    serve_batches(pipeline.run()[0].as_array() for _ in itertools.count())


CONTESTANTS = {
    "jaxbench": lambda *task: serve_batches(jaxbench_batches(*task)),
    "decode": run_decode,
    "tf.data": run_tfdata,
    "flax": lambda *task: run_tfdata(*task, as_flax=True),
    "pytorch": run_pytorch,
    "spdl": run_spdl,
    "dali": run_dali,
}


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
                [python, str(pathlib.Path(__file__).resolve()), task],
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
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        task = json.loads(sys.argv[1])
        CONTESTANTS[task["contestant"]](task["files"], task["threads"])
    else:
        main()
