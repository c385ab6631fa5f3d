"""The texts: every command in them is typed here, in the order of each page.

What takes long is made short: a small experiment, few steps, short windows, two values of a grid.
"""

import csv
import datetime
import importlib
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator

import pytest
from absl import flags

from jaxbench.cli import entry_point, main_flags
from jaxbench.sweeps.grid import make_trials, parse_grid
from tests.cards import made
from tests.conftest import MICRO, ROOT
from tests.data.encoded_images import write_folder
from tests.in_process import fresh_process_state, run_command
from tests.integration.conftest import program, run_program
from tests.recorded import write_repeats

PAGES = ["README", *(f"docs/{name}" for name in ("index", "install", "tour", "what-fits", "faq"))]
PAGES += [f"docs/howto/{path.stem}" for path in sorted(ROOT.glob("docs/howto/*.md"))]
PAGES += ["docs/concepts/prediction", "results/README"]
# {part of a command line: why it is parsed and not run}
ONLY_PARSED = {
    "--distributed=|--coordinator_address=": "several hosts; test_processes, test_slurm",
    "sweep --experiment=(cnn10|wrn28_10|gpt124m)": "hours, or a cluster; test_sweep, test_ray",
    "--target=(tpu:v2|gpu:titanx|gpu:v100|gpu:rtx2080ti)": "hours, with compilers; test_targets",
    "^qualify( --|$)": "a minute at least; test_qualify",
    "--xla_flags=--xla_gpu": "a GPU",
    "--deterministic|runs/(equal|fastest)": "whole trainings; test_compare, test_backend_flags",
    "--resume=runs/mine": "a run that was killed; test_resume",
    "--anchor=|calibrat": "rates that were measured; test_prediction, test_rates_to_fit",
    "^forecast": "a card that is measured later; test_forecast",
    "report rented": "machines that were rented; test_offers",
}
_PART = re.compile(r"^```(.*?)\n(.*?)^```$|`(jaxbench [^`]* --[^`]*)`", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(
    r"(?:\w+=\S+ |srun .*)*(?:jaxbench |python -m jaxbench\.|sbatch (?=launch/slurm))(.*)"
)


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Yields (language, content) of a text's code blocks, and (sh, command) of its commands."""
    for language, block, span in _PART.findall(text):
        yield (language or "sh", block) if block else ("sh", span)


def commands(script: str) -> Iterator[list[str]]:
    """Yields the words after `jaxbench` of each command line."""
    for line in re.split(r"\n| && |; (?:do )?", script):
        if match := _COMMAND.match(line.strip()):
            line = match[1].replace("launch/slurm.sbatch", "main").replace("$n", "n")  # of a loop
            yield shlex.split(line, comments=True)


def shortened(words: list[str]) -> list[str]:
    """Returns a command line that takes seconds: with the smallest network that does it."""
    text = shlex.join(words)
    if words[0] not in ("main", "sweep") or "=list" in text or "--target=" in text:
        return words
    name = r"\1:tiny" if "--experiment.data." in text else f"--experiment={MICRO}"
    words = [re.sub(r"^(--experiment=\w+)(:\w+)*$", name, word) for word in words]
    words = [re.sub(r"^(--grid=[\w.]+=[^,]+,[^,]+),.*", r"\1", word) for word in words]
    if any(f"--mode={mode}" in text for mode in ("throughput", "scaling")):
        # If a step takes less than a millisecond, a busy machine makes runs invalid.
        large = [] if ":tiny" in name else ["--experiment.model.hidden=(32,)"]
        return [*words, *large, "--rounds=6", "--window_s=0.1"]
    few = ["--experiment.num_devices=2", "--experiment.max_steps=6"]
    return words if "--mode=" in text else words + few


def parse(command: str, *arguments: str) -> None:
    """Parses a command line and checks it before anything is run; raises what is wrong."""
    module = importlib.import_module(f"jaxbench.{command}")
    rest, spec, overrides = entry_point.take_experiment([command, *arguments])
    assert not flags.FLAGS(rest)[1:] or command in ("calibrate", "compare", "forecast", "report")
    if command == "main":
        main_flags.chosen_mode(entry_point.load_experiment(spec, overrides))
    elif command == "sweep":
        module.check_sweep_flags()
        for trial in make_trials(spec, overrides, parse_grid(flags.FLAGS.grid)):
            main_flags.chosen_mode(trial.config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all pages, with the files that a reader has."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "docs" / "sample", folder / "docs" / "sample")
    (folder / "book.txt").write_text("All work and no play. " * 1000)
    write_folder(folder / "images")
    for split, number in itertools.product(("train", "val"), range(8)):
        shutil.copytree(folder / "images" / split / "ape", folder / "images" / split / str(number))
    for side, runs in enumerate(("baseline", "new", "server"), 1):
        write_repeats(folder / "runs" / runs, *(side * rate for rate in (99, 100, 101)), host=runs)
    for card in ("runs/qualify/first", "runs/qualify/second", "results/node1", "results/node2"):
        made.write(folder / card)
    return folder


DONE = set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(folder, page, monkeypatch):
    text, printed = (ROOT / f"{page}.md").read_text(), ""
    # Predictions are the same everywhere: the pages show what is printed, 80 or 100 columns wide.
    predicted = [block for _, block in parts(text) if "redicted, not measured" in block]
    lines = "".join(predicted).splitlines()
    monkeypatch.setenv("COLUMNS", "100" if any(len(line) > 80 for line in lines) else "80")
    for language, content in parts(text):
        if language == "python" and (name := re.match(r"# (\w+\.py)\n", content)):
            (folder / name[1]).write_text(content)
        for shown in content.split("...\n") if content in predicted else ():
            assert shown in printed
        for words in commands(content) if language == "sh" else ():
            line = shlex.join(words)
            if any(re.search(part, line) for part in ONLY_PARSED):
                with fresh_process_state():
                    parse(*words)
            elif (line := shlex.join(shortened(words))) not in DONE:
                DONE.add(line)
                printed = typed(folder, shlex.split(line))


def typed(folder, words):
    """Runs a command that must succeed; returns what it prints."""
    command, *arguments = words
    if "--local_processes=2" in words:
        done = run_program(program(*arguments, command=command), folder)
    else:
        done = run_command(folder, *arguments, module=f"jaxbench.{command}")
    assert done.returncode == 0, "\n".join([shlex.join(words), done.stdout, done.stderr])
    return done.stdout


MEASUREMENTS = sorted((ROOT / "results" / "measurements").glob("*.csv"))


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.stem)
def test_every_measurement_has_a_command_that_exists(path):
    rows = [*csv.DictReader(path.read_text().splitlines())]
    for row in rows:
        low, value, high = (float(row[of] or row["value"]) for of in ("low", "value", "high"))
        assert low <= value <= high and not row.keys() & {None}, row
        assert all(row[of] for of in ("what", "unit", "host", "command", "commit")), row
        assert datetime.date.fromisoformat(row["date"]) >= datetime.date(2026, 11, 21), row
    for line in {row["command"] for row in rows}:
        if "python benchmarks/" in line:
            script, *arguments = re.split(" --", line.partition("python ")[2])
            sources = (ROOT / script).glob("*.py") if "." not in script else [ROOT / script]
            text = "".join(source.read_text() for source in sources)
            for flag in [re.match(r"\w+", argument)[0] for argument in arguments]:
                assert flag == "experiment" or f'"{flag}"' in text, line
        else:
            [words] = commands(line)
            with fresh_process_state():
                parse(*words)
