"""card.json: written whole, and read from anybody. Its digest shows damage, not forgery."""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec

from jaxbench.cards.card import Card
from jaxbench.errors import BadInput, as_refusal
from jaxbench.files import read_text, replace_file
from jaxbench.paths import check_can_be_made, hide_paths, user_path

_ABOUT = {"schema_version": 2, "kind": "card"}
CARD = "card.json"
# A card of 64 devices with its matrix of pairs has less than 1 MiB.
MOST_BYTES = 8 * 2**20


def hidden_paths(value: Any) -> Any:
    """Return JSON values with the absolute paths in their texts hidden."""
    if isinstance(value, dict):
        return {name: hidden_paths(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(hidden_paths, value)]
    return hide_paths(value) if isinstance(value, str) else value


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a card, its `digest` left out."""
    whole = {name: value for name, value in content.items() if name != "digest"}
    canonical = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_card(folder: pathlib.Path, card: Card) -> pathlib.Path:
    """Write card.json, whole or not at all, without the machine's absolute paths; return it."""
    content = _ABOUT | hidden_paths(msgspec.to_builtins(card))
    content["digest"] = digest_of(content)
    path = folder / CARD
    replace_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def make_folder(out: str) -> pathlib.Path:
    """Make the folder of a card; raise BadInput if it cannot be made, or has something in it."""
    path = user_path(out)
    check_can_be_made(path, "out")
    with as_refusal(f"--out={out}"):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BadInput(f"--out={out}: nothing is overwritten, name a new or empty folder")
    return path


def is_card(name: str) -> bool:
    """Return whether a path is a JSON file, or a folder that contains a card."""
    path = user_path(name)
    return (path.suffix == ".json" and os.path.isfile(path)) or os.path.isfile(path / CARD)


def card_path(name: str | pathlib.Path) -> pathlib.Path:
    """Return the path of a card; `name` is its file or its folder."""
    path = user_path(name)
    return path / CARD if os.path.isdir(path) else path


def read_card(name: str | pathlib.Path) -> Card:
    """Read a card.

    Raises:
      BadInput: it cannot be read, is too large, is no card of this schema, or was altered.
    """
    path = card_path(name)
    with as_refusal(str(path), ValueError, RecursionError):
        content = json.loads(read_text(path, MOST_BYTES))
        about = {key: content.get(key) for key in _ABOUT} if isinstance(content, dict) else None
        if about != _ABOUT:
            old = "; it is of an older jaxbench: measure again" * (
                about == _ABOUT | {"schema_version": 1}
            )
            raise ValueError(
                f"is no card that this jaxbench reads: {about!s:.60}, not {_ABOUT}{old}"
            )
        if content.get("digest") != digest_of(content):
            raise ValueError("was altered or damaged: its digest is not that of its content")
        del content["digest"], content["kind"], content["schema_version"]
        return msgspec.convert(content, Card)
