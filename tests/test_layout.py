"""Who may import whom: entry points on top, jobs, services, pure definitions; only downwards."""

import ast

from conftest import ROOT

# Lower number, lower layer. A module imports from its own layer or below.
LAYERS = [
    {
        "errors",
        "batch_search",
        "clock",
        "collectives",
        "economics",
        "hlo",
        "published",
        "spread",
        "validity",
        "peaks",
        "signals",
        "speedup",
        "variables",
        "processes",
    },
    {
        "config",
        "flops",
        "loss_scale",
        "prices",
        "precision",
        "rundir",
        "runs",
        "task",
        "models",
        "experiments",
    },
    {
        "catalog",
        "compile_cache",
        "xla_flags",
        "optim",
        "devices",
        "inflight",
        "profiler",
        "environment",
        "storage",
        "child",
        "local_processes",
        "launcher",
        "sweepdir",
        "windows",
        "data",
        "telemetry",
        "writers",
    },
    {"checkpoints"},
    {"resume"},
    {"step"},
    {"program", "progress", "recorder", "job", "utilization"},
    {"trainer"},
    {"train", "feeding", "throughput", "scaling", "fit", "conv2d"},
    {"describe"},
    {"cli"},
    {"cells", "price_flags", "sweep_tables"},
    {"main", "compare", "sweep", "cost", "report"},
]


def layer_of(module):
    for number, names in enumerate(LAYERS):
        if module in names:
            return number
    raise AssertionError(f"{module} stands in no layer of tests/test_layout.py")


def test_imports_point_down():
    checked = 0
    for path in ROOT.glob("jaxbench/**/*.py"):
        own = path.relative_to(ROOT / "jaxbench").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "jaxbench":
                parts = node.module.split(".")[1:]
                for name in [parts[0]] if parts else [alias.name for alias in node.names]:
                    checked += 1
                    assert layer_of(name) <= layer_of(own), f"{path} imports {name}"
    assert checked > 50


def test_pmap_and_shard_map_are_named_in_one_module():
    for path in ROOT.glob("jaxbench/**/*.py"):
        if path.name == "devices.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("pmap", "shard_map"), path


def test_jax_distributed_is_named_in_one_module():
    found = set()
    for path in ROOT.glob("jaxbench/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "distributed":
                found.add(path.name)
    assert found == {"processes.py"}
