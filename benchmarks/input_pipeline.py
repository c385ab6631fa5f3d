"""Measure images per second of the streamed pipeline and other libraries', interleaved.

    python benchmarks/input_pipeline.py --folder=IMAGES [--work=crops|evaluation|cifar10]
        [--before=FOLDER] [--tensorflow_python=PYTHON] [--pytorch_python=PYTHON]
        [--spdl_python=PYTHON] [--dali_python=PYTHON] [--ffcv_python=PYTHON]
        [--rounds=15] [--images=2048] [--threads=0] [--floor=1.0]
    python benchmarks/input_pipeline.py --folder=IMAGES --work=growth [--rounds=15]
        [--images=2048] [--threads=0]

IMAGES is searched for JPEG files, which are read again and again (from memory, after the first
round). Every contestant is this script in a Python that has the packages in brackets. They work in
turns. Those without a Python are left out, with a line that says so.

--work=crops: read a JPEG file, decode it, cut out a random part (8 to 100 % of the area, 3:4 to
4:3), resize it to 224x224 (bilinear), flip every other one, and put 128 into a uint8 array.

  jaxbench   `StreamFeed`
  before     the same in another checkout of jaxbench
  decode     libjpeg-turbo decoding every file whole in threads, nothing else
  tf.data    decode_and_crop_jpeg and AUTOTUNE (tensorflow-cpu)
  flax       not the same work: as flax's ImageNet example, bicubic and normalised to float32
  pytorch    a DataLoader with a worker process for each core, and PIL (torch, pillow)
  spdl       threads, FFmpeg's decoder and filters (spdl, spdl-io; Debian's ffmpeg)
  dali       its CPU operators (nvidia-dali-cuda120 or -cuda130; no GPU is needed)
  ffcv       not the same work: pixels that were decoded before are read from a file of its own
             (ffcv, torch, opencv-python, numba; it is built with Debian's libopencv-dev,
             libturbojpeg0-dev and pkg-config)

--work=evaluation: decode all of a file, resize the shorter side to 256 and cut out the centre of
224x224. The peer is torchvision's Resize and CenterCrop (torch, torchvision, pillow).

--work=cifar10: batches of 512 of 50,000 uint8 images of 32x32 in memory, shuffled; a measurement
has 1,000 times --images. tf.data shuffles and batches numbers and gathers the images, as jaxbench
does; jaxbench crops and flips on the device.

--work=growth: jaxbench with 1, 2, 4 ... --threads threads or worker processes, and what bounds both
on a machine of many cores: the time of an image in which threads hold Python's lock, and the
training process's time for an image that a worker process decoded.

Exit code 1 if the lower end of a ratio's 95 % interval is below its goal: --floor for tf.data, 1.25
for flax, 1.3 for SPDL and DALI.
"""

import contextlib
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

# {work: its contestants beside jaxbench}, and {contestant: the flag for its Python}.
CONTESTANTS = {
    "crops": ("before", "decode", "tf.data", "flax", "pytorch", "spdl", "dali", "ffcv"),
    "evaluation": ("before", "pytorch"),
    "cifar10": ("before", "tf.data"),
    "growth": (),
}
PYTHONS = {
    "tf.data": "tensorflow_python",
    "flax": "tensorflow_python",
    "pytorch": "pytorch_python",
    "spdl": "spdl_python",
    "dali": "dali_python",
    "ffcv": "ffcv_python",
}
GOALS = {"flax": 1.25, "spdl": 1.3, "dali": 1.3}
SIZE, BATCH = 224, 128
SHAPE = (BATCH, SIZE, SIZE, 3)
CIFAR10_IMAGES, CIFAR10_SHAPE = 50_000, (512, 32, 32, 3)
# How many times more images of CIFAR-10 a measurement has.
CIFAR10_TIMES = 1000


def jpeg_files(folder: str | None) -> list[str]:
    """Return the JPEG files in and below a folder."""
    found = pathlib.Path(folder).rglob("*") if folder else ()
    return sorted(
        str(path) for path in found if path.suffix.lower() in (".jpeg", ".jpg") and path.is_file()
    )


