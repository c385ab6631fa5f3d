"""The layout: which room may import which."""

import ast
import graphlib
import re

from tests.conftest import ROOT

# The floors, lowest first. A room is a folder of jaxbench/, or a module that stands beside them; it
# imports from lower floors, and its own modules in no circle.
FLOORS = """
aliases
errors clock files precision terminal
metrics paths
config schema
tasks
analysis batch_layout xla models experiments
parallel tables templates
hardware
data launchers microbench predict records
cards checkpoints offering
training
train
modes
cli
qualification reports
results
sweeps
api
__main__ calibrate main compare cost doctor forecast kernels new offers qualify report sweep
"""
_FLOOR_OF = {
    room: floor for floor, rooms in enumerate(FLOORS.split("\n")) for room in rooms.split()
}
_MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.glob("jaxbench/**/*.py")
}


def room_of(module: str) -> str:
    """Returns the room of a module; the package itself stands beside the commands."""
    return module.split(".")[1] if "." in module else "main"


def imports(path) -> set[str]:
    """Returns the modules of jaxbench that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "jaxbench":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in _MODULES else node.module)
    return found - {"jaxbench"}


def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in _MODULES if module != "jaxbench"}
    assert rooms == set(_FLOOR_OF) - {"experiments"}


def test_imports_point_down():
    checked = 0
    for module, path in _MODULES.items():
        for imported in imports(path):
            checked += 1
            own, other = room_of(module), room_of(imported)
            assert own == other or _FLOOR_OF[other] < _FLOOR_OF[own], f"{module} <- {imported}"
    assert checked > 300


def test_no_circle_of_imports():
    graph = {module: imports(path) - {module} for module, path in _MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_files_that_the_texts_name_exist():
    known = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("*/**/*")
        if path.suffix in (".py", ".csv", ".sh", ".yaml", ".sbatch")
    }
    # The how-to pages name files of the reader's own, too.
    texts = [ROOT / "README.md", ROOT / "BUILD_NOTES.md", ROOT / "docs/architecture.md"]
    texts += ROOT.glob("docs/concepts/*.md")
    texts += ROOT.glob("docs/decisions/*.md")
    for text in texts:
        for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|sh|yaml|sbatch))\b", text.read_text()):
            assert any(f"/{path}".endswith(f"/{name}") for path in known), f"{text}: {name}"


def test_the_path_of_a_run_is_as_the_architecture_page_says():
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\S+\.py)` \| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    for file, function, calls in rows:
        tree = ast.parse((ROOT / "jaxbench" / file).read_text())
        [body] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
        nodes = sorted(
            (node for node in ast.walk(body) if isinstance(node, ast.Name | ast.Attribute)),
            key=lambda node: (node.end_lineno, node.end_col_offset),
        )
        names = [getattr(node, "id", None) or node.attr for node in nodes]
        positions = [names.index(name) for name in re.findall(r"`(\w+)`", calls.split(";")[0])]
        assert positions == sorted(positions), f"{file}: {function}"
    assert len(rows) == 9


def test_every_folder_is_installed():
    text = (ROOT / "setup.cfg").read_text()
    listed = re.search(r"^packages =\n((?: +\S+\n)+)", text, re.MULTILINE)
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in ROOT.glob("jaxbench/**/__init__.py")
    }
    assert set(listed[1].split()) == folders | {"jaxbench.experiments"}
