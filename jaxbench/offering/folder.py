"""The folder of offers: tasks, the source code that they send, and a list, offers.json."""

import json
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from jaxbench.errors import BadInput, as_refusal
from jaxbench.offering.accelerators import Accelerator
from jaxbench.offering.tasks import ARCHIVE, SENT, Task, Work, skypilot_task
from jaxbench.paths import check_can_be_made

OFFERS = "offers.json"
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent


def check_new(out: pathlib.Path) -> None:
    """Raise BadInput if a folder is neither new nor empty, or cannot be made."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise BadInput(f"--out={out}: nothing is overwritten, name a new or empty folder")
    check_can_be_made(out, "out")


def changed_files() -> bool:
    """Return whether the checkout has changes, which are not sent; raise BadInput without one."""
    # An environment inside somebody else's repository is not jaxbench's checkout.
    _git("ls-files", "--error-unmatch", "jaxbench/offering/folder.py")
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


def write_offers(
    out: pathlib.Path,
    work: Work,
    accelerators: Sequence[Accelerator],
    predictions: Mapping[str, Mapping[str, Any]],
    command: str,
    user_file: pathlib.Path | None = None,
) -> dict[str, Task]:
    """Write the folder; return the task of each accelerator, by its name.

    Args:
      predictions: {accelerator: the fields of its prediction}.
      user_file: the user's experiment file, which is sent too.
    """
    tasks = {one.name: skypilot_task(work, one) for one in accelerators}
    offers = [
        {"name": one.name, "folder": one.folder, "target": one.target.name}
        | {name: predictions.get(one.name, {}).get(name) for name in ("predicted", "not_predicted")}
        for one in accelerators
    ]
    document = {"command": command, "label": work.label, "offers": offers}
    with as_refusal(f"--out={out}"):
        (out / SENT).mkdir(parents=True)
        # SkyPilot would leave out what a .gitignore above leaves out.
        (out / SENT / ".skyignore").write_text("!*\n")
        if work.requirement is None:
            _git("archive", f"--output={(out / SENT / ARCHIVE).absolute()}", "HEAD")
        if user_file is not None:
            shutil.copy(user_file, out / SENT / user_file.name)
        for name, task in tasks.items():
            (out / task.file).write_text(task.text(f"{name}: {command}"))
        # Last: a folder that has it is whole.
        (out / OFFERS).write_text(json.dumps(document, indent=1) + "\n")
    return tasks


def _git(*arguments: str) -> str:
    """Run git in the checkout that jaxbench is in; return what it prints."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=_CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(
            f"{_CHECKOUT}: is no git checkout of jaxbench, of which the committed files are sent; "
            "give --source=what pip installs it from, such as git+https://HOST/jaxbench.git"
        ) from error
    return done.stdout
