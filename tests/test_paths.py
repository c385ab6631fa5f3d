"""What is no local path; home folders that do not exist; paths that are hidden."""

import os
import pathlib
import pwd

import pytest

from jaxbench.paths import hide_paths, user_path
from tests.conftest import MICRO, refusal


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("gs://bucket/runs", "only local paths: `gcloud storage cp -r FROM TO`"),
        (pathlib.Path("s3://bucket/x"), "`aws s3 cp --recursive FROM TO`"),
        ("abfs://box@host/x", "only local paths: copy from and to it by other means"),
        ("file:///tmp/x", "leave out file://"),
        ("https://example.org/p.csv", "download it first"),
        ("user@host:runs/x", "a local name with a colon begins with ./"),
        (r"C:\runs\x", "only local paths"),
        (r"\\server\share\x", "only local paths"),
        ("$SCRATCH/x", "the shell has not replaced $SCRATCH"),
        ("runs/${USER}/x", "has not replaced ${USER}"),
        ("runs/$(date +%F)/x", "has not replaced $(date +%F)"),
        ("runs/x\r", "cannot be printed"),
        (" runs/x", "begins or ends with a space"),
        ("a\0b", "cannot be printed"),
        ("runs/" + "x" * 300, "longer than 255 bytes"),
        ("loop/x", "too many levels of symbolic links"),
    ],
)
def test_what_is_no_local_path_is_refused(tmp_path, monkeypatch, path, told):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    refusal(user_path, path, told=told)
    assert os.listdir() == ["loop"]


def test_names_that_exist_and_local_names_with_a_colon_are_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(user_path("./host:runs")) == "host:runs"
    assert str(user_path("runs/10:30 Übung")) == "runs/10:30 Übung"
    for name in ("host:runs", "$HERE", "a ", "b\udcff"):
        os.mkdir(name)
        for path in (name, f"{name}/new", os.path.abspath(f"{name}/new")):
            assert str(user_path(path)) == path
    # Joiners of Persian and of emojis, and spaces that are not ASCII.
    for name in ("می\u200cخواهم", "👩\u200d💻", "新しい\u3000フォルダ", "a\xa0b"):
        assert str(user_path(name)) == name
    os.makedirs("gs:/bucket/x")  # as jaxbench made it of an address
    refusal(user_path, "gs://bucket/x", told="only local paths")
    assert user_path("./gs:/bucket/x").is_dir()


RESIZED = ("--experiment=resnet50", "--experiment.data.cache=resized")


@pytest.mark.parametrize(
    "arguments",
    [
        ["main", f"--experiment={MICRO}", "--workdir=gs://b/x"],
        ["main", "--experiment=resnet50", "--experiment.data.path=gs://b/x"],
        ["main", *RESIZED, "--experiment.data.cache_dir=gs://b/x"],
        ["main", f"--experiment={MICRO}", "--resume=gs://b/x"],
        ["main", f"--experiment={MICRO}", "--compile_cache=gs://b/x"],
        ["sweep", f"--experiment={MICRO}", "--grid=seed=0,1", "--sweepdir=gs://b/x"],
        ["qualify", "--out=gs://b/x"],
        ["report", "gs://b/x"],
        ["report", ".", "--out=gs://b/x.html"],
        ["compare", "gs://b/x", "gs://b/y"],
        ["cost", ".", "--offer=a", "--prices=gs://b/x"],
        ["calibrate", "--out=gs://b/x"],
        ["calibrate", "gs://b/x"],
        ["forecast", "make", "--target=gpu:h100", "--out=gs://b/x.csv"],
        ["forecast", "score", "gs://b/x.csv", "card"],
        ["new", "data", "gs://b/x.py"],
        ["cost", "gs://b/x"],
        ["offers", "--experiment=quickstart", "--accelerator=H100:1", "--out=gs://b/x"],
        ["qualify", "--fleet=gs://b/x"],
        ["qualify", "check", "gs://b/x"],
        ["qualify", "table", "gs://b/x"],
    ],
    ids=" ".join,
)
def test_no_command_makes_a_folder_of_an_address(refused, arguments):
    command, *flags = arguments
    refused(*flags, module=f"jaxbench.{command}", told="only local paths")


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("JAX_COMPILATION_CACHE_DIR", "file:///tmp/x"),
        ("JAX_COMPILATION_CACHE_DIR", "host:cache"),
        ("TFDS_DATA_DIR", "gs://bucket/x"),
    ],
)
def test_a_variable_with_an_address_is_refused_by_its_name(monkeypatch, refused, name, address):
    monkeypatch.setenv(name, address)
    refused("--experiment=wrn28_10", told=f"{name}={address}: jaxbench reads", begun=True)


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
