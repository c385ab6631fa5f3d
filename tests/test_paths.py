"""Home folders that do not exist (an unknown user id in a container); paths that are hidden."""

import os
import pwd

import pytest

from jaxbench.paths import hide_paths, user_path
from tests.conftest import MICRO, refusal


@pytest.fixture
def nobody(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_path_without_a_home_is_bad_input(nobody):
    assert str(user_path("a/b")) == "a/b"
    no_home = "there is no such home folder"
    refusal(user_path, "~/a", "give data.path", told=f"~/a: {no_home}; give data.path")
    refusal(user_path, "~nobody-has-this/a", told=f"~nobody-has-this/a: {no_home}")


def test_without_a_home_there_is_no_compile_cache(run_cli, nobody):
    done = run_cli(f"--experiment={MICRO}", "--mode=describe")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flag", ["--workdir=~/x", "--compile_cache=~/x", "--resume=~/x"])
def test_paths_of_flags_say_that_there_is_no_home(refused, nobody, flag):
    refused(f"--experiment={MICRO}", flag, told="no such home folder")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("--xla_a=2 --xla_dump_to=/data/jo/dump", "--xla_a=2 --xla_dump_to=..."),
        ("/home/jo smith/runs, 59.7 GiB free", ".../runs, 59.7 GiB free"),
        ("'/home/jo smith/a b/c' and '/data/jo'", "'.../c' and '...'"),
        ("/home/jo smith2/x.py:12", "... smith2/x.py:12"),
        ("~jo/a ~/b/", "... ..."),
        ("images/s, 1 / 2, runs/a/run.json", "images/s, 1 / 2, runs/a/run.json"),
        ("https://docs.jax.dev/en/latest", "https://docs.jax.dev/en/latest"),
    ],
)
def test_absolute_paths_are_hidden(monkeypatch, text, hidden):
    monkeypatch.setenv("HOME", "/home/jo smith")
    monkeypatch.setattr(os, "getcwd", lambda: "/home/jo smith/a b")
    assert hide_paths(text) == hidden


def test_without_a_home_paths_are_hidden_all_the_same(nobody):
    assert hide_paths("a /b/c") == "a ..."
