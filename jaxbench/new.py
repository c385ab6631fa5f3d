"""Write a template for custom code: `jaxbench new network my_net.py`.

The kinds are network, optimizer, data and task. Each template is an experiment that runs at once,
in seconds on a CPU.
"""

import pathlib
import shlex

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput, one_of
from jaxbench.paths import user_path

_TEMPLATES = pathlib.Path(__file__).resolve().parent / "templates"


def main(arguments: list[str]) -> int:
    """Write the template; return the exit code."""
    kinds = [path.stem for path in sorted(_TEMPLATES.glob("[!_.]*.py"))]
    if len(arguments) != 2:
        listed = ", ".join(kinds)
        raise BadInput(f"give what to write, one of {listed}, and a file, such as my_network.py")
    kind, file = arguments
    if kind not in kinds:
        raise BadInput(f"{kind!r}: {one_of(kind, kinds)}")
    path = user_path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise BadInput(f"{file}: its name must end in .py, after letters, digits and _ only")
    text = (_TEMPLATES / f"{kind}.py").read_text()
    try:
        # `x` refuses a file that exists.
        with open(path, "x") as new:
            new.write(text.replace("=FILE", f"={path.name}"))
    except FileExistsError:
        raise BadInput(f"{file}: exists; it stays as it is") from None
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}") from error
    print(f"wrote {file}; run it:\n  jaxbench main --experiment={shlex.quote(file)}")
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
