"""Every name of a record's field in the report and in sweeps' tables is one that is recorded."""

import ast
import dataclasses
import importlib
import pathlib
import pkgutil

import pytest
from jaxbench.reports.fields import Estimate
from jaxbench.reports.tables import Column

from jaxbench import reports
from jaxbench.analysis.ceiling import ceiling
from jaxbench.analysis.pricing import Price
from jaxbench.analysis.published import load_published
from jaxbench.analysis.scaling_model import predict
from jaxbench.analysis.statistics import spread
from jaxbench.hardware.peak_table import Peak
from jaxbench.hardware.telemetry import summary as telemetry
from jaxbench.offering.folder import Offer
from jaxbench.records.goodput import CAUSES
from jaxbench.records.reader import RunRecords
from jaxbench.records.schema import RECORDS, EpochRecord
from jaxbench.records.schema.document import RunDocument
from jaxbench.reports import published, sections, tables
from jaxbench.reports.compiled import CompiledStep
from jaxbench.reports.context import Measurement
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.time_to_target import TimeToTarget
from jaxbench.sweeps.tables import figures_of

MODULES = [
    importlib.import_module(f"{sections.__name__}.{found.name}")
    for found in pkgutil.iter_modules(sections.__path__)
]
BY_NAME = {module.__name__.split(".")[-1]: module for module in MODULES}
_PUBLISHED = ("throughput", "training_runs", "time_to_accuracy", "conv2d")
_LOOKUPS = ("find", "number", "text", "mapping", "items", "of_windows", "of_rounds", "total")


def names_of(*classes) -> set[str]:
    """Returns the fields of dataclasses or named tuples, and their properties."""
    fields = fields_of(*filter(dataclasses.is_dataclass, classes))
    return fields | {name for cls in classes for name in dir(cls) if not name.startswith("_")}


def fields_of(*classes) -> set[str]:
    return {field.name for cls in classes for field in dataclasses.fields(cls)}


SUMMARIES = [cls for cls in RECORDS if cls.kind == "summary"]
PREDICTED = predict(
    2, step_s=1, batch_per_device=1, gradient_bytes=1, link_bytes_per_s=1, link_source=""
)
CEILING = ceiling(
    images_per_step=1,
    flops_per_device=1,
    bytes_per_device=1,
    exchanged_bytes=0,
    num_devices=1,
    peak_flops_per_s=1,
    memory_bytes_per_s=1,
    link_bytes_per_s=1,
)
READINGS = {
    f"{name}_{kind}" for name, kinds in telemetry._OVER_WINDOWS.items() for kind in kinds
} | {f"{name}_max" for name in telemetry._OVER_RUN}
# What a name leads to: {name: the names that may follow it}.
FOLLOWING = {
    "run": names_of(ReportedRun),
    "record": fields_of(*RECORDS) | set(PREDICTED),
    "summary": fields_of(*SUMMARIES),
    "document": fields_of(RunDocument),
    "telemetry": set(telemetry.summarize({}, [], 1.0, {})[0]),
    "figures": READINGS | {"samples"},
    "last": fields_of(EpochRecord),
    "evaluated": fields_of(EpochRecord),
    "peak": names_of(Peak),
    "ceiling": set(CEILING) | {"peak"},
    "own": names_of(Measurement),
    "price": names_of(Price),
    "to_target": names_of(TimeToTarget),
    "parts_s": set(BY_NAME["time_split"]._PARTS),
    "badput_s": set(CAUSES),
    "offer": names_of(Offer),
    "measured": names_of(Measurement),
    "scores": set(spread([1.0])),
    "time_s": set(spread([1.0])) | names_of(Estimate),
}


def columns_of(module):
    for own in vars(module).values():
        for one in own if isinstance(own, (tuple, list)) else [own]:
            if isinstance(one, Column) and isinstance(one.value, str):
                yield one.value
            elif isinstance(own, Column):
                break


def keys_in(module) -> set[str]:
    """Returns the keys of the rows that a module makes, and the attributes that rows have."""
    keys = names_of(Measurement)
    for node in ast.walk(ast.parse(pathlib.Path(module.__file__).read_text())):
        if isinstance(node, ast.Dict):
            keys |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            keys.add(node.slice.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.JoinedStr):
            keys |= {f"{of}{node.slice.values[-1].value}" for of in ("", "target_")}  # cost's
    return keys


