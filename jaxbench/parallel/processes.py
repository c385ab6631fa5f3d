"""The processes of a run: they connect, agree on values, wait for one another, and end together.

Everything here works before there are devices, and signals end every wait.
`jax.experimental.multihost_utils` does neither: its barrier, broadcast and comparison are
collectives on the devices, which block in C++. Only arrays are sent that way
(`mesh.broadcast_arrays`). JAX's own answer to a lost process is to abort the others.

JAX is imported only to connect: a program that runs nothing starts without it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from jaxbench.clock import Clock, Stopwatch, pause, wait_until
from jaxbench.errors import OUT_OF_MEMORY, BadInput, OtherProcessEnded, Unreachable
from jaxbench.parallel.child import STARTERS
from jaxbench.parallel.rendezvous import meet
from jaxbench.parallel.signals import (
    defer_signals,
    raise_in_main_thread,
    set_signal_callback,
    stop_main_thread,
)
from jaxbench.terminal import warn

# How often a process tells the others that it is alive, and looks at them.
_HEARTBEAT_S = 0.5
# How long the main thread may take to end after another process has, before the watch ends this
# process: in process 0, which closes the records, and in the others.
_GRACE_S, _GRACE_OF_OTHERS_S = 15.0, 2.0
# JAX's own timeouts are so much longer than ours: they count only if ours fail.
_JAX_MARGIN_S = 45
_SHUTDOWN_TIMEOUT_S = 15
Value = TypeVar("Value")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# ------------------------------------------------------------------------ which processes there are


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """How process `index` of `count` joins the others of a run."""

    address: str  # HOST:PORT of process 0
    count: int
    index: int
    initialization_timeout_s: int  # how long the processes wait for one another
    heartbeat_timeout_s: int  # a process that is silent for so long is lost
    is_detected: bool = False  # whether JAX found the address, which may not be one of process 0


def detect_cluster(
    initialization_timeout_s: int, heartbeat_timeout_s: int
) -> CoordinatorConfig | None:
    """Return how to join the processes of the cluster that JAX detects; None for a single process.

    Raise BadInput if JAX detects no cluster.
    """
    with defer_signals():
        from jax._src.clusters import ClusterEnv

    # JAX's public way to ask connects at once, and would wait for processes that do not exist.
    try:
        environments = [env for env in ClusterEnv._cluster_types if not env.opt_in_only_method]
        cluster = next((env for env in environments if env.is_env_present()), None)
        num_processes = int(cluster.get_process_count()) if cluster else 1
        if cluster is None or num_processes == 1:
            process_id, address = 0, ""
        else:
            process_id = int(cluster.get_process_id())
            address = cluster.get_coordinator_address(
                timeout_secs=initialization_timeout_s,
                override_coordinator_port=os.environ.get("JAX_COORDINATOR_PORT"),
            )
    except Exception as error:
        raise BadInput(f"--distributed=auto: {type(error).__name__}: {_one_line(error)}") from error
    if cluster is None:
        _, flags, _ = _started_by() or ("", "--num_processes=N --process_id=K", "")
        raise BadInput(
            "--distributed=auto: JAX finds no Cloud TPU slice, Slurm step or Open MPI job here; "
            f"give --coordinator_address=HOST:PORT {flags}; leave out --distributed on a single "
            "machine"
        )
    if num_processes == 1:
        return None
    timeouts_s = (initialization_timeout_s, heartbeat_timeout_s)
    return CoordinatorConfig(address, num_processes, process_id, *timeouts_s, is_detected=True)


def _started_by() -> tuple[str, str, str] | None:
    """Return what started this process as one of several; the flags and the variable for which."""
    for starter, (count, index) in STARTERS.items():
        number = os.environ.get(count, "")
        if index in os.environ and number.isdecimal() and int(number) > 1:
            return (
                f"{number} processes of {starter}",
                f"--num_processes=${count} --process_id=${index}",
                index,
            )
    return None


def check_started_once(
    todo: str = "give each --distributed=auto, or --coordinator_address=HOST:PORT {flags}, to make "
    "them one run; --distributed=off makes each a run",
) -> None:
    """Raise BadInput if this is one of several processes, which would all do the same.

    `todo` is the advice at the message's end, in which {flags} tell which process this is, and so
    does the variable {index}.
    """
    if started := _started_by():
        processes, flags, index = started
        raise BadInput(f"this is one of {processes}: {todo.format(flags=flags, index=index)}")


def check_single_host(
    todo: str = "start the same command with --distributed=auto on all of them",
) -> None:
    """Raise BadInput on one of several hosts of a TPU slice, on which a single process would hang.

    `todo` is the advice at the message's end.
    """
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    # Whoever has set these has separated the host's own chips from the slice.
    separated = "TPU_PROCESS_BOUNDS" in os.environ or "TPU_VISIBLE_CHIPS" in os.environ
    if len(hosts) > 1 and not separated and os.environ.get("JAX_PLATFORMS") != "cpu":
        raise BadInput(
            f"this is one of {len(hosts)} hosts of a TPU slice (TPU_WORKER_HOSTNAMES), whose chips "
            f"wait for one another: {todo}"
        )


def index() -> int:
    """Return the index of this process; process 0 is the primary one."""
    return _group.index if _group else 0


def count() -> int:
    """Return the number of processes."""
    return _group.count if _group else 1


def is_primary() -> bool:
    """Return whether this is process 0: only it writes records and prints progress."""
    return index() == 0


# ---------------------------------------------------------------------------- agreeing, and waiting


def broadcast_value(value: Value) -> Value:
    """Return process 0's JSON value in every process; all must call it, in the same order.

    For what depends on a clock or a cache and decides what the devices do next: processes that
    decided differently would wait for one another for ever.
    """
    if _group is None:
        return value
    _group.num_broadcasts += 1
    folder = f"broadcast/{_group.num_broadcasts}"
    if is_primary():
        _group.put(folder, json.dumps(value))
        return value
    return json.loads(_group.wait_for(folder, 1)[0])


def barrier(name: str) -> None:
    """Return once every process has called it with this name, which may be used once."""
    if _group is None:
        return
    # Only process 0 reads the list, whose length is the number of processes.
    _group.put(f"barrier/{name}/each")
    if is_primary():
        _group.wait_for(f"barrier/{name}/each", _group.count)
        _group.put(f"barrier/{name}/all")
    else:
        _group.wait_for(f"barrier/{name}/all", 1)


def barrier_before_first_step(clock: Clock) -> None:
    """Wait for the process that compiles longest: gloo fails if one comes 30 s late."""
    if count() > 1:
        with clock.phase("barrier"):
            barrier("the first step")


def check_same(name: str, settings: Mapping[str, Any]) -> None:
    """Return once all processes have called it; raise BadInput if a setting is not process 0's.

    Processes that train different networks would sum gradients that do not belong together. `name`
    may be used once. A value that JSON cannot hold counts as its text.
    """
    if _group is None:
        return
    # A function's text holds its address, which differs from process to process.
    text = json.dumps(settings, default=lambda value: _ADDRESS.sub("", str(value)))
    here = json.loads(text)
    primary = broadcast_value(here)
    differing = [
        f"{key}={here.get(key)}, process 0 has {primary.get(key)}"
        for key in {**primary, **here}
        if here.get(key) != primary.get(key)
    ]
    if differing:
        raise BadInput(f"{'; '.join(differing)}: must be the same in all processes")
    barrier(name)


# ---------------------------------------------------------------------------- beginning, and ending


class ExitStatus(NamedTuple):
    """How a process ends: the run's status and reason, the exit code, the line to print."""

    status: str
    reason: str
    code: int
    line: str | None  # None for a traceback


