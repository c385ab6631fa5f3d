"""What the streamed pipeline could feed from hosts with more cores: predicted from CPU times here.

    python benchmarks/input_limits.py --folder=IMAGES [--cores=16,64,224]

Measured here, per image on one core: the whole pipeline; the same with decoding, resizing and
flipping left out, which is what Python does and what threads of one process cannot do at once; and
the copy of a worker process's pixels into the batch, which one process does. From these three:

  threads         cores / whole, at most 1 / Python
  processes       cores / whole, at most 1 / copy
  free-threaded   cores / whole (needs a Python and libraries that have no such lock)

The cores are taken to be like this one when all are busy, with enough memory bandwidth; an image's
pixels pass the memory some times. Storage is left out: the files are in memory.
"""

import time

import numpy as np
from absl import flags
from input_contestants import BATCH, SHAPE, jaxbench_batches, jpeg_files

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput

_FOLDER = flags.DEFINE_string("folder", None, "Where JPEG files are.")
_CORES = flags.DEFINE_list("cores", ["16", "64", "224"], "Cores of the hosts.")
_BATCHES, _ROUNDS = 8, 3


def main(arguments: list[str]) -> int:
    if arguments:
        raise BadInput(f"{arguments[0]!r}: flags begin with --")
    files = jpeg_files(_FOLDER.value)
    if not files:
        raise BadInput(f"--folder={_FOLDER.value}: no JPEG files in it")
    if not all(cores.isdecimal() and int(cores) for cores in _CORES.value):
        raise BadInput(f"--cores={','.join(_CORES.value)}: must be whole numbers, 1 or more")
    batches = jaxbench_batches(files, 1)
    whole_s = _cpu_s_per_image(lambda: next(batches))
    _leave_out_pixels()
    python_s = _cpu_s_per_image(lambda: next(batches))
    pixels, batch = np.ones((2, *SHAPE), np.uint8)
    copy_s = _cpu_s_per_image(lambda: np.copyto(batch, pixels))
    for name, cpu_s in (("whole", whole_s), ("Python", python_s), ("copy", copy_s)):
        print(f"{name:<7} {cpu_s * 1e6:8,.0f} us of a core per image (measured)")
    kinds = ("threads, images/s", "worker processes", "free-threaded")
    print(f"\n| cores | {' | '.join(f'{kind} (predicted)' for kind in kinds)} |")
    print("|---|---|---|---|")
    for cores in map(int, _CORES.value):
        rates = predict(cores, whole_s, python_s, copy_s)
        print(f"| {cores} | {' | '.join(f'{rate:,.0f}' for rate in rates)} |")
    return 0


def predict(cores: int, whole_s: float, python_s: float, copy_s: float) -> list[float]:
    """Return the images/s of threads, of worker processes, and of free-threaded Python."""
    rate = cores / whole_s
    return [min(rate, 1 / python_s), min(rate, 1 / copy_s), rate]


def _cpu_s_per_image(work) -> float:
    """Return the process's CPU time for an image of a batch that `work` makes: the least of some.

    The feed prepares batches ahead; as many as it makes meanwhile were made before.
    """
    found = []
    for _ in range(_ROUNDS):
        began_s = time.process_time()
        for _ in range(_BATCHES):
            work()
        found.append((time.process_time() - began_s) / (_BATCHES * BATCH))
    return min(found)


def _leave_out_pixels() -> None:
    import cv2
    import simplejpeg

    simplejpeg.decode_jpeg = lambda *_, buffer, **__: buffer
    cv2.resize = cv2.flip = lambda *_, dst=None, **__: dst


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
