"""Run trials as tasks of Ray: on this machine, or on the nodes of a cluster.

Ray ends the tasks of a sweep that ends or is killed, and each trial ends with its task.
"""

import ast
import contextlib
import dataclasses
import functools
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxbench.clock import Stopwatch
from jaxbench.errors import BadInput
from jaxbench.files import unpack
from jaxbench.launchers.launcher import LOST, Ended, Launcher, Limits, TrialJob
from jaxbench.parallel.child import Child, ProcessResult, last_line, seconds_to_end
from jaxbench.parallel.signals import defer_signals, grace_period_s, set_grace_period
from jaxbench.xla.variables import decisive_variables

# Ray reads this when it is imported. It would print pages about a node that died.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."
try:
    import ray
    from ray._private import ray_constants
    from ray.exceptions import RayError
    from ray.util import scheduling_strategies
except ImportError as error:
    raise BadInput("--launcher=ray: needs Ray: pip install 'jaxbench[ray]'") from error

# REMOVER FOLDER: removes it at the end of the input; a trial that is killed now may still write.
_REMOVER = """
import os, shutil, sys, time
sys.stdin.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""
# A node as Ray describes it, and the amounts of its resources that a trial gets.
_Node = tuple[Mapping[str, Any], Mapping[str, float]]
_POLL_S, _CONNECT_S, _CHECK_S = 0.5, 10.0, 300.0
# What a trial computes on. If --ray_resources names none, it gets all that its node has.
_COMPUTE = {"CPU", "GPU", "TPU"}
# Of an accelerator type a node has 1, and Ray's own `accelerator_type=` asks for so much.
_TYPE_AMOUNT = 0.001
# A trial's files come in parts, which are small beside the object store of any node.
_PART_BYTES = 2**22
# More than a trial has, with its checkpoints.
_MOST_BYTES = 2**38


@dataclasses.dataclass
class _Task:
    """What runs on a host of a trial."""

    job: TrialJob
    group: Any  # reserves the hosts
    file: Any  # for what it has sent of its tar file
    line: str = "waiting for a node"
    end: tuple[ProcessResult, str | None] | None = None  # how it has ended, and where
    watch: Stopwatch = dataclasses.field(default_factory=Stopwatch)


class RayLauncher(Launcher):
    """See `Launcher`; the options are flags of `jaxbench sweep`.

    Raises:
      BadInput: there is no Ray, too few nodes have the resources, or a node is refused.
    """

    def __init__(
        self,
        limits: Limits,
        say: Callable[[str], None],
        ray_address: str | None = None,
        ray_resources: str = "",
        ray_hosts: int = 1,
        ray_checkpoints: bool = False,
    ):
        self._limits, self._hosts, self._checkpoints = limits, ray_hosts, ray_checkpoints
        asked = parse_resources(ray_resources)
        _connect(ray_address)
        alive = [node for node in ray.nodes() if node["Alive"]]
        nodes = _check_nodes(find_nodes(asked, alive), say)
        if len(nodes) < ray_hosts:
            every = "; ".join(_amounts_text(node["Resources"]) for node in alive)
            raise BadInput(
                f"--ray_resources={ray_resources} --ray_hosts={ray_hosts}: {len(nodes)} nodes have "
                f"them; there are {every}"
            )
        self._amounts = nodes[0][1]
        resources = _amounts_text(self._amounts)
        say(f"{len(nodes)} node(s) of Ray; a trial gets {resources}")
        self.hardware = ("launcher=ray", f"resources={resources}", f"hosts={ray_hosts}")
        # {id: how many tasks it takes at once}
        self._nodes = {
            node["NodeID"]: min(int(node["Resources"][n] // one) for n, one in amounts.items())
            for node, amounts in nodes
        }
        self._running: dict[str, list[_Task]] = {}  # by the trials' keys
        self._streams: dict[Any, _Task] = {}  # by what they yield
        self._seconds_to_end = 0.0

    @property
    def slots(self) -> int:  # type: ignore[override]
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        return sum(self._nodes.get(node, 0) for node in alive) // self._hosts

    def start(self, job: TrialJob) -> None:
        self._seconds_to_end = seconds_to_end(job.command)
        # This process waits for the trials' ends.
        set_grace_period(max(2 * self._seconds_to_end, grace_period_s()))
        selector = {"ray.io/node-id": f"in({','.join(self._nodes)})"}
        group = ray.util.placement_group(
            [self._amounts] * self._hosts,
            strategy="STRICT_SPREAD",
            bundle_label_selector=[selector] * self._hosts,
        )
        place = functools.partial(scheduling_strategies.PlacementGroupSchedulingStrategy, group)
        find = ray.remote(find_address).options(num_cpus=0, scheduling_strategy=place(0))
        address = find.remote() if self._hosts > 1 else ""
        settings = (job, self._limits, _forwarded_variables(), os.getcwd(), self._checkpoints)
        others = {**self._amounts}
        cpus, gpus, memory = (others.pop(name, 0) for name in ("CPU", "GPU", "memory"))
        options = {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "resources": others}
        options |= {"max_retries": 0, "_generator_backpressure_num_objects": 4}
        # On the disk that the files are for; that of /tmp may be the memory.
        file = functools.partial(tempfile.TemporaryFile, dir=job.log.parent)
        tasks = self._running[job.key] = [_Task(job, group, file()) for _ in range(self._hosts)]
        for rank, task in enumerate(tasks):
            run = ray.remote(run_trial).options(**options, scheduling_strategy=place(rank))
            self._streams[run.remote(*settings, address, rank, self._hosts)] = task

    # Ray's `wait` fails if a signal raises another exception than KeyboardInterrupt.
    @defer_signals()
    def wait(self) -> list[Ended]:
        ended, watch = [], Stopwatch()
        while self._streams and not ended and watch.elapsed_s() < _POLL_S:
            for stream in ray.wait([*self._streams], timeout=_POLL_S)[0]:
                ended += self._receive(stream)
        if not ended and not self.slots:  # Ray would wait for nodes to come
            for stream in [*self._streams]:
                ended += self._end(stream, LOST, "no node is left for it")
        return ended

    def _receive(self, stream: Any) -> list[Ended]:
        """Take what a task has yielded; return its attempt if that has ended."""
        task = self._streams[stream]
        try:
            item = ray.get(next(stream))
            if isinstance(item, str):
                task.line = item
            elif isinstance(item, bytes):
                task.file.write(item)
                if task.file.tell() > _MOST_BYTES:
                    raise tarfile.TarError(f"more than {_MOST_BYTES:,} bytes")
            else:
                task.file.seek(0)
                unpack(task.file, task.job.log.parent, _MOST_BYTES)
                task.end = item
                return self._end(stream)
        except RayError as error:
            return self._end(stream, *_explain(error))
        except (tarfile.TarError, OSError) as error:
            ray.cancel(stream)
            return self._end(stream, "failed", f"its files cannot be unpacked: {error}")
        return []

    def _end(self, stream: Any, status: str = "", reason: str = "") -> list[Ended]:
        """Note that a task has ended, with this status if it could not say how."""
        task = self._streams.pop(stream)
        task.file.close()
        task.end = task.end or (ProcessResult(status, reason, None, task.watch.elapsed_s()), None)
        tasks = self._running[task.job.key]
        ends = [one.end for one in tasks if one.end]
        if len(ends) < len(tasks):
            return []
        del self._running[task.job.key]
        ray.util.remove_placement_group(task.group)
        # The other processes of a run end by themselves when one is lost or out of memory.
        worst = next((end for end in ends if end[0].status != "exited"), ends[0])
        return [Ended(task.job.key, *worst)]

    def last_line(self, key: str) -> str:
        return self._running[key][0].line

    @defer_signals()
    def close(self) -> None:
        for stream in self._streams:
            ray.cancel(stream)
        watch = Stopwatch()
        while self._streams and watch.elapsed_s() < self._seconds_to_end:
            for stream in ray.wait([*self._streams], timeout=_POLL_S)[0]:
                try:
                    ray.get(next(stream))
                except (RayError, StopIteration):
                    del self._streams[stream]
        ray.shutdown()


def _forwarded_variables() -> dict[str, str]:
    """Return the environment variables of this process that trials on other machines get."""
    variables = decisive_variables() | {"WANDB_RUN_GROUP": os.environ.get("WANDB_RUN_GROUP")}
    # A node sets the variables about its devices itself.
    return {n: v for n, v in variables.items() if v and not n.startswith(("CUDA_VISIBLE", "TPU_"))}


def _explain(error: RayError) -> tuple[str, str]:
    """Return how a task has ended that could not say so: its status, and the reason in a line."""
    lines = (str(getattr(error, "cause", None) or error).strip() or "no reason").splitlines()
    is_traceback = isinstance(error, ray.exceptions.RaySystemError)
    reason = lines[-1] if is_traceback else lines[0].partition(". ")[0]
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "oom", reason
    trial_errors = (ray.exceptions.RayTaskError, ray.exceptions.OutOfDiskError)
    return "failed" if isinstance(error, trial_errors) else LOST, reason


def _amounts_text(amounts: Mapping[str, float]) -> str:
    return ",".join(f"{name}:{amount:g}" for name, amount in sorted(amounts.items()))


def parse_resources(text: str) -> dict[str, float]:
    """Parse `NAME:NUMBER,...`, and `accelerator_type:NAME` as Ray has it in its resources.

    Raises:
      BadInput: another form; or a part of a device, which two trials would use at once.
    """
    amounts: dict[str, float] = {}
    for part in map(str.strip, text.split(",") if text else ()):
        name, _, value = part.rpartition(":")
        if name == "accelerator_type" and value:
            amounts[part] = _TYPE_AMOUNT
        elif name and value.isdecimal() and int(value):
            amounts[name] = int(value)
        else:
            raise BadInput(
                f"--ray_resources={text}: {part!r} must be NAME:NUMBER with a whole number, such "
                "as GPU:1, or accelerator_type:NAME"
            )
    return amounts


def find_nodes(asked: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> list[_Node]:
    """Return the nodes that have these resources, each with the amounts that a trial gets."""
    usable = []
    for node in nodes:
        has = node["Resources"]
        amounts = asked | {n: _TYPE_AMOUNT for n in has if n.startswith("accelerator_type:")}  # type: ignore[operator]
        if not asked.keys() & _COMPUTE:
            amounts |= {name: has[name] for name in _COMPUTE & has.keys()}
        fits = all(has.get(name, 0) >= amount for name, amount in amounts.items())
        amounts.pop("object_store_memory", None)  # a node has it, but no task can ask for it
        if fits and amounts.keys() & _COMPUTE:
            usable.append((node, amounts))
    return usable


def _connect(address: str | None) -> None:
    """Connect to a Ray cluster, or start a Ray on this machine for this process only."""
    ray.shutdown()  # what an earlier sweep of a notebook has left, which may be another cluster
    options: dict[str, Any] = {"address": address}
    if address is None:
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": 2**27}
    # Without clusters Ray listens on the loopback address only; it has no public option for that.
    ray_constants.ENABLE_RAY_CLUSTER = address is not None
    # If something else answers at the address, each try takes 40 s.
    ray_constants.NUM_REDIS_GET_RETRIES = 20 if address is None else 1
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address and address != "auto":  # Ray itself would try for a minute, and abort
            host, _, port = address.rpartition(":")
            if not port.isdecimal():
                raise ValueError("it must be auto or HOST:PORT")
            socket.create_connection((host.strip("[]"), port), _CONNECT_S).close()
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (Exception, SystemExit) as error:  # some of Ray's have no other class
        flag = f"--ray_address={address}" if address else "--launcher=ray"
        raise BadInput(
            f"{flag}: no Ray that can be used: {' '.join(str(error).split())}"
        ) from error
    finally:
        if signal.getsignal(signal.SIGTERM) != handler:  # Ray sets another one, in the main thread
            signal.signal(signal.SIGTERM, handler)


def _check_nodes(nodes: Sequence[_Node], say: Callable[[str], None]) -> list[_Node]:
    """Return the nodes that answer; raise BadInput if one differs from this process, or from most.

    Print a line for each that differs or does not answer.
    """
    tasks = []
    for node, _ in nodes:
        place = scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        # Without resources: another sweep may have them.
        task = ray.remote(describe_node).options(num_cpus=0, scheduling_strategy=place)
        tasks.append(task.remote(os.getcwd()))
    watch = Stopwatch()
    resources = [_amounts_text(amounts) for _, amounts in nodes]
    most_common = max(resources, key=resources.count, default="")
    expected, usable, refused = describe_node(os.getcwd()) | {"resources": most_common}, [], 0
    for task, (node, amounts) in zip(tasks, nodes, strict=True):
        try:
            answer = ray.get(task, timeout=max(0, _CHECK_S - watch.elapsed_s()))
            answer |= {"resources": _amounts_text(amounts)}
            usable.append((node, amounts))
            wrong = [name for name, value in answer.items() if value != expected[name]]
            status = "failed" if wrong else "done"
            reason = "; ".join(f"{name} {answer[name]}, not {expected[name]}" for name in wrong)
        except RayError as error:
            status, reason = _explain(error)
        if status != "done":  # it died, or it is another kind
            refused += status == "failed"
            how = "is refused" if status == "failed" else "is left out"
            say(f"{node['NodeManagerHostname']}: {how}: {reason}")
    if refused:
        raise BadInput(
            f"--launcher=ray: {refused} of {len(nodes)} nodes are refused; a sweep is for nodes of "
            "one kind with the code of this machine (--ray_resources chooses nodes)"
        )
    return usable


# ---------------------------------------------------------------------------- what runs on a node


def describe_node(folder: str) -> dict[str, str]:
    """Return the versions of what a trial in this folder of a node runs."""
    code = "from jaxbench.hardware.environment import describe_code as d; print([*d().items()])"
    cwd = folder if os.path.isdir(folder) else None
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["Python crashed"])[-1])
    return {"Python": platform.python_version(), **dict(ast.literal_eval(done.stdout))}


def find_address() -> str:
    """Return an address of this node at which the processes of a trial can meet."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