@contextlib.contextmanager
def process_group(
    config: CoordinatorConfig | None, exit_status: Callable[[BaseException], ExitStatus]
) -> Iterator[None]:
    """Connect to the other processes for the body of the `with`, which all end together.

    If one of them fails or is stopped, the others end with its reason and exit code. If one dies,
    they end after the heartbeat timeout and a grace period. A single process has no `config`, and
    nothing is done.
    """
    if config is None:
        yield
        return
    global _group
    try:
        _group = _Group(_connect(config), config)
        yield
        barrier("the end")
        _group.is_ending = True
        _group.stopped.set()
        import jax

        with defer_signals():
            jax.distributed.shutdown()
    except BaseException as error:
        with defer_signals():
            cause = root_cause(error)
            status = exit_status(cause)
            if status.line is None:
                traceback.print_exception(cause)
            else:
                warn(f"jaxbench: {status.line}")
            if _group:
                if not isinstance(cause, OtherProcessEnded):
                    _group.put_end(f"process {_group.index}: {status.reason}", *status[::2])
                _group.exit(status.code)
            os._exit(status.code)  # a thread may still connect


def on_abort(callback: Callable[[OtherProcessEnded], None]) -> None:
    """Set what is called if another process has ended and this one's main thread hangs."""
    if _group:
        _group.on_abort = callback


