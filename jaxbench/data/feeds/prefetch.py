"""Grain's pipelines: threads and processes prepare batches, one thread sends them.

Grain is imported late: only the streamed feed needs it.
"""

import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from jaxbench.data.feeds.decode_workers import begin_worker
from jaxbench.distributed.signals import defer_signals
from jaxbench.hardware.environment import available_cores

_QUIET = "ignore:resource_tracker:UserWarning"


def threads_per_process(num_threads: int, num_processes: int) -> int:
    """Return `num_threads`, or for 0 as many as give each core one thread."""
    return num_threads or -(-available_cores() // max(1, num_processes))


def prepare_in_threads(
    prepare: Callable[[int], Any], start: int, stop: int, *, num_threads: int, buffer: int = 1
) -> Any:
    """Return a grain data set of prepare(start) ... prepare(stop - 1), in this order.

    Args:
      prepare: called by several threads at once.
      start, stop: the numbers it is called with.
      num_threads: how many call it.
      buffer: how many results are kept ready, one for each thread at least.
    """
    import grain

    options = grain.ReadOptions(
        num_threads=num_threads, prefetch_buffer_size=max(num_threads, buffer)
    )
    return grain.MapDataset.range(start, stop).map(prepare).to_iter_dataset(options)


def in_processes(batches: Any, num_workers: int) -> Any:
    """Return the same grain data set, prepared by the threads of this many worker processes."""
    import grain

    if not flags.FLAGS.is_parsed():  # grain looks at flags of its own
        flags.FLAGS.mark_as_parsed()
    # Python frees the shared memory that interrupted processes leave, and warns of it in two lines.
    # The process that frees it starts with the workers and inherits these options.
    if _QUIET not in sys.warnoptions:
        sys.warnoptions.append(_QUIET)
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers, 2), begin_worker)


def send_ahead(batches: Any, send: Callable[[Any], Any], num_ahead: int) -> Any:
    """Return an iterator over sent batches, kept ready by a thread that `start` starts.

    Args:
      batches: a grain data set.
      send: puts a batch on the devices.
      num_ahead: how many sent batches are kept ready.
    """
    import grain

    return iter(
        grain.experimental.ThreadPrefetchIterDataset(
            batches.map(send), prefetch_buffer_size=num_ahead
        )
    )


def start(iterator: Any) -> None:
    """Start the thread of `send_ahead`."""
    # A Ctrl-C between the thread's creation and its start would have `iterator.close()` join a
    # thread that never started, which raises RuntimeError.
    with defer_signals():
        iterator.start_prefetch()
