"""The program `jaxbench`, also `python -m jaxbench`: run one of its commands."""

import runpy
import sys

from jaxbench import __version__
from jaxbench.cli import COMMANDS, registry
from jaxbench.errors import closest
from jaxbench.modes import MODES
from jaxbench.terminal import open_closed_streams, tolerated, warn


def main() -> int:
    """Run the command that the first argument names; return the exit code."""
    open_closed_streams()
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("--help", "-help", "-h", "--version"):
        with tolerated(sys.stdout):
            print(f"jaxbench {__version__}" if command == "--version" else _help(), flush=True)
        return 0
    if command not in COMMANDS:
        warn(f"jaxbench: no command {command!r}; {_meant(command)}")
        return 2
    sys.argv[1:] = arguments
    # As `python -m` does: the package's attributes of these names are functions.
    try:
        runpy.run_module(f"jaxbench.{command}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while the command's modules are imported: it handles later ones
        warn("jaxbench: interrupted")
        return 130
    return 0


def _meant(word: str) -> str:
    """Return what to write instead of a word that is no command: a mode, say, or an experiment."""
    commands = {mode: f"main --mode={mode}" for mode in MODES}
    commands |= {name: f"main --experiment={name}" for name in registry.available()}
    commands |= {"run": "main", "--experiment": "main", **{name: name for name in COMMANDS}}
    name, colon, variant = word.partition("=")[0].partition(":")
    if meant := closest(name, commands):
        return f"did you mean jaxbench {commands[meant]}{colon}{variant}?"
    return f"must be one of {', '.join(COMMANDS)}"


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: jaxbench COMMAND [--FLAG=VALUE ...]",
            "",
            *(f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items()),
            "",
            "jaxbench COMMAND --help shows a command's flags,",
            "jaxbench main --experiment=list all experiments.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