def root_cause(error: BaseException) -> BaseException:
    """Return why this process ends: a failed collective may be the end of another process.

    It waits for the watch to notice, at most for the heartbeat timeout. From then on the watch no
    longer interrupts the main thread.
    """
    if _group is None:
        return error
    _group.is_ending = True
    if _group.cause is None:
        import jax

        if isinstance(error, jax.errors.JaxRuntimeError) and not OUT_OF_MEMORY.search(str(error)):
            watch, timeout_s = Stopwatch(), _group.timeout_s + 4 * _HEARTBEAT_S
            wait_until(lambda: _group.other_end is not None or watch.elapsed_s() > timeout_s)
            error = _group.other_end or error
        _group.cause = error
    return _group.cause


def _connect(config: CoordinatorConfig) -> Any:
    """Connect to the others; return the client of the key-value store that all processes reach.

    JAX aborts a process (LOG(FATAL), exit code 134) that cannot connect in time, and nothing
    interrupts it meanwhile. So it connects in a thread, and its own timeout comes later.
    """
    # The coordination service prints errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with defer_signals():
        import jax
        from jax._src.distributed import global_state  # the store has no public name
    # JAX's preemption service would take SIGTERM from our handler.
    jax.config.update("jax_enable_preemption_service", False)
    address, errors = config.address, []
    # Process 0 listens at its address only, not everywhere as is JAX's default. A name may stand
    # for another address on the other hosts (Debian resolves a host's name to 127.0.1.1).
    host = address.rpartition(":")[0].strip("[]")
    is_exact = host == "localhost" or bool(re.fullmatch(r"[\d.]+|[\da-fA-F]*:[\da-fA-F:.]+", host))
    is_exact = is_exact and not config.is_detected
    timeout_s = config.initialization_timeout_s
    meet(address, host if is_exact else None, config.index, config.count, timeout_s)

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                address,
                config.count,
                config.index,
                coordinator_bind_address=address if is_exact else None,
                initialization_timeout=config.initialization_timeout_s + _JAX_MARGIN_S,
                heartbeat_timeout_seconds=config.heartbeat_timeout_s + _JAX_MARGIN_S,
                shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S,
            )
        except Exception as error:
            errors.append(error)

    thread, watch = threading.Thread(target=initialize, name="connect", daemon=True), Stopwatch()
    thread.start()
    wait_until(lambda: not thread.is_alive() or watch.elapsed_s() > timeout_s)
    if errors:
        reason = _one_line(errors[0])
        raise Unreachable(
            f"process {config.index}: cannot connect to the others at {address}: {reason}"
        )
    if thread.is_alive():
        raise Unreachable(
            f"process {config.index}: not all {config.count} processes connected at {address} in "
            f"{timeout_s} s (--initialization_timeout_s); start the same command on each of them"
        )
    return global_state.client


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


