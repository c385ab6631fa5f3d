"""Write the reference pages from the code; Sphinx calls `write_pages` at the start of each build.

    python docs/generate.py

The pages are commands, experiments, fields, flags and records.md in docs/reference/.
"""

import dataclasses
import inspect
import itertools
import math
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

from jaxbench.cards import card
from jaxbench.cards.figures import FIGURES, FigureKind
from jaxbench.cards.verdict import LIMITS
from jaxbench.cli import COMMANDS, entry_point, registry
from jaxbench.config import Config, DataConfig, Experiment, ModelConfig, OptimizerConfig
from jaxbench.config.fields import describe_type
from jaxbench.models.convolution import Conv2dConfig
from jaxbench.modes.options import ALL, OPTIONS
from jaxbench.modes.predictions import read_shape
from jaxbench.schema import (
    RECORDS,
    MaxBatchResult,
    RunDocument,
    TrialFigures,
    TrialResult,
    metric_of,
)

# Classes whose fields say themselves what they mean.
DESCRIBED = (*RECORDS.values(), RunDocument, TrialResult, TrialFigures, MaxBatchResult)
# What a card consists of.
CARD_PARTS = (
    card.Part,
    card.Figure,
    card.Check,
    card.HostLoad,
    card.Verdict,
    card.Finding,
    card.Expected,
)
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
# The site's pages that jaxbench itself makes.
SAMPLES = ROOT / "build" / "sample"
_GENERATED = "<!-- Made by docs/generate.py from the code. -->\n\n"


def write_samples() -> None:
    """Make the reports of the committed runs and of the committed card, as a user would."""
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for name, source in {"report": "docs/sample", "card": "results"}.items():
        args = ["jaxbench.report", source, f"--out={SAMPLES / f'sample-{name}.html'}"]
        command = [sys.executable, "-m", *args]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=env, check=True)


