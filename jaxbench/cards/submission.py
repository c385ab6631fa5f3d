"""A card to publish: with the records that it follows from, without host names and paths."""

import json
import math
import pathlib
import re
from typing import Any

import msgspec

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import (
    CARD,
    card_path,
    hidden_paths,
    make_folder,
    read_card,
    write_card,
)
from jaxbench.cards.check import check_card
from jaxbench.cards.from_runs import SOAK, runs_beside
from jaxbench.errors import BadInput
from jaxbench.files import open_regular, read_lines, read_text
from jaxbench.records.reader import read_records

MOST_BYTES = 200_000
# Whose values are hosts, such as TPU_WORKER_HOSTNAMES; whose values are texts that may name one.
_HOSTS = re.compile(r"(?i)hostname|address|^TPU_NAME$")
_TEXTS = ("detail", "advice", "reason", "text", "variables", "distorters")
# What a card follows from, and what makes it a run for other readers.
_DOCUMENT = ("schema_version", "experiment", "mode", "status", "started_at", "telemetry_s")
_ENVIRONMENT = ("backend", "device_kind", "num_devices", "cpu", "cpu_cores")
_CONFIG = ("name", "batch_size", "precision")
_MACHINE: dict[str, Any] = {"command_line": [], "working_directory": "", "pid": 0}


def submit(path: str, out: str) -> str:
    """Copy a card and its runs' records into a folder that may be published; return what to say.

    Of the records only those remain that the card follows from. What would make the folder larger
    than 200 kB is left out: the longest readings of sensors first, records of networks last.

    Raises:
      BadInput: the card is damaged or impossible, or the folder is used, or cannot be made.
    """
    if problems := check_card(path):
        raise BadInput(f"{path}: is refused by `jaxbench qualify check`: {problems[0]}")
    card, source = read_card(path), card_path(path).parent
    runs = sorted(runs_beside(card, source), key=lambda run: run != SOAK)
    content = msgspec.to_builtins(card)
    card = msgspec.convert(_without_host(content, content["environment"]["hostname"]), Card)
    left_out = []
    try:
        pieces = [(run, _records(source, run)) for run in runs]
        readings = [(run, _readings(source / run / "telemetry.csv")) for run in runs]
        pieces += sorted(readings, key=lambda piece: sum(map(len, piece[1].values())))
        folder = make_folder(out)
        size = write_card(folder, card).stat().st_size
        for run, texts in pieces:
            if size + sum(map(len, texts.values())) > MOST_BYTES:
                left_out += [f"{run}/{name}" for name in texts]
                continue
            (folder / run).mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                size += (folder / run / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{error.filename or out}: {error.strerror}") from error
    if problems := check_card(folder):
        raise BadInput(f"--out={out}: is refused by `jaxbench qualify check`: {problems[0]}")
    without = f"; no room for {', '.join(left_out)}" if left_out else ""
    return f"{folder / CARD}: {size / 1e3:.0f} kB with the records of {len(runs)} run(s){without}"


def _records(source: pathlib.Path, run: str) -> dict[str, str]:
    """Return {name of a file: its text} of what a card follows from in a run."""
    whole = json.loads(read_text(source / run / "run.json"))
    document = {key: whole[key] for key in _DOCUMENT} | _MACHINE
    for name, kept in (("config", _CONFIG), ("environment", _ENVIRONMENT)):
        document[name] = {key: whole[name][key] for key in kept if key in whole[name]}
    summary, telemetry = {"status": whole["status"]}, (whole.get("summary") or {}).get("telemetry")
    if telemetry:
        devices = telemetry.get("devices", {}) if run == SOAK else {}
        telemetry |= {"devices": devices, "errors": {}}
    document["summary"] = summary | {"telemetry": telemetry}
    lines = [
        line
        for line in read_records(source / run)
        if "train_step" in (line.get("stage"), line.get("function"))
    ]
    texts = {"run.json": [document], "metrics.jsonl": [*lines, {"kind": "summary", **summary}]}
    return {
        name: "".join(f"{json.dumps(hidden_paths(one), separators=(',', ':'))}\n" for one in parts)
        for name, parts in texts.items()
    }


def _readings(path: pathlib.Path) -> dict[str, str]:
    """Return the same of the devices' readings in telemetry.csv; nothing follows from the host's.

    Of a file that is too large in any case only the beginning is read.
    """
    if not path.is_file():
        return {}
    text = ""
    with open_regular(path, most_bytes=math.inf, encoding="utf-8", errors="replace") as file:
        lines = read_lines(file)
        header = next(lines, "")
        for line in lines:
            if ",host," not in line:
                text += line
            if len(text) > MOST_BYTES:
                break
    return {path.name: header + text} if text else {}


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
