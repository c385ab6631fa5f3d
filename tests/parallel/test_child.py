"""What a program inherits; why it ended, if only its exit code and the system's counts tell."""

from unittest import mock

import pytest

from jaxbench.parallel import child

V1 = "9:name=systemd:/\n4:cpu,memory:/box/a\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "kills"),
    [
        ("0::/a/b", {"a/b/memory.events": "oom 3\noom_kill 2", "memory.events": "oom_kill 9"}, 2),
        # A container that sees its own group as the root.
        ("0::/kube/pod", {"memory.events": "oom 0\noom_kill 1\noom_group_kill 4\n"}, 1),
        (V1, {"memory/box/a/memory.oom_control": "under_oom 0\noom_kill 5\n"}, 5),
        (V1, {"memory/memory.oom_control": "oom_kill 6\n"}, 6),
        ("0::/", {}, None),
        (V1, {"memory/memory.oom_control": "oom_kill_disable 0\n"}, None),
        ("nonsense", {"memory.events": "oom_kill 1"}, None),
        (None, {}, None),
    ],
)
def test_kills_of_the_own_group_count(tmp_path, monkeypatch, groups, files, kills):
    """And none of another program on the machine."""
    monkeypatch.setattr(child, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(child, "_CGROUPS", tmp_path / "groups")
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert child._oom_kills() == kills


@pytest.mark.parametrize(
    ("system_killed", "end"),
    [
        (True, ("oom", "killed by the system, which was out of memory")),
        (False, ("exited", "killed by SIGKILL")),
        (None, ("exited", "killed by SIGKILL; the system may have been out of memory")),
    ],
)
def test_what_is_not_known_is_not_said(tmp_path, system_killed, end):
    (tmp_path / "log").write_text("step 1\n")
    assert child._explain(-9, tmp_path / "log", system_killed) == end
    assert child._explain(-15, tmp_path / "log", system_killed) == ("exited", "killed by SIGTERM")


def test_a_program_is_started_once_whatever_has_started_this_process(tmp_path, monkeypatch):
    """Else the trials of a sweep would be refused as one of several processes."""
    monkeypatch.setenv("KEPT", "1")
    for count, index in child.STARTERS.values():
        monkeypatch.setenv(count, "4")
        monkeypatch.setenv(index, "0")
    with mock.patch("subprocess.Popen") as started:
        child.Child(["program"], tmp_path / "log", variables={"MORE": "2"})
    names = started.call_args.kwargs["env"].keys()
    assert {"KEPT", "MORE"} <= names
    assert not any(names & {*pair} for pair in child.STARTERS.values())
