"""A card to publish: with the records that it follows from, without host names and paths."""

import csv
import io
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
from jaxbench.files import DOCUMENT_BYTES, read_text
from jaxbench.paths import check_can_be_made, user_path

MOST_BYTES = 200_000
# What a digest of a file takes in card.json, and what the new card has more than the old one.
_DIGEST, _SPARE = 140, 1000
_KINDS = {"throughput": ("stage", "train_step"), "compile": ("function", "train_step")}
_SUMMARY = ("kind", "status", "telemetry")
# Whose values are hosts, such as TPU_WORKER_HOSTNAMES; whose values are texts that may name one.
_HOSTS = re.compile(r"(?i)hostname|address|^TPU_NAME$")
_TEXTS = ("found", "advice", "reason", "text", "variables")


def submit(path: str, out: str) -> Iterator[str]:
    """Copy a card and its runs' records into a folder that may be published; yield what to say.

    Of the records only those remain that the card follows from. If the folder would be too large,
    readings of sensors are left out, the largest first, then the last runs.

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
    name = card.environment["hostname"]
    card = msgspec.convert(_without_host(msgspec.to_builtins(card), name) | {"files": {}}, Card)
    runs = [run for run in dict.fromkeys(one.run for one in card.figures()) if run]
    files: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for run in runs:
            if (source / run / "run.json").is_file():
                try:
                    files |= {f"{run}/{file}": text for file, text in _records(source / run, name)}
                except (csv.Error, LookupError, TypeError, ValueError) as error:
                    raise BadInput(f"{source / run}: damaged records: {error}") from error
        # What may be left out, the last first: readings of sensors, then runs, the soak at last.
        spare = [[f"{run}/run.json", f"{run}/metrics.jsonl"] for run in reversed(runs)]
        spare += sorted(([n] for n in files if n.endswith(".csv")), key=lambda n: len(files[n[0]]))
        card_bytes = write_card(folder, card).stat().st_size + _SPARE
        while spare and card_bytes + sum(len(t) + _DIGEST for t in files.values()) > MOST_BYTES:
            names = spare.pop()
            yield f"{names[0]}: left out, because the folder would be larger than 200 kB"
            for name in names:
                files.pop(name, None)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        size = write_card(folder, card).stat().st_size + sum(map(len, files.values()))
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}") from error
    if problems := check_card(folder):
        raise BadInput(f"--out={out}: is refused by `jaxbench qualify check`: {problems[0]}")
    result = "check passes" if size <= MOST_BYTES else "more than the 200 kB of results/"
    yield f"{folder / CARD}: {len(files) + 1} files, {size / 1e3:.0f} kB; {result}"


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
    """Yield the records of a run that a card follows from: (name of the file, its text)."""
    document = _without_host(json.loads(read_text(run / "run.json")), host)
    summary = document.get("summary") or {}
    telemetry = summary.get("telemetry")
    document["summary"] = {name: summary[name] for name in _SUMMARY if name in summary}
    # What may name people and places.
    document |= {"command_line": [], "working_directory": "", "pid": 0}
    lines = [json.loads(line) for line in read_text(run / "metrics.jsonl").splitlines()]
    kept = [line for line in lines if line["kind"] in _KINDS]
    kept = [line for line in kept if line.get(_KINDS[line["kind"]][0]) == _KINDS[line["kind"]][1]]
    yield "run.json", _compact(document)
    yield "metrics.jsonl", "".join(map(_compact, kept))
    samples = run / "telemetry.csv"
    is_small = samples.is_file() and samples.stat().st_size < DOCUMENT_BYTES
    if telemetry and is_small and (rows := _of_devices(samples)):
        yield samples.name, rows


def _compact(content: Any) -> str:
    return json.dumps(hidden_paths(content), separators=(",", ":")) + "\n"


def _of_devices(path: pathlib.Path) -> str:
    """Return the readings of the devices in telemetry.csv; nothing follows from the host's."""
    table = csv.DictReader(io.StringIO(read_text(path)))
    rows = [row for row in table if row.get("kind") != "host"]
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, table.fieldnames, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