@contextlib.contextmanager
def trial_folder() -> Iterator[str]:
    """Make a folder for the `with`; it is removed even if this process is killed."""
    name = tempfile.mkdtemp(prefix="jaxbench-trial-")
    command = [sys.executable, "-I", "-S", "-c", _REMOVER, name]
    # Its input, a pipe, ends with this process. What ends its session is not for the remover.
    remover = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield name
    finally:
        remover.communicate()


def run_trial(
    job: TrialJob,
    limits: Limits,
    variables: Mapping[str, str],
    folder: str,
    keep_checkpoints: bool,
    address: str,
    rank: int,
    hosts: int,
) -> Iterator[str | bytes | tuple[ProcessResult, str]]:
    """Run a trial; yield its last line now and then, a tar file in parts, and how it ended.

    Args:
      folder: in which it runs, if this node has it.
      keep_checkpoints: whether the tar file, of its log and run directory, contains them.
      address: at which the processes of a trial on several hosts meet.
    """
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray's own
    with trial_folder() as name:
        path = pathlib.Path(name)
        log = path / (job.log.with_suffix(f".process{rank}.log") if rank else job.log).name
        job = dataclasses.replace(job, run_path=path / job.run_path.name, log=log)
        more = [f"--coordinator_address={address}", f"--num_processes={hosts}"]
        command = job.command + ([*more, f"--process_id={rank}"] if hosts > 1 else [])
        with contextlib.chdir(folder if os.path.isdir(folder) else name):
            child = Child(command, log, variables=variables, **limits._asdict())
            line = ""
            try:
                while (result := child.wait()) is None:
                    if (latest := last_line(log)) != line:
                        yield (line := latest)
            finally:
                child.end()
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                left_out = () if keep_checkpoints else (f"{job.run_path.name}/checkpoints",)
                archive.add(path, "", filter=lambda m: None if m.name in left_out else m)
            file.seek(0)
            while part := file.read(_PART_BYTES):
                yield part
    yield result, platform.node()
