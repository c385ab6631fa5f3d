"""README and the pages for users: every command in them is one that runs.

Of the tutorials about custom code every block is written or run.
"""

import csv
import datetime
import importlib
import pathlib
import re
import shlex
from collections.abc import Iterable, Iterator

import pytest
from absl import flags

from tests.conftest import ROOT, run_json
from tests.in_process import fresh_process_state

PAGES = ("README.md", "CONTRIBUTING.md", "results/README.md")
PAGES += tuple(f"docs/{name}.md" for name in ("index", "install", "tour", "what-fits", "faq"))
PAGES += tuple(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/howto/*.md")))
# They are given the flags of jaxbench.main.
_SCRIPTS = ("launch/slurm.sbatch",)
_BLOCK = re.compile(r"^```(.*)\n((?s:.*?))^```$", re.MULTILINE)
# What ends a command's arguments.
_ENDS = ("|", ">", "2>&1", "&")


def shell_lines(text: str) -> Iterator[str]:
    """Yields the lines of a text's code blocks, continued ones joined, and its code spans."""
    for language, block in _BLOCK.findall(text):
        if language in ("", "bash", "sh", "console"):
            yield from block.replace("\\\n", " ").splitlines()
    rest = _BLOCK.sub("", text)
    # A span without flags is only a name.
    yield from (span for span in re.findall(r"`([^`]+)`", rest) if " --" in span)


def commands(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields [command, argument, ...] for each command line of jaxbench."""
    for line in lines:
        for part in line.removeprefix("$ ").split(" && "):
            if not re.match(r"(\w+=\S+ )*(jaxbench|python|srun|sbatch|launch/\S+) ", part):
                continue
            words = shlex.split(part, comments=True)
            words = words[: next((at for at, word in enumerate(words) if word in _ENDS), None)]
            for at, word in enumerate(words if "--help" not in words else ()):
                if word in _SCRIPTS:
                    yield ["main", *words[at + 1 :]]
                elif word == "jaxbench":
                    yield words[at + 1 :]
                elif word.startswith("jaxbench.") and words[at - 1] == "-m":
                    yield [word.removeprefix("jaxbench."), *words[at + 1 :]]
                else:
                    continue
                break


def parse(command: str, *arguments: str) -> None:
    """Parses a command line and checks it as far as the command does before it runs anything."""
    from jaxbench.cli import entry_point
    from jaxbench.sweeps.grid import parse_grid

    module = importlib.import_module(f"jaxbench.{command}")
    if command in ("main", "offers", "sweep"):
        from jaxbench.cli.main_flags import chosen_mode
    rest, spec, overrides = entry_point.take_experiment([command, *arguments])
    positional = flags.FLAGS(rest)[1:]
    if spec is not None and pathlib.Path(spec.partition(":")[0]).suffix == ".py":
        spec, overrides = "quickstart", []  # the reader's own file
    if command == "main" and not {"--experiment=list", "--target=list"} & {*arguments}:
        assert not positional
        chosen_mode(entry_point.load_experiment(spec or "", overrides))
    elif command == "offers":
        module.parse_accelerators(flags.FLAGS.accelerator)
        chosen_mode(entry_point.load_experiment(spec or "quickstart", overrides))
    elif command == "sweep":
        assert not positional
        module.check_sweep_flags()
        axes = parse_grid(flags.FLAGS.grid).items()
        for field, values in axes or [("experiment", [spec])]:
            for value in values:
                of_field = [f"--experiment.{field}={value}"] * (field != "experiment")
                own_spec = spec if of_field else value
                config = entry_point.load_experiment(own_spec, [*overrides, *of_field])
                chosen_mode(config)


def refused(lines: Iterable[list[str]]) -> list[str]:
    """Returns the command lines that their commands refuse, with the reasons."""
    reasons = []
    for command in lines:
        with fresh_process_state():
            try:
                parse(*command)
            except Exception as error:
                reasons.append(f"jaxbench {shlex.join(command)}: {error}")
    return reasons


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_the_texts_parses(page):
    text = (ROOT / page).read_text()
    found = [*commands(shell_lines(text))]
    # What is searched for otherwise is found.
    assert len(found) >= len(
        re.findall(r"^\$? ?(?:jaxbench|python -m jaxbench\S+) \w* ?--", text, re.M)
    )
    assert not refused(found)


MEASUREMENTS = sorted((ROOT / "results" / "measurements").glob("*.csv"))


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.stem)
def test_every_measurement_has_a_command_that_exists(path):
    rows = [*csv.DictReader(path.read_text().splitlines())]
    assert rows
    for row in rows:
        low, value, high = (float(row[of] or row["value"]) for of in ("low", "value", "high"))
        assert low <= value <= high and not row.keys() & {None}, row
        assert all(row[of] for of in ("what", "unit", "host", "command", "commit")), row
        assert datetime.date.fromisoformat(row["date"]) >= datetime.date(2026, 11, 21), row
    lines = {row["command"] for row in rows} - {"command gone"}
    ours = [*commands(lines)]
    assert not refused(ours)
    scripts = [line for line in lines if "python benchmarks/" in line]
    assert len(ours) + len(scripts) == len(lines)
    for line in scripts:
        script, *arguments = re.split(" --", line.partition("python ")[2])
        sources = (ROOT / script).glob("*.py") if "." not in script else [ROOT / script]
        text = "".join(source.read_text() for source in sources)
        for flag in [re.match(r"\w+", argument)[0] for argument in arguments]:
            assert flag == "experiment" or f'"{flag}"' in text, line


@pytest.mark.parametrize(
    "wrong",
    [
        "main --experiment=cnn11",
        "main --experiment=cnn10 --experiment.batchsize=3",
        "main --experiment=cnn10 --batch=3",
        "main --experiment=cnn10 --mode=describe --rounds=9",
        "sweep --experiment=cnn10 --grid=batchsize=3",
        "cost --price=3",
        "costs",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(wrong):
    with fresh_process_state(), pytest.raises(Exception, match="."):
        parse(*wrong.split())


# The pages about custom code, and the kinds of templates that they show.
TUTORIALS = {
    "custom-network": ["network", "optimizer"],
    "custom-data": ["data"],
    "custom-task": ["task"],
}
_FILE = re.compile(
    r"^```python\n# (\w+\.py)\n(.*?)^```\n(?:[^`]|`[^`])*?^```sh\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _text(page: str) -> str:
    return (ROOT / "docs" / "howto" / f"{page}.md").read_text()


FILES = {(page, m[1]): (m[2], m[3]) for page in TUTORIALS for m in _FILE.finditer(_text(page))}


@pytest.mark.parametrize(("page", "file"), FILES)
def test_a_file_of_a_tutorial_does_what_its_commands_say(run_cli, tmp_path, page, file):
    code, commands = FILES[page, file]
    (tmp_path / file).write_text(code)
    for number, line in enumerate(commands.splitlines()):
        program, command, *args = shlex.split(line)
        assert (program, command) == ("jaxbench", "main") and f"--experiment={file}" in args
        if "--mode=describe" not in args:
            args += [f"--workdir=run{number}", "--telemetry_s=0"]
            args += ["--experiment.num_devices=2", "--experiment.max_steps=4"]
        done = run_cli(*args)
        assert done.returncode == 0, (line, done.stderr)
    if page == "custom-task":
        assert 0 < run_json(tmp_path / "run0")["summary"]["eval_metrics"]["confidence"] < 1


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_shows_its_templates_and_leaves_no_block_out(page):
    text = _text(page)
    blocks = _COMMANDS.findall(text)
    kinds = []  # test_custom_code.py runs the templates
    for block in blocks:
        if block.startswith("jaxbench new "):
            new, main = block.splitlines()
            kind, file = new.removeprefix("jaxbench new ").split()
            kinds.append(kind)
            assert main.startswith(f"jaxbench main --experiment={file}")
    assert kinds == TUTORIALS[page]
    files = [file for other, file in FILES if other == page]
    assert len(files) == text.count("```python") == len(blocks) - len(kinds)
