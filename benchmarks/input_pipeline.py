"""Images per second of the streamed pipeline against tf.data and PyTorch, in one interleaved run.

    python benchmarks/input_pipeline.py --folder=IMAGES [--tensorflow_python=PYTHON]
        [--pytorch_python=PYTHON] [--rounds=7] [--threads=0]

IMAGES is searched for JPEG files, which are read again and again (from memory, after the first
round). Every contestant is a process of its own that is told "so many images", one after the other:

  jaxbench   `StreamFeed`: files, random-resized crop to 224, flip, batches of 128 uint8
  decode     libjpeg-turbo decoding every file whole in threads, nothing else: what it all costs
             that does not decode less
  tf.data    the pipeline of flax's ImageNet example: read, decode_and_crop_jpeg, bicubic resize,
             flip, normalise, batches of 128, AUTOTUNE (in an environment that has tensorflow)
  pytorch    a DataLoader with a worker process for each core: PIL, random-resized crop, bilinear
             resize, flip, normalise, as torchvision does it (in one that has torch and pillow)

Without a Python for them the last two are left out, with a line that says so. Exit code 1 if
jaxbench is below --min_ratio times tf.data by more than the 95 % interval.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

SIZE, BATCH = 224, 128


def serve(work: Callable[[int], None]) -> None:
    """A contestant's side: reads numbers of images, answers with seconds."""
    work(4 * BATCH)
    print("ready", flush=True)
    for line in sys.stdin:
        start_s = time.perf_counter()
        work(int(line))
        print(time.perf_counter() - start_s, flush=True)


