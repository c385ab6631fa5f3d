"""The program `jaxbench`: its commands, and what it answers to mistakes."""

import runpy
import sys
from xml.etree import ElementTree

import pytest

import jaxbench
from jaxbench import terminal
from jaxbench.cli import COMMANDS
from tests.conftest import ROOT, refusal


def test_help_has_a_line_for_each_command(run_cli):
    done = run_cli("--help", module="jaxbench")
    assert done == run_cli(module="jaxbench") and (done.returncode, done.stderr) == (0, "")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == [*COMMANDS]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert run_cli("--version", module="jaxbench").stdout == f"jaxbench {jaxbench.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_deleted_working_folder_is_one_line(run_cli, tmp_path, monkeypatch, command):
    """Deleted when the command has begun; then also for the API."""
    monkeypatch.setattr(terminal, "open_closed_streams", tmp_path.rmdir)
    done = run_cli(module=f"jaxbench.{command}")
    line = "the working folder cannot be used (No such file or directory): change to another one"
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"jaxbench: {line} (cd)\n"


def test_a_deleted_working_folder_is_bad_input_of_the_api(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    refusal(jaxbench.train, told="the working folder cannot be used")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["swep"], "no command 'swep'; did you mean jaxbench sweep?"),
        (["qualfy"], "did you mean jaxbench qualify?"),
        (["trian"], "did you mean jaxbench main --mode=train?"),
        (["run"], "did you mean jaxbench main?"),
        (["xyzzy"], "no command 'xyzzy'; must be one of main, sweep, qualify,"),
        (["cnn10:tiny"], "did you mean jaxbench main --experiment=cnn10:tiny?"),
        (["--experiment=cnn10"], "did you mean jaxbench main?"),
        (["--json"], "no command '--json'"),
        (["report", "--experiment=cnn10"], "--experiment: no such flag"),
        (
            ["sweep", "--experiment=quickstart", "--grid=seed=1,2", "--epochs", "3"],
            "did you mean --experiment.epochs?",
        ),
        (["doctor", "cnn10"], "'cnn10': doctor takes no arguments"),
    ],
)
def test_a_mistake_is_refused(refused, arguments, told):
    refused(*arguments, told=told, module="jaxbench")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_short_and_names_its_flags(run_cli, command):
    module = f"jaxbench.{command}"
    short, whole = (run_cli(flag, module=module) for flag in ("--help", "--helpxml"))
    assert (short.returncode, short.stderr, whole.returncode) == (0, "", 0)
    lines = short.stdout.splitlines()
    # Lists in the text of a command are not wrapped.
    assert max(len(line) for line in lines if line[:1] != "*") <= 100
    assert len(lines) < 100
    if command in ("main", "sweep", "offers"):
        flags = [line.split()[0] for line in lines if line.startswith("  --")]
        assert flags[:2] == ["--experiment", "--experiment.FIELD"]
    flags = ElementTree.fromstring(whole.stdout).iter("flag")
    names = [flag.findtext("name") for flag in flags if flag.findtext("key") == "yes"]
    assert all(f"--{name}" in short.stdout for name in names)
    assert names or command == "new"


def test_a_command_is_the_module_and_not_the_attribute(run_cli, monkeypatch):
    """The package may have functions of these names."""
    monkeypatch.setattr(jaxbench, "cost", lambda: None, raising=False)
    done = run_cli("cost", "--list_offers", module="jaxbench")
    assert (done.returncode, done.stderr) == (0, "")
    assert done == run_cli("--list_offers", module="jaxbench.cost")


def test_ctrl_c_during_the_imports_of_a_command_is_one_line(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    main = runpy.run_path(str(ROOT / "jaxbench" / "__main__.py"))["main"]
    monkeypatch.setattr(runpy, "run_module", interrupt)
    monkeypatch.setattr(sys, "argv", ["jaxbench", "qualify"])
    assert main() == 130
    assert capsys.readouterr().err == "jaxbench: interrupted\n"
