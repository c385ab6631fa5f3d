"""Work over all examples of a split, in threads and with progress."""

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any

from jaxbench.clock import Stopwatch
from jaxbench.hardware.environment import available_cores

# Examples between two reports of progress.
_CHUNK = 512


def in_chunks(
    work: Callable[[int], Any], count: int, what: str, progress: Callable[[str], None]
) -> Iterator[list[Any]]:
    """Yield the results of work(0) ... work(count - 1) in order, from a thread for each core.

    Args:
      work: called by several threads at once.
      count: how often.
      what: the subject of the lines of progress.
      progress: called with such a line after each chunk.
    """
    watch = Stopwatch()
    with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, count, _CHUNK):
            done = min(start + _CHUNK, count)
            yield list(pool.map(work, range(start, done)))
            rate = done / watch.elapsed_s()
            if done < count:
                left_s = (count - done) / rate
                progress(f"{what}: {done:,} of {count:,} ({rate:,.0f}/s, {left_s:,.0f} s left)")
