"""README and the pages for users: short enough, and every command in them is one that runs."""

import importlib
import pathlib
import re
import shlex
from collections.abc import Iterator

import pytest
from absl import flags

from tests.conftest import ROOT
from tests.in_process import fresh_process_state

PAGES = ("README.md", "CONTRIBUTING.md", *("docs/install.md", "docs/tour.md", "results/README.md"))
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


def commands(text: str) -> Iterator[list[str]]:
    """Yields [command, argument, ...] for each command line of jaxbench in a text."""
    for line in shell_lines(text):
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


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_the_texts_parses(page):
    refused = []
    for command in commands((ROOT / page).read_text()):
        with fresh_process_state():
            try:
                parse(*command)
            except Exception as error:
                refused.append(f"jaxbench {shlex.join(command)}: {error}")
    assert not refused, "\n".join(refused)


def test_commands_are_found_and_what_does_not_exist_is_refused():
    text = """
```python
jaxbench = None
```
jaxbench calls it with those of these.
```
A=1 python -m jaxbench.main --experiment=cnn10 \\
    --mode=throughput  # comment
jaxbench sweep --grid=batch_size=1,2 | tail
srun -n 2 python -m jaxbench.main --experiment=cnn10
sbatch launch/slurm.sbatch --experiment=cnn10
quickstart on 1 x cpu
```
`jaxbench cost` and `jaxbench cost --list_offers`
"""
    assert [*commands(text)] == [
        ["main", "--experiment=cnn10", "--mode=throughput"],
        ["sweep", "--grid=batch_size=1,2"],
        ["main", "--experiment=cnn10"],
        ["main", "--experiment=cnn10"],
        ["cost", "--list_offers"],
    ]
    for wrong in (
        ["main", "--experiment=cnn11"],
        ["main", "--experiment=cnn10", "--experiment.batchsize=3"],
        ["main", "--experiment=cnn10", "--batch=3"],
        ["main", "--experiment=cnn10", "--mode=describe", "--rounds=9"],
        ["sweep", "--experiment=cnn10", "--grid=batchsize=3"],
        ["cost", "--price=3"],
        ["costs"],
    ):
        with fresh_process_state(), pytest.raises(Exception, match="."):
            parse(*wrong)


def test_readme_fits_on_a_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
