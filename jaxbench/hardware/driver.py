"""Ask drivers and their libraries, whose calls may never return."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from jaxbench.clock import Stopwatch, wait_until

Answer = TypeVar("Answer")
# A driver without persistence mode takes seconds to wake the boards of a large host.
_PATIENCE_S = 15.0
# The last answer of each source, for which a call may still wait.
_answers: dict[str, Future] = {}


def ask(source: str, call: Callable[[], Answer]) -> Answer:
    """Return what a call returns, or raise what it raises.

    The call has a thread of its own: no signal is handled in a thread that hangs in C.

    Raises:
      TimeoutError: the source does not answer, or an earlier call of it still hangs.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    if source not in _answers or _answers[source].done():
        watch, _answers[source] = Stopwatch(), answer
        threading.Thread(target=run, name=f"ask-{source}", daemon=True).start()
        wait_until(lambda: answer.done() or watch.elapsed_s() > _PATIENCE_S)
    if not answer.done():
        raise TimeoutError(f"{source} does not answer; its driver may hang")
    return answer.result()