def write_pages() -> None:
    """Write every page whose text has changed."""
    experiments = {name: registry.load(name) for name in registry.available()}
    commands = read_commands()
    pages = {
        "commands": commands_page(commands),
        "experiments": experiments_page(experiments),
        "fields": fields_page(experiments),
        "flags": flags_page(commands),
        "records": records_page(),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages.items():
        path = FOLDER / f"{name}.md"
        text = _GENERATED + text
        # An unchanged page is not built again.
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


class Flag(NamedTuple):
    name: str
    meaning: str
    default: str
    type: str
    choices: list[str]


class Command(NamedTuple):
    """A command as its own --helpxml describes it.

    Attributes:
      usage: the docstring of its module.
      flags: its own flags, by name.
    """

    name: str
    usage: str
    flags: list[Flag]


def read_commands() -> list[Command]:
    """Ask every command of jaxbench for its help."""
    return [_read_command(name) for name in COMMANDS]


def _read_command(name: str) -> Command:
    args = [sys.executable, "-m", f"jaxbench.{name}", "--helpxml"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True, env=env, check=True)
    help_ = ElementTree.fromstring(done.stdout)
    flags = [
        Flag(
            flag.findtext("name"),
            # absl puts the choices before the meaning.
            re.sub(r"^<[^>]*>: ", "", flag.findtext("meaning")),
            flag.findtext("default"),
            flag.findtext("type"),
            [value.text for value in flag.iter("enum_value")],
        )
        for flag in help_.iter("flag")
        if flag.findtext("key") == "yes"
    ]
    return Command(name, help_.findtext("usage"), sorted(flags))


def commands_page(commands: list[Command]) -> str:
    lines = [
        "# Commands",
        "",
        "`jaxbench COMMAND ...` is the same as `python -m jaxbench.COMMAND ...`. Every command has "
        "`--help`; [Flags](flags.md) explains the flags of all of them.",
        "",
        # How they end.
        entry_point.__doc__.partition("\n\n")[2],
    ]
    rows = [(f"[`{name}`](#jaxbench-{name})", purpose) for name, purpose in COMMANDS.items()]
    lines += [*_table(("command", "what it does"), rows), ""]
    for command in commands:
        anchor = f"jaxbench-{command.name}"
        lines += [f"## jaxbench {command.name}", "", command.usage.strip(), ""]
        lines += [f"[Its flags](flags.md#{anchor}).", ""] if command.flags else []
    return "\n".join(lines)


def flags_page(commands: list[Command]) -> str:
    lines = [
        "# Flags",
        "",
        "Flags are written `--NAME=VALUE` or `--NAME VALUE`; one that is true or false also as "
        "`--NAME` and `--noNAME`. The [fields](fields.md) of an experiment are set with "
        "`--experiment.FIELD=VALUE`.",
        "",
    ]
    for command in filter(lambda command: command.flags, commands):
        lines += [f"## jaxbench {command.name}", "", f"```{{program}} jaxbench-{command.name}\n```"]
        if command.name in ("main", "sweep"):
            lines += ["", _EXPERIMENT_FLAG]
        if command.name == "sweep":
            lines += ["", "The flags of `jaxbench main` are for every trial of the sweep.", ""]
        for flag in command.flags:
            modes = OPTIONS[flag.name].any_modes if command.name == "main" else ALL
            lines += ["", *_describe_flag(flag, modes)]
        lines.append("")
    return "\n".join(lines)


_EXPERIMENT_FLAG = """```{option} --experiment=NAME
The [experiment](experiments.md): `NAME`, a path to your own `FILE.py`, or `list`. `:VARIANT`,
`:tiny` or both may follow, as in `resnet50:synthetic:tiny`.
```

```{option} --experiment.FIELD=VALUE
Override a [field](fields.md) of the experiment.
```"""


def _describe_flag(flag: Flag, modes: tuple[str, ...]) -> Iterator[str]:
    value = "|".join(flag.choices)
    if not value and flag.type != "bool":
        value = {"int": "N", "float": "X"}.get(flag.type, "TEXT")
    yield f"```{{option}} --{flag.name}" + (f"={value}" if value else "")
    yield _escape(flag.meaning)
    yield ""
    if flag.default not in (None, "", "None", "[]"):
        yield f"Default: `{flag.default}`."
    if modes != ALL:
        yield f"Modes: {_codes(modes)}."
    yield "```"


def experiments_page(experiments: dict[str, Experiment]) -> str:
    texts = registry.docstrings()
    rows = []
    for name, config in experiments.items():
        link = f"[`{name}`](#{_anchor(name)})"
        cells = [_sentence(texts[name], *heads) for heads in (("Hardware",), ("Expected", "Seen"))]
        rows.append((link, *_network_and_data(config), *map(_escape, cells)))
    head = ("`--experiment=`", "network and parameters", "data", "hardware and time", "result")
    lines = [
        "# Experiments",
        "",
        "[What fits where](../what-fits.md) says which of them fit a GPU. `--experiment=list` "
        "prints a line for each.",
        "",
        *_table(head, rows),
        "",
        "`NAME:tiny` is the same experiment, shrunk to run in about a minute on two CPU cores. A "
        "variant may also be written with a colon: `resnet50:synthetic` is `resnet50_synthetic`. "
        "Fields that are not listed have their [default](fields.md).",
        "",
    ]
    for name, config in experiments.items():
        text = _as_paragraphs(texts[name])
        lines += [f"({_anchor(name)})=", f"## {name}", "", text, ""]
        rows = [(f"`{path}`", f"`{value}`") for path, value in _changed(config)]
        lines += [*_table(("field", "value"), rows), ""]
    return "\n".join(lines)


def _network_and_data(config: Experiment) -> tuple[str, str]:
    """Return an experiment's network with its number of parameters, and its data, in words."""
    if not isinstance(config, Config):
        return "one convolution", "synthetic"
    data, (_, network) = config.data, read_shape(config)
    what = "x".join(map(str, data.example_shape)) + (" tokens" if data.sequence_length else "")
    source = data.name if data.source == "tfds" else data.source
    parameters = f"{network['parameters'] / 1e6:,.3g} M"
    return f"{network['model']}, {parameters}", f"{source}, {what}"


def _sentence(docstring: str, *heads: str) -> str:
    """Return the first sentence under the first of these headings that an experiment has."""
    for head in heads:
        pattern = rf"(?:^|\s){head}: ((?:(?!\s[A-Z][a-z]+: ).)*)"
        if found := re.search(pattern, docstring, re.DOTALL):
            sentence = re.split(r"\.(?=\s|$)", " ".join(found[1].split()))[0]
            # Flags are too wide for a table; the experiment's section has them.
            return re.sub(r" \([^()]*`[^()]*\)|; [^;]*`.*", "", sentence)
    return ""


def _as_paragraphs(docstring: str) -> str:
    """Begin a paragraph at each of an experiment's headings, and break its commands again."""
    text = re.sub(r"\n(?=[A-Z][a-z]+( [a-z]+)?: )", "\n\n", docstring)
    return re.sub(r"(?<=\S) {4,}", " \\\\\n        ", text)


def _changed(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of the fields that do not have their default."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            if field.name == "model":
                yield "model", type(value).__name__
            yield from _changed(value, f"{prefix}{field.name}.")
        elif (field.name != "name" or prefix) and value != field.default:
            yield f"{prefix}{field.name}", _literal(value)


def fields_page(experiments: dict[str, Experiment]) -> str:
    lines = [
        "# Fields",
        "",
        "An experiment is a dataclass. `--experiment.FIELD=VALUE` overrides one of its fields, as "
        "in `--experiment.batch_size=512` or `--experiment.optimizer.name=adam`. "
        "`--mode=describe` shows the values of all of them.",
        "",
        "A field *only with* a value of another one has no effect elsewhere: a warning names it, "
        "and it is left at its default.",
        "",
        "## Training experiments",
        "",
        *_describe_fields(Config, ""),
        "## data",
        "",
        *_describe_fields(DataConfig, "data."),
        "## optimizer",
        "",
        *_describe_fields(OptimizerConfig, "optimizer."),
    ]
    for model in sorted(_models(experiments), key=lambda cls: cls.__name__):
        used = [
            name
            for name, config in experiments.items()
            if type(getattr(config, "model", None)) is model
        ]
        links = ", ".join(f"[`{name}`](experiments.md#{_anchor(name)})" for name in used)
        lines += [f"## model: {model.__name__}", "", f"Of the experiments {links}.", ""]
        # Several models have a field of the same name: none of them is *the* target of a link.
        lines += _describe_fields(model, "model.", is_target=False)
    lines += ["## The experiment conv2d", ""]
    lines += _describe_fields(Conv2dConfig, "", is_target=False)
    return "\n".join(lines)


def _models(experiments: dict[str, Experiment]) -> set[type[ModelConfig]]:
    return {type(config.model) for config in experiments.values() if hasattr(config, "model")}


def _describe_fields(cls: type, prefix: str, *, is_target: bool = True) -> Iterator[str]:
    hints, meanings = typing.get_type_hints(cls), meanings_of(cls)
    for field in dataclasses.fields(cls):
        # Parts of an experiment have sections of their own; its name is no flag's.
        if dataclasses.is_dataclass(hints[field.name]) or prefix + field.name == "name":
            continue
        yield f"```{{confval}} {prefix}{field.name}"
        if not is_target:
            yield ":no-index:"
        yield f"\n{_escape(meanings[field.name])}\n"
        # What is no field stands in the help.
        conditions = [
            f"`{prefix}{selector}` = {_or(map(_literal, values))}"
            for selector, values in field.metadata.get("only_with", {}).items()
            if selector in cls.__dataclass_fields__
        ]
        only = f" Only with {' and '.join(conditions)}." if conditions else ""
        default = "" if field.default is None else f"; default `{_literal(field.default)}`"
        yield f"{_describe_values(field, hints[field.name])}{default}.{only}\n```\n"


def _describe_values(field: dataclasses.Field, hint: Any) -> str:
    if "choices" in field.metadata:
        return _or(field.metadata["choices"])
    if "custom" in field.metadata:
        return "Custom code, set in an experiment file"
    words = describe_type(hint).capitalize()
    low, high = field.metadata.get("range", (None, None))
    if low is None:
        return words
    return f"{words}, " + (f"at least {low}" if high == math.inf else f"{low} to {high}")


def records_page() -> str:
    lines = [
        "# Records",
        "",
        "The fields of a [run directory](../howto/resume.md#the-run-directory). Units are in the "
        "names. An unknown value is null or absent, an empty cell in a CSV file, and never 0. "
        "Each field that is a number or a word has a column in the CSV file of its records.",
        "",
        "## metrics.jsonl",
        "",
        "One record a line; `kind` says which.",
        "",
    ]
    for cls in RECORDS.values():
        kind = f"{cls.kind}: {cls.__name__}"
        lines += [f"### {kind}", "", *_describe_record(cls)]
    lines += ["## run.json", "", *_describe_record(RunDocument)]
    lines += ["## A sweep's results.jsonl and sweep.csv", "", *_describe_record(TrialResult)]
    lines += ["### Figures of a trial", "", *_describe_record(TrialFigures)]
    lines += ["## A sweep's max_batch.csv", "", *_describe_record(MaxBatchResult)]
    lines += ["## card.json", "", *_describe_part(card.Card)]
    for cls in CARD_PARTS:
        lines += [f"### {cls.__name__}", "", *_describe_part(cls)]
    rows = [
        (
            *(
                kind.part,
                f"`{name}`",
                _codes(kind.labels.split()),
                kind.better,
                _escape(kind.meaning),
            ),
            _bounds(kind),
        )
        for name, kind in FIGURES.items()
    ]
    head = ("part", "figure", "labels", "better", "meaning", "bounds")
    lines += [
        "### Figures of a card",
        "",
        "A bound is a number, or that many times the published `peak` of the device, its `link` or "
        "`host_link`, each `core` of the CPU, the rate at the card's fastest `matmul`, or the "
        "limit of the `sensor`. `jaxbench/cards/figures.csv` gives the reasons.",
        "",
        *_table(head, rows),
        "",
    ]
    limits = [
        (f"`{rule}.{level}`", f"{limit:g}")
        for rule, levels in LIMITS.items()
        for level, limit in levels.items()
    ]
    lines += ["### Limits of a card", "", *_table(("limit", "value"), limits), ""]
    return "\n".join(lines)


def _bounds(kind: FigureKind) -> str:
    """Return what a figure of a card cannot lie outside of."""
    bounds = {"accelerators": kind.max_accelerator, "CPU": kind.max_cpu}
    most = kind.max_cpu
    if kind.max_cpu != kind.max_accelerator:
        most = ", ".join(f"{bound} ({backend})" for backend, bound in bounds.items() if bound)
    least = f"{kind.min:,g}"
    return f"{least} to {most}" if most else f"from {least}"


def _describe_part(cls: type) -> Iterator[str]:
    """Describe a part of card.json by its docstring."""
    yield inspect.getdoc(cls).partition("\nAttributes:")[0].strip() + "\n"
    meanings = {name: meaning for name, meaning in meanings_of(cls).items() if name}
    rows = [(f"`{name}`", _escape(meaning)) for name, meaning in meanings.items()]
    yield from _table(("field", "meaning"), rows)
    yield ""


def _describe_record(cls: type) -> Iterator[str]:
    yield inspect.getdoc(cls).partition("\nAttributes:")[0].strip() + "\n"
    meanings = meanings_of(cls)
    curves = {name: metric_of(cls, name).curve for name in meanings}
    has_curve = any(curves.values())
    rows = []
    # Fields that stand side by side and mean the same share a row.
    for meaning, group in itertools.groupby(meanings, key=meanings.get):
        group = list(group)
        row = [_codes(group), _escape(meaning)]
        if has_curve:
            row.append(_codes(filter(None, (curves[name] for name in group))))
        rows.append(row)
    head = ["field", "meaning", *["curve"] * has_curve]
    yield from _table(head, rows)
    yield ""


def meanings_of(cls: type) -> dict[str, str]:
    """Return {field: meaning}: of a record from its fields, else from `Attributes:` sections.

    They are sections of the docstrings of the class and of its bases.
    """
    if cls in DESCRIBED:
        return {name: metric_of(cls, name).meaning for name in cls.__struct_fields__}
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, section = (inspect.getdoc(base) or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):
            names, _, meaning = " ".join(entry.split()).partition(": ")
            meanings |= dict.fromkeys(names.split(", "), meaning)
    return meanings


def _table(head: Any, rows: Any) -> list[str]:
    rows = [head, ["---"] * len(head), *rows]
    return [
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows
    ]


def _anchor(name: str) -> str:
    return f"experiment-{name.replace('_', '-')}"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _or(values: Any) -> str:
    *first, last = [f"`{value}`" for value in values]
    return f"{', '.join(first)} or {last}" if first else last


def _literal(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, tuple):
        return f"({','.join(map(str, value))})"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _escape(text: str) -> str:
    """Return text whose wildcards and braces Markdown leaves alone."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<>{}$~]|(?<=\w)_|_(?=\w))", r"\\\1", part)
        for part in parts
    )


if __name__ == "__main__":
    write_pages()
