"""The program `jaxbench`, also `python -m jaxbench`: run one of its commands."""

import runpy
import sys

from jaxbench import __version__
from jaxbench.cli import COMMANDS, registry
from jaxbench.errors import nearest
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
        hint = nearest(command, COMMANDS)
        if command.startswith("--experiment"):
            hint = "; did you mean jaxbench main?"
        elif command.partition(":")[0] in registry.available():
            hint = f"; did you mean jaxbench main --experiment={command}?"
        warn(f"jaxbench: no command {command!r}; there are {', '.join(COMMANDS)}{hint}")
        return 2
    sys.argv[1:] = arguments
    # As `python -m` does: the package's attributes of these names are functions.
    try:
        runpy.run_module(f"jaxbench.{command}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while the command's modules are imported: it handles later ones
        warn("jaxbench: interrupted")
        return 130
    return 0


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
