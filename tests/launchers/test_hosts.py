"""The hosts file."""

import pytest

from jaxbench.errors import BadInput
from jaxbench.launchers.hosts import Host, read_hosts


def test_a_hosts_file_is_read(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text(
        "\ufeff# ours, from Windows\n\nlab1\n"
        " me@lab-2.example.org:2201  folder=/scratch/me python=~/venv/bin/python\n"
        "[fe80::1]:22 kind='V100 SXM2'  # the old one\n"
    )
    assert read_hosts(str(path)) == [
        Host("lab1", "lab1"),
        Host(
            "me@lab-2.example.org:2201",
            "me@lab-2.example.org",
            "2201",
            folder="/scratch/me",
            python="~/venv/bin/python",
        ),
        Host("[fe80::1]:22", "fe80::1", "22", kind="V100 SXM2"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lab1\n-oProxyCommand=x\n", r"line 2: '-oProxyCommand=x': must be \[user@\]host"),
        ("me@-x\n", "line 1: 'me@-x': must be"),
        ("lab1:ssh\n", "must be"),
        ("lab1 fodler=/x\n", "did you mean 'folder'"),
        ("lab1 folder=\n", "must be one of folder=..., python=..., kind=..."),
        ("lab1 kind=a kind=b\n", "kind=...: is given twice"),
        ("lab1 kind='a\n", "line 1: No closing quotation"),
        ("lab1\nlab1 folder=/x\n", "lab1 is given twice"),
        ("# none\n", "names no host"),
        (None, "No such file"),
    ],
)
def test_a_bad_line_is_told(tmp_path, text, told):
    path = tmp_path / "hosts.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=told) as error:
        read_hosts(str(path))
    assert "\n" not in str(error.value)