def run_jaxbench(files: list[str], threads: int) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxbench.config import DataConfig
    from jaxbench.data.dataset import Dataset
    from jaxbench.data.feeds.stream import StreamFeed
    from jaxbench.data.images.encoded import EncodedSplit, Files
    from jaxbench.data.sampler import EpochSampler
    from jaxbench.distributed.mesh import DataMesh
    from jaxbench.geometry import BatchGeometry

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
        max_corrupt=count,
    )
    geometry = BatchGeometry(
        global_batch=BATCH,
        global_eval_batch=BATCH,
        num_devices=1,
        process_index=0,
        num_processes=1,
        num_models=1,
        gradient_accumulation_steps=1,
    )
    sampler = EpochSampler(geometry, num_train=count, num_eval=count, seeds_R=(0,))
    dataset = Dataset(
        description="files", train=split, eval=split, num_classes=2, statistics="ImageNet's"
    )
    mesh = DataMesh((jax.devices()[0],), "pmap")
    feed = StreamFeed(data, dataset, mesh, sampler, jnp.float32, num_steps=1)
    batches = feed.host_batches(0, 2**40)

    def work(images: int) -> None:
        for _ in range(images // BATCH):
            assert next(batches)["images"].shape == (1, BATCH, SIZE, SIZE, 3)

    serve(work)


def run_decode(files: list[str], threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import simplejpeg

    pool = ThreadPoolExecutor(threads)

    def decode(number: int) -> None:
        content = pathlib.Path(files[number % len(files)]).read_bytes()
        simplejpeg.decode_jpeg(content, "RGB")

    serve(lambda images: [None for _ in pool.map(decode, range(images), chunksize=8)] and None)


def run_tfdata(files: list[str], threads: int) -> None:
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
        image = tf.image.resize([image], [SIZE, SIZE], method="bicubic")[0]
        image = tf.image.random_flip_left_right(tf.reshape(image, [SIZE, SIZE, 3]))
        mean = tf.constant([123.675, 116.28, 103.53], shape=[1, 1, 3])
        return (image - mean) / tf.constant([58.395, 57.12, 57.375], shape=[1, 1, 3])

    dataset = tf.data.Dataset.from_tensor_slices(files).repeat().shuffle(len(files))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    batches = iter(dataset.with_options(options).as_numpy_iterator())

    def work(images: int) -> None:
        for _ in range(images // BATCH):
            assert next(batches).shape == (BATCH, SIZE, SIZE, 3)

    serve(work)


def run_pytorch(files: list[str], threads: int) -> None:
    import math
    import random

    import numpy as np
    import torch
    from PIL import Image

    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 400 * BATCH

        def __getitem__(self, number):
            image = Image.open(files[number % len(files)]).convert("RGB")
            width, height = image.size
            left, top, columns, rows = 0, 0, width, height
            for _ in range(10):
                area = random.uniform(0.08, 1.0) * width * height
                ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
                columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if 0 < columns <= width and 0 < rows <= height:
                    left = random.randint(0, width - columns)
                    top = random.randint(0, height - rows)
                    break
            else:
                columns, rows = width, height
            box = (left, top, left + columns, top + rows)
            image = image.resize((SIZE, SIZE), Image.BILINEAR, box=box)
            if random.random() < 0.5:
                image = image.transpose(Image.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
            return (pixels - mean) / std

    def epochs():
        loader = torch.utils.data.DataLoader(
            Images(), batch_size=BATCH, num_workers=threads, shuffle=True, drop_last=True
        )
        while True:
            yield from loader

    batches = epochs()

    def work(images: int) -> None:
        for _ in range(images // BATCH):
            assert next(batches).shape == (BATCH, 3, SIZE, SIZE)

    serve(work)


CONTESTANTS = {
    "jaxbench": run_jaxbench,
    "decode": run_decode,
    "tf.data": run_tfdata,
    "pytorch": run_pytorch,
}


def compare() -> int:
    from absl import flags

    from jaxbench.analysis.statistics import median_interval
    from jaxbench.errors import BadInput
    from jaxbench.hardware.system import available_cores

    folder = pathlib.Path(flags.FLAGS.folder or "")
    files = sorted(
        str(path)
        for path in folder.rglob("*")
        if path.suffix.lower() in (".jpeg", ".jpg") and path.is_file()
    )
    if not flags.FLAGS.folder or not files:
        raise BadInput(f"--folder={flags.FLAGS.folder}: no JPEG files in it")
    threads = flags.FLAGS.threads or available_cores()
    pythons = {"jaxbench": sys.executable, "decode": sys.executable}
    for name, python in (
        ("tf.data", flags.FLAGS.tensorflow_python),
        ("pytorch", flags.FLAGS.pytorch_python),
    ):
        if python:
            pythons[name] = python
        else:
            print(f"{name} is left out: no Python that has it was given")
    images = max(BATCH, flags.FLAGS.images // BATCH * BATCH)
    children = {}
    try:
        for name, python in pythons.items():
            task = json.dumps({"contestant": name, "files": files, "threads": threads})
            children[name] = subprocess.Popen(
                [python, str(pathlib.Path(__file__).resolve()), "--serve", task],
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
            failed |= name == "tf.data" and high < flags.FLAGS.min_ratio
        print(line)
    return int(failed)


def main() -> None:
    from absl import app, flags

    from jaxbench.errors import BadInput

    flags.DEFINE_string("folder", None, "Where JPEG files are.")
    flags.DEFINE_string("tensorflow_python", None, "A Python that has tensorflow.")
    flags.DEFINE_string("pytorch_python", None, "A Python that has torch and pillow.")
    flags.DEFINE_integer("rounds", 7, "Measurements of each.", lower_bound=3)
    flags.DEFINE_integer("images", 1024, "Images a measurement.", lower_bound=1)
    flags.DEFINE_integer("threads", 0, "Threads, or worker processes; 0: one a core.", 0)
    flags.DEFINE_float("min_ratio", 2.0, "jaxbench must be so many times as fast as tf.data.")
    try:
        app.run(lambda _: compare())
    except BadInput as error:
        print(f"jaxbench: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        task = json.loads(sys.argv[2])
        CONTESTANTS[task["contestant"]](task["files"], task["threads"])
    else:
        main()