def unknown(path: str, first: set[str]) -> list[str]:
    """Returns the names of a path that lead nowhere."""
    head, *rest = path.split(".")
    found = [] if head in first else [head]
    for before, name in zip([head, *rest], rest, strict=False):
        if name not in FOLLOWING.get(before, names_of(Estimate)):
            found.append(name)
    return found


PUBLISHED = {key for table in _PUBLISHED for row in load_published(table)[:1] for key in row}


@pytest.mark.parametrize("module", MODULES, ids=[*BY_NAME])
def test_every_column_leads_to_a_field(module):
    first = keys_in(module) | PUBLISHED | keys_in(published)
    first |= fields_of(*RECORDS) if module is BY_NAME["history"] else set()  # {**record, ...}
    first |= names_of(CompiledStep) if module is BY_NAME["before_you_rent"] else set()
    first |= names_of(module._Row) if module is BY_NAME["offers"] else set()
    for path in columns_of(module):
        assert unknown(path, first) == [], path


def test_shared_columns_lead_to_fields():
    for column in tables._SHARED.values():
        assert unknown(column.value, {"run"}) == [], column.value


def test_curves_are_of_epochs_fields():
    learning = BY_NAME["learning"]
    fields = {*(curve.field for curve in learning._CURVES), *learning._SEED_SCORES}
    assert fields <= fields_of(EpochRecord)


# Keys of what is recorded as plain mappings: the environment, the data, resumes, models, targets.
_MAPPINGS = {
    *("versions", "jax", "scipy", "variables", "XLA_FLAGS", "git", "commit", "dirty", "driver"),
    *(
        "cpu",
        "hostname",
        "matmul_precision",
        "num_processes",
        "description",
        "source",
        "seed",
        "lost_s",
    ),
    *("value", "score", "place", "run", "log", "sequence_length", "num_processes"),
}


def test_every_looked_up_name_is_recorded():
    recorded = fields_of(*RECORDS, RunDocument) | set(PREDICTED) | READINGS | names_of(Peak)
    recorded |= set(CEILING) | FOLLOWING["telemetry"] | {"throttle_reasons"} | _MAPPINGS
    asked = 0
    for path in pathlib.Path(reports.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _LOOKUPS:
                names = {arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)}
                asked += len(names)
                assert names <= recorded, f"{path.name}: {ast.unparse(node)}"
    assert asked > 100


def test_every_figure_of_a_sweep_is_found_in_a_run():
    """Of a run with all fields of all records, no figure is left empty."""

    def record(cls, **own):
        return dict.fromkeys(fields_of(cls), 1.0) | {"kind": cls.kind} | own

    kinds = {cls.kind: cls for cls in RECORDS if cls.kind != "summary"}
    summary = dict.fromkeys(fields_of(*SUMMARIES), 1.0)
    target = dict.fromkeys(("value", "reached", "time_s", "epoch", "images", "energy_j", "usd"), 1)
    summary |= {"target_accuracy": target, "telemetry": dict.fromkeys(FOLLOWING["telemetry"], 1.0)}
    records = [
        record(kinds["compile"], memory={"total_bytes": 1}),
        record(kinds["target"]),
        record(kinds["throughput"], stage="train_step"),
        *(
            record(kinds["input"], stage=stage)
            for stage in ("prepare", "prepare_and_send", "train_step")
        ),
        *(record(kinds["scaling"], scaling=scaling) for scaling in ("weak", "strong")),
        record(kinds["conv2d"]),
        record(kinds["epoch"]),
    ]
    document = {"mode": "train", "status": "done", "config": {"batch_size": 1}}
    document |= {"summary": summary, "training_flops_per_image": 2}
    figures = figures_of(RunRecords(pathlib.Path(), document, records))
    assert [name for name, value in vars(figures).items() if value is None] == []


def test_a_misspelt_name_is_found():
    assert unknown("record.mfu", {"record"}) == []
    assert unknown("record.mfuu", {"record"}) == ["mfuu"]
    assert unknown("run.summary.wall", {"run"}) == ["wall"]
    assert unknown("rat.value", {"rate"}) == ["rat"]
