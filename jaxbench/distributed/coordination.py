"""The processes of a run: how they meet, what they agree on, and how all end when one does.

This is the only module that names `jax.distributed`. Its coordination service, in process 0, has a
store of keys and values that all processes reach; everything here is made of that. JAX's own
answer to a lost process is to abort the others (LOG(FATAL)): each process's watch, a thread, is
quicker, and ends them with a reason.

JAX is imported only by what connects: an entry point that runs nothing starts without it.
"""

import contextlib
import ctypes
import dataclasses
import errno
import ipaddress
import json
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from jaxbench.clock import Clock, Stopwatch, pause, wait_until
from jaxbench.distributed.signals import (
    defer_signals,
    instead_of_terminating,
    raise_in_main_thread,
    terminate_main_thread,
)
from jaxbench.errors import OUT_OF_MEMORY, BadInput, OtherProcessEnded, Unreachable

# How often a process says that it is alive, and looks whether the others are.
_BEAT_S = 0.5
# How long a process may take to end by itself once another has, before it is cut short: the first,
# which has records to close, and the others.
_GRACE_S, _OTHERS_GRACE_S = 15.0, 2.0
# JAX aborts so long after the heartbeat timeout, where the watch itself has failed.
_MARGIN_S = 45
_KEYS = "jaxbench"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """Where the processes of a run meet.

    Attributes:
      address: HOST:PORT of process 0, whose coordination service listens there; None where JAX
        finds out itself (Cloud TPU, Slurm and what else `jax.distributed` knows).
      count, index: how many processes, and which of them this is; None as above.
      initialization_timeout_s: how long they wait for one another.
      heartbeat_timeout_s: a process that has been silent for so long is lost.
    """

    address: str | None = None
    count: int | None = None
    index: int | None = None
    initialization_timeout_s: int = 300
    heartbeat_timeout_s: int = 30


class ExitStatus(NamedTuple):
    """How a process ended: a run's status, the reason in words, the exit code, what is printed."""

    status: str
    reason: str
    code: int
    line: str | None


_group: "_ProcessGroup | None" = None


def index() -> int:
    """Which process this is, 0 the first."""
    return _group.index if _group else 0


def count() -> int:
    """How many processes take part."""
    return _group.count if _group else 1


def is_first() -> bool:
    """Whether this process writes the records and speaks for all."""
    return index() == 0


def broadcast_value(value: Any) -> Any:
    """Returns process 0's value in every process; all must ask, in the same order.

    For what follows from a clock or a cache and decides what the devices do next: processes that
    decided for themselves would wait for one another for ever.

    Args:
      value: of a kind that JSON has.
    """
    return _group.broadcast_value(value) if _group else value


def barrier_before_first_step(clock: Clock) -> None:
    """Has processes wait for the one that compiles longest.

    Their first collective meets within 30 s with gloo, or fails; of two hosts one may have its
    programs from a cache.
    """
    if count() > 1:
        with clock.phase("meet"):
            barrier("the first step")


def barrier(place: str) -> None:
    """Returns once every process has come to this place, a name that is used once."""
    if _group:
        _group.barrier(place)


def check_same(what: str, facts: Mapping[str, Any]) -> None:
    """Raises BadInput where processes are to do different things; returns once all have asked.

    Each would train on its own, and the sums of all of them mean nothing.

    Args:
      what: a name that is used once.
      facts: by names that a person knows; what JSON has no word for counts as its text.
    """
    if _group:
        _group.check_same(what, facts)


def on_cut_short(on_abort: Callable[[OtherProcessEnded], None]) -> None:
    """Sets what is done where another process has ended and the main thread here hangs."""
    if _group:
        _group.on_abort = on_abort


def root_cause(error: BaseException) -> BaseException:
    """Returns why this process really ends: a collective that fails may be another's end.

    Waits for the watch to find that out, for the heartbeat timeout at most. From here on the watch
    no longer interrupts the main thread.
    """
    return _group.root_cause(error) if _group else error


