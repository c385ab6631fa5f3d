"""Qualify a machine: `jaxbench qualify`.

In ten minutes: checks, the ceilings of arithmetic and memory, links between devices, training steps
of some networks, a soak, and a search for silent data corruption. It leaves a card (card.json) with
a verdict by stated limits. The exit code is 1 if something fails.

    jaxbench qualify check CARD
    jaxbench qualify submit CARD --out=FOLDER
    jaxbench qualify table FOLDER [--out=FILE.md]

check says whether a card was altered or holds figures that cannot be true, and what its verdict is.
Its exit code is 1 for such a card, and for one whose verdict is fail. submit copies a card into a
folder to publish, without the name of its host and absolute paths. table writes a table of all
cards in or below a folder, as Markdown or HTML.

A GPU or TPU is measured with the networks of the preset standard-1, a CPU with the small ones of
cpu-1.
"""

import contextlib
import os

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.cli.flag_table import define_flags
from jaxbench.cli.importing import importing
from jaxbench.errors import BadInput, one_of
from jaxbench.parallel.processes import check_single_host, check_started_once
from jaxbench.terminal import print_wrapped, printable

_MINUTES, _OUT, _FLEET, _SOAK_MINUTES = define_flags("qualify")
# A card is of one host.
_ONE_HOST = (
    "separate this host's chips with TPU_PROCESS_BOUNDS and TPU_CHIPS_PER_PROCESS_BOUNDS, and "
    "qualify each host by itself"
)
_ONE_PROCESS = "qualify each host by itself, with one process: env -u {index} jaxbench qualify"


def main(arguments: list[str]) -> int:
    """Do what the flags say; return the exit code."""
    if not arguments:
        return _qualify()
    word, *paths = arguments
    words = {
        "check": (_check, "CARD", ()),
        "submit": (_submit, "CARD", ("out",)),
        "table": (_table, "FOLDER", ("out",)),
    }
    if word not in words:
        raise BadInput(f"{word!r}: {one_of(word, words)}")
    function, argument, allowed = words[word]
    if len(paths) != 1:
        raise BadInput(f"give one {argument}: jaxbench qualify {word} {argument}")
    module = flags.FLAGS.find_module_defining_flag("minutes")
    key_flags = flags.FLAGS.get_key_flags_for_module(module)
    refused = [flag.name for flag in key_flags if flag.present and flag.name not in allowed]
    if refused:
        raise BadInput(f"--{refused[0]}: is not for {word}")
    return function(paths[0])


def _qualify() -> int:
    # Imported here, so that a typo in a flag is answered before JAX is loaded.
    with importing():
        from jaxbench.cards.check import load_fleet
        from jaxbench.hardware.backend_flags import start_backend
        from jaxbench.qualification.run import qualify
        from jaxbench.records.writers.console import create_console
    check_single_host(_ONE_HOST)
    check_started_once(_ONE_PROCESS)
    fleet = load_fleet(_FLEET.value)
    console = create_console()
    start_backend(console.say)
    return qualify(
        _MINUTES.value, _OUT.value, console, soak_minutes=_SOAK_MINUTES.value, fleet=fleet
    )


def _check(path: str) -> int:
    from jaxbench.cards.card_file import card_path, read_card
    from jaxbench.cards.check import check_card
    from jaxbench.cards.verdict import failures

    if not os.path.exists(card_path(path)):
        raise BadInput(f"{path}: there is no card")
    problems = check_card(path)
    lines = problems or [f"{path}: intact, and its figures are plausible"]
    failed: list[str] = []
    with contextlib.suppress(BadInput):  # one of the problems then
        card = read_card(path)
        if card.verdict is not None:
            failed = failures(card.verdict)
            lines += [f"its verdict: {card.outcome}", *failed]
    print_wrapped(*map(printable, lines))
    return int(bool(failed or problems))


def _submit(path: str) -> int:
    from jaxbench.cards.submission import submit

    if not _OUT.value:
        raise BadInput("--out: name the folder to publish, such as results/lab-8xh100")
    print(printable(submit(path, _OUT.value)))
    return 0


def _table(folder: str) -> int:
    from jaxbench.reports.write import write_report

    out, collection = write_report(
        [folder], _OUT.value or "cards.md", title="jaxbench: cards", section="cards"
    )
    print(printable(f"{len(collection.cards)} card(s): {out}"))
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
