"""A card to publish: a copy without the name of its host and absolute paths."""

import re
from typing import Any

import msgspec

from jaxbench.cards.card import Card
from jaxbench.cards.card_file import make_folder, read_card, write_card
from jaxbench.cards.check import check_card
from jaxbench.errors import BadInput, as_refusal

# Whose values are hosts, such as TPU_WORKER_HOSTNAMES; whose values are texts that may name one.
_HOSTS = re.compile(r"(?i)hostname|address|^TPU_NAME$")
_TEXTS = ("detail", "advice", "reason", "text", "variables", "distorters")


def submit(path: str, out: str) -> str:
    """Copy a card into a folder that may be published; return the path of the copy.

    Raises:
      BadInput: the card is damaged or impossible, or the folder is used, or cannot be made.
    """
    if problems := check_card(path):
        raise BadInput(f"{path}: is refused by `jaxbench qualify check`: {problems[0]}")
    content = msgspec.to_builtins(read_card(path))
    card = msgspec.convert(_without_host(content, content["environment"]["hostname"]), Card)
    with as_refusal(f"--out={out}"):
        return str(write_card(make_folder(out), card))


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
