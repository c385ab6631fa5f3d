"""Check the hosts of a sweep over ssh, before its first trial."""

import concurrent.futures
import os
import platform
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.launchers.connection import Connection, HostLost
from jaxbench.xla.variables import decisive_variables

_ANSWER = ("backend", "cpu", "device_kind", "num_devices", "versions")
# They say which devices this machine has.
_OWN = re.compile("CUDA_VISIBLE|TPU_")


def forwarded_variables() -> dict[str, str]:
    """Return the environment variables of this process that trials on other machines get."""
    own = {name: value for name, value in decisive_variables().items() if not _OWN.match(name)}
    group = os.environ.get("WANDB_RUN_GROUP")
    return own | ({"WANDB_RUN_GROUP": group} if group else {})


def check_hosts(
    path: str, connections: Sequence[Connection], say: Callable[[str], None]
) -> tuple[list[Connection], str]:
    """Return the connections to the hosts that can be used, and the kind of their hardware.

    A host is asked once, all at the same time.

    Args:
      path: the hosts file.

    Raises:
      BadInput: none can be used, or they are of several kinds.
    """
    with concurrent.futures.ThreadPoolExecutor(len(connections)) as pool:
        try:
            answers = [*pool.map(_check, connections)]
        except BaseException:  # Ctrl-C, which is not to wait for a host
            for connection in connections:
                connection.close()
            raise
    usable = []
    for connection, answer in zip(connections, answers, strict=True):
        if isinstance(answer, HostLost):
            say(f"{connection.host.name}: is left out: {answer}")
        else:
            usable.append((connection, answer))
    if not usable:
        raise BadInput(f"--hosts={path}: none of its {len(connections)} hosts can be used")
    kinds = {_kind(connection, answer): connection.host.name for connection, answer in usable}
    if len(kinds) > 1:
        found = "; ".join(f"{name} has {kind}" for kind, name in kinds.items())
        raise BadInput(
            f"--hosts={path}: a sweep is for hosts of one kind: {found}; give each kind a sweep of "
            "its own, or all of them one kind=NAME"
        )
    _warn_of_versions(usable, say)
    [kind] = kinds
    say(f"{len(usable)} of {len(connections)} hosts, each with {kind}")
    return [connection for connection, _ in usable], kind


def _check(connection: Connection) -> dict[str, Any] | HostLost:
    request = {"folder": connection.host.folder, "variables": forwarded_variables()}
    try:
        answer = connection.ask("check", request)
        return {name: answer[name] for name in _ANSWER}
    except HostLost as error:
        return error
    except KeyError as error:
        return HostLost(f"its jaxbench is another version, which does not say {error}")


def _kind(connection: Connection, answer: dict[str, Any]) -> str:
    device = answer["device_kind"]
    if answer["backend"] == "cpu":
        device = f"{device} ({answer['cpu'] or 'unknown processor'})"
    return connection.host.kind or f"{answer['num_devices']} x {device}"


def _warn_of_versions(
    usable: Sequence[tuple[Connection, dict[str, Any]]], say: Callable[[str], None]
) -> None:
    # Imported here, because it imports JAX.
    from jaxbench.hardware.environment import describe_code

    versions = {platform.node(): describe_code()}
    versions |= {connection.host.name: answer["versions"] for connection, answer in usable}
    for name in describe_code():
        hosts: dict[str, list[str]] = {}
        for host, found in versions.items():
            hosts.setdefault(found[name], []).append(host)
        if len(hosts) > 1:
            told = "; ".join(f"{version} on {', '.join(on)}" for version, on in hosts.items())
            say(f"warning: the hosts differ in {name}: {told}")