class _Group:
    """The store that all processes share, and the watch: a thread that looks at the others.

    In each folder of the store every process has one text.

    Only process 0 ends a run on a signal, with a checkpoint. Another process that gets one asks
    process 0 to stop and trains on until it has: process 0 would wait for its steps.
    """

    def __init__(self, client: Any, config: CoordinatorConfig):
        self.index, self.count = config.index, config.count
        self.num_broadcasts = 0
        self.on_abort: Callable[[OtherProcessEnded], None] = lambda end: None
        self.is_ending = False  # whether the main thread ends already, and is not interrupted
        self.cause: BaseException | None = None  # why this process ends
        self._client = client
        self.timeout_s = config.heartbeat_timeout_s
        self.other_end: OtherProcessEnded | None = None
        self._lost: set[int] = set()
        self._stop_requests: list[int] = []  # the signals that came
        self.stopped = threading.Event()
        if self.index:
            set_signal_callback(self._stop_requests.append)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def put(
        self, folder: str, text: str = "", *, index: int | None = None, replace: bool = False
    ) -> None:
        """Set a process's text in a folder, this one's by default; only `replace` sets it again."""
        key = f"jaxbench/{folder}/{self.index if index is None else index}"
        self._client.key_value_set(key, text, allow_overwrite=replace)

    def read(self, folder: str) -> dict[int, str]:
        """Return {process: text} of a folder."""
        texts = self._client.key_value_dir_get(f"jaxbench/{folder}/")
        return {int(key.rpartition("/")[2]): text for key, text in texts}

    def wait_for(self, folder: str, num_texts: int) -> dict[int, str]:
        """Return the texts of a folder once it has `num_texts` of them."""
        texts: dict[int, str] = {}

        def is_complete() -> bool:
            texts.update(self.read(folder))
            return len(texts) >= num_texts

        # By polling: nothing interrupts JAX's own barrier and blocking get.
        wait_until(is_complete)
        return texts

    def put_end(self, reason: str, status: str, code: int, index: int | None = None) -> None:
        """Record how a process ends in the store, unless it is recorded already."""
        with contextlib.suppress(Exception):
            self.put("end", json.dumps([reason, status, code]), index=index)

    def exit(self, code: int) -> NoReturn:
        """Exit at once: an ordinary exit would wait for steps on the devices that never end."""
        self.stopped.set()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        watch = Stopwatch()
        with contextlib.suppress(Exception):
            self.put("left", replace=True)
            # The store ends with process 0: the others could no longer learn why.
            while (
                self.index == 0
                and watch.elapsed_s() < _GRACE_S
                and len(self.read("left")) < self.count - len(self._lost)
            ):
                pause(_HEARTBEAT_S / 5)
        os._exit(code)

    def _watch(self) -> None:
        # By process, its last heartbeat and the time since.
        seen = {index: ("", Stopwatch()) for index in range(self.count)}
        for number in itertools.count(1):
            if self.stopped.wait(_HEARTBEAT_S):
                return
            try:
                self.put("alive", str(number), replace=True)
                if self._stop_requests:
                    self.put("stop", str(int(self._stop_requests[0])), replace=True)
                if self.index == 0:
                    self._look_at_others(seen)
                ends = self.read("end")
            except Exception:  # process 0 is gone, or cannot answer yet: JAX aborts this process
                continue
            ends.pop(self.index, None)
            if ends:
                self._end_as(OtherProcessEnded(*json.loads(ends[min(ends)])))
                return

    def _look_at_others(self, seen: dict[int, tuple[str, Stopwatch]]) -> None:
        """In process 0: end for those that are lost, stop for those that got a signal."""
        for index, text in self.read("alive").items():
            if seen[index][0] != text:
                seen[index] = text, Stopwatch()
        for index in sorted(seen.keys() - self._lost):
            if seen[index][1].elapsed_s() > self.timeout_s:
                self._lost.add(index)
                reason = f"process {index} was lost: no sign of life for {self.timeout_s:g} s"
                self.put_end(reason, "failed", 1, index)
        if stops := self.read("stop"):
            stop_main_thread(int(stops[min(stops)]))

    def _end_as(self, end: OtherProcessEnded) -> None:
        """End this process as another did, without its main thread if that hangs."""
        self.other_end = end
        if not self.is_ending:
            raise_in_main_thread(end)
        if self.stopped.wait(_GRACE_OF_OTHERS_S if self.index else _GRACE_S):
            return
        # The main thread hangs in a collective that the other process does not answer.
        with contextlib.suppress(Exception):
            self.on_abort(end)
        warn(f"jaxbench: {end}")
        self.exit(end.code)


_group: _Group | None = None
