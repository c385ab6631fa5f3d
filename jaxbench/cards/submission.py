"""A card to publish: with the records of its runs, without host names and paths."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import CARD, card_path, hidden_paths, read_card, write_card
from jaxbench.cards.check import check_card
from jaxbench.errors import BadInput
from jaxbench.files import read_text
from jaxbench.paths import check_can_be_made, user_path

MOST_BYTES = 200_000
_KINDS = {"throughput": ("stage", "train_step"), "compile": ("function", "train_step")}
_SUMMARY = ("kind", "status", "telemetry")
# Whose values are hosts, such as TPU_WORKER_HOSTNAMES; whose values are texts that may name one.
_HOSTS = re.compile(r"(?i)hostname|address|^TPU_NAME$")
_TEXTS = ("detail", "advice", "reason", "text", "variables")


def submit(path: str, out: str) -> str:
    """Copy a card and its runs' records into a folder that may be published; return what to say.

    Of the records only those of the training step remain, without the samples of sensors.

    Raises:
      BadInput: the card is damaged or impossible, or the folder is used, or cannot be made.
    """
    if problems := check_card(path):
        raise BadInput(f"{path}: is refused by `jaxbench qualify check`: {problems[0]}")
    source, folder = card_path(path).parent, user_path(out)
    check_can_be_made(folder, "out")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"--out={out}: nothing is overwritten, name a new or empty folder")
    card = read_card(path)
    host = card.environment["hostname"]
    card = msgspec.convert(_without_host(msgspec.to_builtins(card), host), Card)
    files: dict[str, str] = {}
    try:
        for run in {one.run for one in card.figures() if one.run}:
            if (source / run / "run.json").is_file():
                files |= {f"{run}/{name}": text for name, text in _records(source / run, host)}
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        size = write_card(folder, card).stat().st_size + sum(map(len, files.values()))
    except (LookupError, TypeError, ValueError) as error:
        raise BadInput(f"{source}: damaged records: {error}") from error
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}") from error
    result = "" if size <= MOST_BYTES else "; more than the 200 kB of results/"
    return f"{folder / CARD}: {len(files) + 1} files, {size / 1e3:.0f} kB{result}"


def _without_host(value: Any, host: str, is_text: bool = False) -> Any:
    """Return JSON values without the name of a host, with or without its domain, in their texts."""
    if isinstance(value, dict):
        return {
            key: "host"
            if _HOSTS.search(key)
            else _without_host(one, host, is_text or key in _TEXTS)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_host(one, host, is_text) for one in value]
    if not is_text or not host or not isinstance(value, str):
        return value
    names = "|".join(map(re.escape, dict.fromkeys((host, host.partition(".")[0]))))
    return re.sub(rf"(?i)(?<![\w.-])({names})(\.[\w-]+)*(?![\w-])", "host", value)


def _records(run: pathlib.Path, host: str) -> Iterator[tuple[str, str]]:
    """Yield the records of a run's training step: (name of the file, its text)."""
    document = _without_host(json.loads(read_text(run / "run.json")), host)
    summary = document.get("summary") or {}
    document["summary"] = {name: summary[name] for name in _SUMMARY if name in summary}
    # What may name people and places.
    document |= {"command_line": [], "working_directory": "", "pid": 0}
    lines = [json.loads(line) for line in read_text(run / "metrics.jsonl").splitlines()]
    kept = [line for line in lines if line["kind"] in _KINDS]
    kept = [line for line in kept if line.get(_KINDS[line["kind"]][0]) == _KINDS[line["kind"]][1]]
    yield "run.json", _compact(document)
    yield "metrics.jsonl", "".join(map(_compact, kept))


def _compact(content: Any) -> str:
    return json.dumps(hidden_paths(content), separators=(",", ":")) + "\n"
