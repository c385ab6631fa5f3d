"""A card to publish: with the records that it follows from, without host names and paths."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from jaxbench.cards.card_file import CARD, card_path, list_files, read_card, write_card
from jaxbench.cards.check import check_card
from jaxbench.errors import BadInput
from jaxbench.files import read_text
from jaxbench.paths import check_can_be_made, hide_paths, user_path

MOST_BYTES = 200_000
_RECORDS = ("run.json", "metrics.jsonl", "telemetry.csv")
# Of run.json: what a card does not follow from, and what may name people and places.
_PRIVATE = {"command_line", "working_directory", "pid", "git"}
_HOST = "host"


def submit(path: str, out: str) -> Iterator[str]:
    """Copy a card and its runs' records into a folder that may be published; yield what to say.

    Readings of the sensors are left out, the largest first, if the folder would be too large.

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
    host = re.compile(rf"(?<![\w.]){re.escape(card.environment['hostname'])}(?![\w])")
    runs = sorted({figure.run for figure in card.figures() if figure.run})
    files = {
        f"{run}/{name}": _cleaned(source / run / name, host)
        for run in runs
        for name in _RECORDS
        if (source / run / name).is_file()
    }
    content = json.loads(host.sub(_HOST, json.dumps(msgspec.to_builtins(card))))
    card = msgspec.convert(content, type(card))
    card_bytes = len(json.dumps(content, indent=1)) + 100 * len(files)
    samples = sorted((name for name in files if name.endswith(".csv")), key=lambda n: len(files[n]))
    try:
        while samples and sum(map(len, files.values())) + card_bytes > MOST_BYTES:
            yield f"{samples[-1]}: left out, because the folder would be larger than 200 kB"
            del files[samples.pop()]
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        written = write_card(folder, card)
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}") from error
    if problems := check_card(folder):
        raise BadInput(f"--out={out}: is refused by `jaxbench qualify check`: {problems[0]}")
    size = sum((folder / name).stat().st_size for name in [*list_files(folder), CARD])
    if size > MOST_BYTES:
        yield f"{size / 1e3:.0f} kB: more than the 200 kB that results/ takes"
    yield f"{written}: {len(files) + 1} files, {size / 1e3:.0f} kB; check passes"


def _cleaned(path: pathlib.Path, host: re.Pattern[str]) -> str:
    """Return the text of a file of records, without what is private."""
    text = read_text(path)
    if path.name == "run.json":
        content = json.loads(text)
        content["environment"] = _public(content["environment"])
        text = json.dumps(_public(content)) + "\n"
    if path.suffix != ".csv":
        text = "".join(_hide(line) + "\n" for line in text.splitlines())
    return host.sub(_HOST, text)


def _public(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in _PRIVATE}


def _hide(line: str) -> str:
    """Return a line of JSON with the absolute paths in its strings hidden."""

    def hidden(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: hidden(one) for name, one in value.items()}
        if isinstance(value, list):
            return [*map(hidden, value)]
        return hide_paths(value) if isinstance(value, str) else value

    return json.dumps(hidden(json.loads(line)), separators=(",", ":"))