def serve(work: Callable[[int], None]) -> None:
    """Be a contestant: read numbers of images, answer with seconds and processor seconds."""
    work(4 * BATCH)
    print("ready", flush=True)
    for line in sys.stdin:
        start_s, start_process_s = time.perf_counter(), time.process_time()
        work(int(line))
        print(time.perf_counter() - start_s, time.process_time() - start_process_s, flush=True)


def serve_batches(batches: Iterator[Any], shape: tuple[int, ...] = SHAPE) -> None:
    """Serve from an endless iterator of batches."""

    def work(images: int) -> None:
        for _ in range(images // shape[0]):
            assert next(batches).shape == shape

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


def streamed_feed(files: list[str], threads: int, work: str, workers: int = 0) -> Any:
    """Return a streamed feed of crops or of CIFAR-10."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxbench.batch_layout import BatchLayout
    from jaxbench.config import DataConfig
    from jaxbench.data.dataset import Dataset, Split
    from jaxbench.data.feeds.stream import StreamFeed
    from jaxbench.data.images.encoded import EncodedSplit, Files
    from jaxbench.data.sampler import EpochSampler
    from jaxbench.parallel.mesh import DataMesh

    data = DataConfig(source="folder", feed="stream", num_threads=threads, num_workers=workers)
    if work == "cifar10":
        batch, count = CIFAR10_SHAPE[0], CIFAR10_IMAGES
        split = Split(
            np.zeros((count, *CIFAR10_SHAPE[1:]), np.uint8) + 1, np.zeros(count, np.int32)
        )
    else:
        batch, count = BATCH, 400 * BATCH
        paths = [files[place % len(files)] for place in range(count)]
        split = EncodedSplit(Files(paths, np.zeros(count, np.int32)), (SIZE, SIZE, 3), count)
        data.random_resized_crop = data.flip = work != "evaluation"
    layout = BatchLayout(
        global_batch=batch,
        global_eval_batch=batch,
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
    return StreamFeed(data, dataset, mesh, sampler, jnp.float32, num_steps=1)


def run_jaxbench(files: list[str], threads: int, work: str, workers: int = 0) -> None:
    feed = streamed_feed(files, threads, work, workers)
    # Evaluation's batches are sent to the device, too, which is a copy here.
    batches = feed.host_batches(0, 2**40)
    if work == "evaluation":
        batches = (batch for _ in itertools.count() for batch in feed.eval_batches())
    shape = CIFAR10_SHAPE if work == "cifar10" else SHAPE
    serve_batches((batch["images"][0] for batch in batches), shape)


def time_parts(files: list[str], rounds: int, images: int) -> dict[str, list[float]]:
    """Return {part: an image's processor seconds in a thread of the streamed feed, each round}."""
    import cv2
    import simplejpeg

    from jaxbench.data.feeds.decode_workers import ChunkDecoder
    from jaxbench.data.images import encoded

    parts: dict[str, list[float]] = {"decoding and resizing": [], "reading": [], "the rest": []}

    def timed(part: str, function: Callable) -> Callable:
        def call(*args: Any, **options: Any) -> Any:
            start_s = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                parts[part][-1] += (time.thread_time() - start_s) / images

        return call

    feed = streamed_feed(files, 1, "growth")
    decode = ChunkDecoder(feed._data, feed._dataset.train, feed._sampler, 2, training=True)
    decode(0)
    simplejpeg.decode_jpeg = timed("decoding and resizing", simplejpeg.decode_jpeg)
    cv2.resize = timed("decoding and resizing", cv2.resize)
    encoded.read_image_file = timed("reading", encoded.read_image_file)
    for number in range(rounds):
        for seconds in parts.values():
            seconds.append(0.0)
        start_s = time.thread_time()
        for chunk in range(images // decode.chunk_size):
            decode(number * images // decode.chunk_size + chunk)
        all_s = (time.thread_time() - start_s) / images
        parts["the rest"][-1] = all_s - sum(seconds[-1] for seconds in parts.values())
    return parts


def run_decode(files: list[str], threads: int, *_: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import simplejpeg

    pool = ThreadPoolExecutor(threads)

    def decode(number: int) -> None:
        content = pathlib.Path(files[number % len(files)]).read_bytes()
        simplejpeg.decode_jpeg(content, "RGB")

    serve(lambda images: [None for _ in pool.map(decode, range(images), chunksize=8)] and None)


def serve_tfdata(batches: Any, threads: int, shape: tuple[int, ...] = SHAPE) -> None:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    # As far ahead as the others: what it prepares until it is stopped counts for its next turn.
    batches = batches.prefetch(2).with_options(options)
    serve_batches(iter(batches.as_numpy_iterator()), shape)


def run_tfdata(files: list[str], threads: int, work: str, *, as_flax: bool = False) -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    if work == "cifar10":
        images = tf.ones((CIFAR10_IMAGES, *CIFAR10_SHAPE[1:]), tf.uint8)
        numbers = tf.data.Dataset.range(CIFAR10_IMAGES).repeat().shuffle(CIFAR10_IMAGES)
        batches = numbers.batch(CIFAR10_SHAPE[0]).map(
            lambda numbers_B: tf.gather(images, numbers_B), num_parallel_calls=tf.data.AUTOTUNE
        )
        return serve_tfdata(batches, threads, CIFAR10_SHAPE)

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
    serve_tfdata(dataset.batch(BATCH, drop_remainder=True), threads)


def run_pytorch(files: list[str], threads: int, work: str) -> None:
    import numpy as np
    import torch
    from PIL import Image

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 400 * BATCH

        def __getitem__(self, number):
            image = Image.open(files[number % len(files)]).convert("RGB")
            if work == "evaluation":
                return torch.from_numpy(np.array(centre(image)))
            left, top, columns, rows = random_crop(*image.size)
            box = (left, top, left + columns, top + rows)
            image = image.resize((SIZE, SIZE), Image.BILINEAR, box=box)
            if random.random() < 0.5:
                image = image.transpose(Image.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image))

    if work == "evaluation":
        from torchvision import transforms

        centre = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(SIZE)])

    def epochs():
        loader = torch.utils.data.DataLoader(
            Images(), batch_size=BATCH, num_workers=threads, shuffle=True, drop_last=True
        )
        while True:
            yield from loader

    serve_batches(epochs())


def run_spdl(files: list[str], threads: int, *_: str) -> None:
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


def run_dali(files: list[str], threads: int, *_: str) -> None:
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


def run_ffcv(files: list[str], threads: int, *_: str) -> None:
    import tempfile

    import numpy as np
    from ffcv.fields import RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Images:
        def __len__(self):
            return len(files)

        def __getitem__(self, number):
            return (np.array(Image.open(files[number]).convert("RGB")),)

    path = os.path.join(tempfile.mkdtemp(), "images.beton")
    writer = DatasetWriter(path, {"image": RGBImageField(write_mode="raw")}, num_workers=1)
    writer.from_indexed_dataset(Images())
    steps = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    loader = Loader(
        path,
        batch_size=BATCH,
        num_workers=threads,
        order=OrderOption.RANDOM,
        indices=list(range(len(files))) * 400,
        pipelines={"image": steps},
    )
    serve_batches(batch[0] for _ in itertools.count() for batch in loader)


RUN = {
    "jaxbench": run_jaxbench,
    "before": run_jaxbench,
    "decode": run_decode,
    "tf.data": run_tfdata,
    "flax": lambda *task: run_tfdata(*task, as_flax=True),
    "pytorch": run_pytorch,
    "spdl": run_spdl,
    "dali": run_dali,
    "ffcv": run_ffcv,
}


def race(
    tasks: dict[str, dict[str, Any]], rounds: int, images: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Measure in turns; return {name: images per second of each round}, and {name: seconds}.

    The seconds are an image's processor time in the contestant, without its worker processes. A
    task has `python`, `arguments` (of its function in `RUN`) and `variables`.
    """
    from jaxbench.errors import BadInput, RunFailed

    children: dict[str, Any] = {}
    folder = tempfile.mkdtemp()  # for their files
    variables = {
        "TMPDIR": folder,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    try:
        for name, task in tasks.items():
            try:
                children[name] = subprocess.Popen(
                    [task["python"], str(pathlib.Path(__file__).resolve()), json.dumps(task)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # its worker processes are stopped with it
                    env=os.environ | variables | task["variables"],
                )
            except OSError as error:
                raise BadInput(f"{name}: {task['python']}: {error.strerror}") from error
            if children[name].stdout.readline().strip() != "ready":
                raise BadInput(f"{name}: it did not start in {task['python']} (see above)")
            os.killpg(children[name].pid, signal.SIGSTOP)
        rates: dict[str, list[float]] = {name: [] for name in children}
        process_s = dict.fromkeys(children, 0.0)
        for number in range(rounds):
            # Forwards, then backwards: what drifts hits all alike.
            order = list(children) if number % 2 == 0 else list(reversed(children))
            for name in order:
                child = children[name]
                child.stdin.write(f"{images}\n")
                child.stdin.flush()
                # Stopped between its turns: else it would work ahead in the others' time.
                os.killpg(child.pid, signal.SIGCONT)
                answer = child.stdout.readline()
                if not answer:
                    raise RunFailed(f"{name}: it ended in round {number + 1} (see above)")
                seconds, process_seconds = map(float, answer.split())
                rates[name].append(images / seconds)
                process_s[name] += process_seconds / images / rounds
                os.killpg(child.pid, signal.SIGSTOP)
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    finally:
        for child in children.values():
            # At its end, not killed: shared memory of its worker processes would stay.
            os.killpg(child.pid, signal.SIGCONT)
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            child.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)
    return rates, process_s


def compare(options: Any, files: list[str], threads: int) -> int:
    """Measure all contestants of a work; return 1 if a goal is missed."""
    from jaxbench.analysis.statistics import median_interval

    tasks = {}
    for name in ("jaxbench", *CONTESTANTS[options.work]):
        flag = PYTHONS.get(name)
        python = options[flag].value if flag else sys.executable
        if not python or (name == "before" and not options.before):
            print(f"{name} is left out: give --{flag or name}")
            continue
        tasks[name] = {
            "name": name,
            "python": python,
            "arguments": [files, threads, options.work],
            "variables": {"PYTHONPATH": options.before} if name == "before" else {},
        }
    batch, *shape = CIFAR10_SHAPE if options.work == "cifar10" else SHAPE
    images = options.images * (CIFAR10_TIMES if options.work == "cifar10" else 1)
    images = images // batch * batch
    rates, _ = race(tasks, options.rounds, images)
    source = f"{len(files)} files, " if files else ""
    print(
        f"{options.work}: {source}{threads} threads, batches of {batch} x {shape[0]} x {shape[1]}, "
        f"{options.rounds} rounds of {images} images"
    )
    goals = GOALS | {"tf.data": options.floor} if options.work == "crops" else {}
    failed = False
    for name, own in rates.items():
        rate, low, high = median_interval(own)
        line = f"{name:<9} {rate:9,.0f} images/s  ({low:,.0f} to {high:,.0f})"
        if name != "jaxbench":
            ratio, low, high = median_interval(
                [ours / other for ours, other in zip(rates["jaxbench"], own, strict=True)]
            )
            line += f"   jaxbench / {name} {ratio:.2f} (95 % interval {low:.2f} to {high:.2f})"
        if name in goals:
            reached = low >= goals[name]
            failed |= not reached
            line += f", at least {goals[name]:g}: {'yes' if reached else 'no'}"
        print(line)
    return int(failed)


def measure_growth(options: Any, files: list[str], cores: int) -> int:
    """Measure one to many threads and worker processes, and what bounds both."""
    from jaxbench.analysis.statistics import median_interval

    tasks = {}
    for count in sorted({min(2**power, cores) for power in range(cores.bit_length() + 1)}):
        for kind, threads, workers in (("threads", count, 0), ("processes", 1, count)):
            tasks[f"{count} {kind}"] = {
                "name": "jaxbench",
                "python": sys.executable,
                "arguments": [files, threads, "growth", workers],
                "variables": {},
            }
    images = options.images // BATCH * BATCH
    rates, process_s = race(tasks, options.rounds, images)
    for name, own in rates.items():
        one = rates[f"1 {name.split()[1]}"]
        rate, low, high = median_interval(own)
        line = f"{name:<12} {rate:9,.0f} images/s  ({low:,.0f} to {high:,.0f})"
        if own is not one:
            times = median_interval([many / single for many, single in zip(own, one, strict=True)])
            line += ", {:.2f} times one (95 % interval {:.2f} to {:.2f})".format(*times)
        print(line)
    parts = time_parts(files, options.rounds, images)
    for part, seconds in parts.items():
        middle, low, high = (1e6 * value for value in median_interval(seconds))
        print(f"{part}: {middle:,.0f} us of a core for an image ({low:,.0f} to {high:,.0f})")
    most, low, high = median_interval([1 / seconds for seconds in parts["the rest"]])
    print(
        "if threads hold Python's lock in the rest, one process decodes at most "
        f"{most:,.0f} images/s ({low:,.0f} to {high:,.0f})"
    )
    seconds = process_s[f"{cores} processes"]
    print(
        f"the training process works {1e6 * seconds:.0f} us for an image from a worker process: if "
        f"one after the other, at most {1 / seconds:,.0f} images/s"
    )
    return 0


def check_flags(options: Any) -> None:
    """Raise BadInput for a flag that would do nothing."""
    from jaxbench.errors import BadInput

    used = {PYTHONS.get(name, name) for name in CONTESTANTS[options.work]}
    used |= {"floor"} if options.work == "crops" else set()
    used |= {"folder"} if options.work != "cifar10" else set()
    for flag in ("folder", "before", "floor", *PYTHONS.values()):
        if options[flag].present and flag not in used:
            raise BadInput(f"--{flag}: --work={options.work} does not use it")
    if "folder" in used and not options.folder:
        raise BadInput("give --folder=IMAGES, where JPEG files are")
    if options["floor"].present and not options.tensorflow_python:
        raise BadInput("--floor: is for tf.data; give --tensorflow_python")
    if options.before and not os.path.isfile(os.path.join(options.before, "jaxbench", "main.py")):
        raise BadInput(f"--before={options.before}: no checkout of jaxbench")


def main() -> None:
    from absl import flags

    from jaxbench.analysis.statistics import FEWEST_FOR_INTERVAL
    from jaxbench.cli import entry_point
    from jaxbench.errors import BadInput
    from jaxbench.hardware.system import available_cores

    def start(_: list[str]) -> int:
        options = flags.FLAGS
        check_flags(options)
        files = jpeg_files(options.folder)
        if not files and options.work != "cifar10":
            raise BadInput(f"--folder={options.folder}: no JPEG files in it")
        threads = options.threads or available_cores()
        return (measure_growth if options.work == "growth" else compare)(options, files, threads)

    flags.DEFINE_string("folder", None, "Where JPEG files are.")
    flags.DEFINE_enum("work", "crops", list(CONTESTANTS), "What is measured.")
    for flag in dict.fromkeys(PYTHONS.values()):
        flags.DEFINE_string(flag, None, f"A Python that has what {flag.partition('_')[0]} needs.")
    flags.DEFINE_string("before", None, "Another checkout of jaxbench, to compare with.")
    flags.DEFINE_integer("rounds", 15, "Rounds.", lower_bound=FEWEST_FOR_INTERVAL)
    # A contestant has up to three batches ready when its turn begins.
    flags.DEFINE_integer("images", 2048, "Images of each in a round.", lower_bound=8 * BATCH)
    flags.DEFINE_integer("threads", 0, "Threads, or worker processes; 0: one a core.", 0)
    flags.DEFINE_float("floor", 1.0, "Goal of jaxbench / tf.data, for the interval's lower end.")
    entry_point.run_with_arguments(start)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        task = json.loads(sys.argv[1])
        RUN[task["name"]](*task["arguments"])
    else:
        main()