def check_coordinator(
    distributed: str | None, address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Raises BadInput where the flags of these names do not say how processes meet."""
    given = {
        "--coordinator_address": address,
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if distributed:
        raise BadInput(
            f"--distributed={distributed} with {next(n for n in given if n not in missing)}: give "
            "one of them; auto finds out what the three flags say"
        )
    if missing:
        raise BadInput(f"{' and '.join(missing)} missing: {', '.join(given)} go together")
    match = re.fullmatch(r"(.+):(\d{1,5})", address)
    if not match or not 0 < int(match[2]) < 2**16:
        raise BadInput(
            f"--coordinator_address={address}: must be HOST:PORT of process 0, such as "
            "10.0.0.1:8476"
        )
    if not 0 <= process_id < num_processes:
        raise BadInput(
            f"--process_id={process_id} with --num_processes={num_processes}: must be 0 to "
            f"{num_processes - 1}"
        )


def check_single() -> None:
    """Raises BadInput on one of several hosts of a TPU slice, where a program alone would hang.

    For runs that nobody said anything about: `--distributed=off` leaves it out.
    """
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    # Who has set these has cut the host's own chips out of the slice.
    alone = "TPU_PROCESS_BOUNDS" in os.environ or "TPU_VISIBLE_CHIPS" in os.environ
    if len(hosts) > 1 and not alone and os.environ.get("JAX_PLATFORMS") != "cpu":
        raise BadInput(
            f"this is one of {len(hosts)} hosts of a TPU slice (TPU_WORKER_HOSTNAMES), whose chips "
            "wait for one another: start the same command with --distributed=auto on all of them"
        )


def coordinator_of_jax(
    initialization_timeout_s: int, heartbeat_timeout_s: int
) -> CoordinatorConfig | None:
    """Returns where the processes meet by what JAX finds out; None where this one is alone.

    Raises:
      BadInput: JAX finds nothing.
    """
    with defer_signals():
        from jax._src.clusters import ClusterEnv

    # JAX has no public way to ask without connecting, which would listen for no one.
    try:
        found = [env for env in ClusterEnv._cluster_types if not env.opt_in_only_method]
        environment = next((env for env in found if env.is_env_present()), None)
        num_processes = environment and int(environment.get_process_count())
    except Exception as error:
        raise BadInput(
            f"--distributed=auto: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    if environment is None:
        raise BadInput(
            "--distributed=auto: JAX finds no Cloud TPU slice, Slurm step or Open MPI job here; "
            "give --coordinator_address, --num_processes and --process_id, or leave it out on a "
            "single machine"
        )
    if num_processes == 1:
        return None
    return CoordinatorConfig(
        count=num_processes,
        index=int(environment.get_process_id()),
        initialization_timeout_s=initialization_timeout_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
    )


@contextlib.contextmanager
def process_group(
    meeting: CoordinatorConfig | None, ending: Callable[[BaseException], ExitStatus]
) -> Iterator[None]:
    """Meets the other processes for what is inside the `with`; all end it together.

    Where one of them fails or is stopped, all others end too, with its reason and exit code; where
    one dies, within the heartbeat timeout and a grace.

    Args:
      meeting: where; None for a process by itself, for which nothing is done.
      ending: how a process ends that this exception ends.

    Raises:
      Unreachable: they do not come together.
    """
    if meeting is None:
        yield
        return
    global _group
    _group = _connect(meeting)
    try:
        yield
        _group.finish()
    except BaseException as error:
        with defer_signals():
            cause = _group.root_cause(error)
            _group.leave(ending(cause), cause)


def _connect(meeting: CoordinatorConfig) -> "_ProcessGroup":
    """Has JAX connect. It aborts the process where that fails, so that is caught too."""
    # Of what the coordination service has to say, only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with defer_signals():
        import jax
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    who = f"process {meeting.index}" if meeting.index is not None else "this process"
    where = f" at {meeting.address}" if meeting.address else ""
    of_all = f" all {meeting.count}" if meeting.count else ""
    timeout_s = meeting.initialization_timeout_s
    if meeting.address and meeting.index:
        _await_listener(meeting.address, timeout_s)
    listening = None
    if meeting.index == 0 and meeting.address:
        listening = _listening_address(meeting.address)
    with _aborting_with(
        f"{who}: not{of_all} processes met{where} within {timeout_s} s "
        "(--initialization_timeout_s); start the same command on each of them"
        + (", with a --process_id of its own" if meeting.address else "")
    ):
        try:
            jax.distributed.initialize(
                meeting.address,
                meeting.count,
                meeting.index,
                coordinator_bind_address=listening,
                initialization_timeout=timeout_s,
                heartbeat_timeout_seconds=meeting.heartbeat_timeout_s + _MARGIN_S,
                shutdown_timeout_seconds=int(_GRACE_S),
            )
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            raise Unreachable(f"{who}: cannot meet the others{where}: {words}") from error
    from jax._src import distributed  # the store has no public name

    return _ProcessGroup(distributed.global_state, meeting.heartbeat_timeout_s)


def _await_listener(address: str, timeout_s: int) -> None:
    """Returns once somebody listens there."""
    watch = Stopwatch()
    while reason := _why_silent(address):
        if watch.elapsed_s() > timeout_s:
            raise Unreachable(
                f"--coordinator_address={address}: no process 0 there within {timeout_s} s "
                f"({reason})"
            )
        pause(_BEAT_S)


def _why_silent(address: str) -> str | None:
    """Returns why nobody can be reached there, None where somebody listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _listening_address(address: str) -> str:
    """Returns where process 0 is to listen: nowhere but there, where that can be told.

    A name may stand for another address on the other hosts (Debian has a host's own lead to
    127.0.1.1), and an address may be a router's that passes on to this host: then everywhere.

    Raises:
      Unreachable: it cannot: JAX would crash.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with contextlib.suppress(OSError):
        if host == "localhost" or _is_number(host):
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
            if any(_can_bind(address, family, place) for family, *_, place in found):
                return address
    for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        _can_bind(address, family, (place, int(port)))
    return f"[::]:{port}"


def _is_number(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _can_bind(address: str, family: int, place: tuple) -> bool:
    """Whether this host has that address; Unreachable where another program listens there."""
    try:
        probe = socket.socket(family)
    except OSError:  # no such addresses here
        return False
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise Unreachable(
                f"--coordinator_address={address}: process 0 cannot listen on port {place[1]}: "
                f"{error.strerror}"
            ) from None
    return True


_on_abort: Any = None


def _exit_on_abort(line: Callable[[], str], descriptor: int) -> None:
    """Has an abort (JAX's LOG(FATAL), from any thread) end in a line and exit code 1."""
    global _on_abort

    def end(number: int) -> None:
        os.write(descriptor, f"jaxbench: {line()}\n".encode())
        os._exit(1)

    # Python's own handlers run when the abort is long done. Kept: C holds no reference.
    _on_abort = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(_on_abort, ctypes.c_void_p))


@contextlib.contextmanager
def _aborting_with(line: str) -> Iterator[None]:
    """Ends with this line where C++ aborts inside the `with`, in place of its stack trace."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    _exit_on_abort(lambda: line, kept)
    os.dup2(nowhere, 2)
    # Python cannot answer signals while C++ waits; there is nothing to record yet.
    handlers = {n: signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)


class _ProcessGroup:
    """All processes of a run, as one of them sees them.

    Args:
      state: JAX's, connected.
      heartbeat_timeout_s: a process that has been silent for so long is lost.
    """

    def __init__(self, state: Any, heartbeat_timeout_s: float):
        self.index, self.count = state.process_id, state.num_processes
        self.on_abort: Callable[[OtherProcessEnded], None] = lambda error: None
        self._store = state.client
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._agreements = 0
        self._ending = False
        self._ended = threading.Event()
        self._lost: frozenset[int] = frozenset()
        self._other: OtherProcessEnded | None = None
        self._cause: BaseException | None = None
        # Only the first process ends by itself, with what it has saved: the others tell it that
        # they have been asked to, and go on until it has, or it would wait for their steps.
        self._wishes = threading.Event()
        self._told = False
        if self.index:
            instead_of_terminating(self._wishes.set)
            # Where the connection to process 0 breaks, JAX aborts before any watch looks.
            address = state.coordinator_address
            _exit_on_abort(
                lambda: (
                    f"process 0 was lost: nothing answers at {address}"
                    if _why_silent(address)
                    else "JAX aborted this process (above)"
                ),
                2,
            )
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def broadcast_value(self, value: Any) -> Any:
        self._agreements += 1
        key = f"{_KEYS}/broadcast_value/{self._agreements}"
        if self.index == 0:
            self._store.key_value_set(f"{key}/0", json.dumps(value))
            return value
        found: list[tuple[str, str]] = []

        def there() -> bool:
            found[:] = self._store.key_value_dir_get(f"{key}/")
            return bool(found)

        wait_until(there)
        return json.loads(found[0][1])

    def barrier(self, place: str) -> None:
        # Not JAX's barrier, which Ctrl-C and the watch could not interrupt. Only the first asks who
        # is there: the answers to all would grow with the square of their number.
        key = f"{_KEYS}/at/{place}"
        self._store.key_value_set(f"{key}/each/{self.index}", "")
        if self.index == 0:
            wait_until(lambda: len(self._store.key_value_dir_get(f"{key}/each/")) == self.count)
            self._store.key_value_set(f"{key}/all/0", "")
        else:
            wait_until(lambda: bool(self._store.key_value_dir_get(f"{key}/all/")))

    def check_same(self, what: str, facts: Mapping[str, Any]) -> None:
        # A function, say, is told by its name: it lies elsewhere in every process.
        named = json.dumps(facts, default=lambda value: _ADDRESS.sub("", str(value)))
        own = json.loads(named)
        first = self.broadcast_value(own)
        differing = [
            f"{name}={own.get(name)}, process 0 has {first.get(name)}"
            for name in {**first, **own}
            if own.get(name) != first.get(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise BadInput(f"{'; '.join(differing[:3])}{more}: must be the same in all processes")
        self.barrier(what)

    def root_cause(self, error: BaseException) -> BaseException:
        self._ending = True
        if self._cause is None:
            if _may_be_anothers(error):
                watch = Stopwatch()
                longest_s = self._heartbeat_timeout_s + 4 * _BEAT_S
                wait_until(lambda: self._other is not None or watch.elapsed_s() > longest_s)
                error = self._other or error
            self._cause = error
        return self._cause

    def finish(self) -> None:
        """Ends the connection, once every process has come so far."""
        import jax

        self.barrier("the end")
        self._ending = True
        self._ended.set()
        with defer_signals():
            jax.distributed.shutdown()
        signal.signal(signal.SIGABRT, signal.SIG_DFL)

    def leave(self, ending: ExitStatus, error: BaseException) -> NoReturn:
        """Ends this process, after it has told the others.

        At once: an ordinary exit would wait for steps on the devices that never end.
        """
        self._ending = True
        notice = ending._asdict() | {"process": self.index}
        with contextlib.suppress(Exception):
            if not isinstance(error, OtherProcessEnded):
                self._store.key_value_set(f"{_KEYS}/end/{self.index}", json.dumps(notice))
        if ending.line is None:
            traceback.print_exception(error)
        else:
            print(f"jaxbench: {ending.line}", file=sys.stderr)
        self._ended.set()
        self._exit(ending.code)

    def _exit(self, code: int) -> NoReturn:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        watch = Stopwatch()
        with contextlib.suppress(Exception):
            self._store.key_value_set(f"{_KEYS}/left/{self.index}", "", allow_overwrite=True)
            # The store ends with process 0: the others could no longer learn why.
            while (
                self.index == 0
                and watch.elapsed_s() < _GRACE_S
                and len(self._store.key_value_dir_get(f"{_KEYS}/left/"))
                < self.count - len(self._lost)
            ):
                pause(_BEAT_S / 5)
        os._exit(code)

    def _watch(self) -> None:
        """Says that this process is alive; looks for the end of others until this one's."""
        beats = _Beats(self.count, self._heartbeat_timeout_s) if self.index == 0 else None
        number = 0
        while not self._ended.wait(_BEAT_S):
            number += 1
            try:
                self._store.key_value_set(
                    f"{_KEYS}/alive/{self.index}", str(number), allow_overwrite=True
                )
                if beats is not None:
                    self._lost = beats.silent(self._store.key_value_dir_get(f"{_KEYS}/alive/"))
                    if self._lost:
                        self._report_lost()
                if self._wishes.is_set():
                    self._store.key_value_set(
                        f"{_KEYS}/wish/{self.index}", "", allow_overwrite=True
                    )
                if beats is not None and not self._told:
                    self._told = bool(self._store.key_value_dir_get(f"{_KEYS}/wish/"))
                    if self._told:
                        terminate_main_thread()
                notices = self._store.key_value_dir_get(f"{_KEYS}/end/")
            except Exception:  # process 0 is gone, or not there yet to answer: JAX will say
                continue
            others = [json.loads(text) for key, text in notices if _last(key) != self.index]
            if others:
                self._end_with(min(others, key=lambda notice: notice["process"]))
                return

    def _report_lost(self) -> None:
        """Leaves word of processes that died without one."""
        for lost in self._lost:
            reason = (
                f"process {lost} was lost: it has not been heard of for "
                f"{self._heartbeat_timeout_s:g} s"
            )
            notice = ExitStatus("failed", reason, 1, None)._asdict() | {
                "process": lost,
                "lost": True,
            }
            with contextlib.suppress(Exception):  # it may have told why before
                self._store.key_value_set(f"{_KEYS}/end/{lost}", json.dumps(notice))

    def _end_with(self, notice: dict[str, Any]) -> None:
        """Has this process end as another did, if need be without its main thread."""
        words = notice["reason"]
        if not notice.get("lost"):
            words = f"process {notice['process']}: {words}"
        self._other = OtherProcessEnded(words, notice["status"], notice["code"])
        if not self._ending:
            raise_in_main_thread(self._other)
        if self._ended.wait(_OTHERS_GRACE_S if self.index else _GRACE_S):
            return
        # The main thread hangs in a collective that nobody answers.
        with contextlib.suppress(Exception):
            self.on_abort(self._other)
        print(f"jaxbench: {self._other}", file=sys.stderr)
        self._exit(self._other.code)


class _Beats:
    """When each process's sign of life last changed."""

    def __init__(self, count: int, timeout_s: float):
        self._timeout_s = timeout_s
        self._watches = {other: Stopwatch() for other in range(count)}
        self._seen: dict[int, str] = {}

    def silent(self, beats: list[tuple[str, str]]) -> frozenset[int]:
        """Returns which processes have been silent for too long."""
        for key, text in beats:
            other = _last(key)
            if self._seen.get(other) != text:
                self._seen[other] = text
                self._watches[other] = Stopwatch()
        return frozenset(
            other for other, watch in self._watches.items() if watch.elapsed_s() > self._timeout_s
        )


def _last(key: str) -> int:
    return int(key.rpartition("/")[2])


def _may_be_anothers(error: BaseException) -> bool:
    import jax

    return isinstance(error, jax.errors.JaxRuntimeError) and not OUT_OF_MEMORY.search(str(error))
