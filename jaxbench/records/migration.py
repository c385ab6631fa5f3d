"""Runs and sweeps of schema 1, in the names of schema 2."""

from collections.abc import Mapping
from typing import Any

from jaxbench.analysis.steady_rate import steady_rate
from jaxbench.records.schema.base import SCHEMA_VERSION

# Fields of an experiment, by their dotted names.
CONFIG_FIELDS = {
    "accumulate_steps": "gradient_accumulation_steps",
    "data.dir": "data.path",
    "data.max_damaged": "data.max_corrupt",
    "data.crop_fill": "data.padding_mode",
    "data.normalize_by": "data.standardization",
    "optimizer.rise": "optimizer.pct_start",
    "optimizer.start_share": "optimizer.start_factor",
    "optimizer.end_share": "optimizer.end_factor",
    "optimizer.weight_decay_as": "optimizer.weight_decay_mode",
    "optimizer.beta1": "optimizer.b1",
    "optimizer.beta2": "optimizer.b2",
    "optimizer.epsilon": "optimizer.eps",
}
# Their values, by the fields' new names.
CONFIG_VALUES = {
    "replicas": {"together": "data_parallel"},
    "data.standardization": {"image": "per_image"},
    "optimizer.weight_decay_mode": {"penalty": "coupled", "share": "decoupled"},
}
# Fields that are gone, with the values that computed the same.
_REMOVED = {"model.stem": ("plain", "space_to_depth")}
_DOCUMENT_FIELDS = {"stop_at_top1": "target_accuracy"}
# The mean over all training, first epoch included, had the name of the steady state's rate.
_TRAINING_RATE = {"images_per_s": "images_per_s_whole_run"}
_RECORD_FIELDS = {
    "throughput": {"late_s": "sync_residual_s"},
    "summary": {"before_s": "import_s", "damaged": "corrupt"},
}
# What tells a mode: a flag of its own in run.json, from the first moment on, or a kind of record.
_MODE_OF_FLAG = {"link_gb_per_s": "scaling", "steps_per_call": "throughput", "page_cache": "input"}
_MODE_OF_KIND = {
    "device": "scaling",
    "all_reduce": "scaling",
    **{kind: kind for kind in ("scaling", "throughput", "input", "conv2d")},
}


def migrate_run(
    document: dict[str, Any], records: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return run.json and the lines of metrics.jsonl as schema 2 has them.

    They may hold anything: what is not of schema 1 stays as it is.
    """
    if "schema_version" in document:
        return document, records
    records = [_migrate_record(record) for record in records]
    document = {
        "schema_version": SCHEMA_VERSION,
        "mode": _mode_of(document, records),
        **_renamed(document, _DOCUMENT_FIELDS),
    }
    document.pop("job", None)
    if isinstance(document.get("config"), Mapping):
        document["config"] = _migrate_config(document["config"])
    if isinstance(document.get("summary"), Mapping):
        document["summary"] = _migrate_record({"kind": "summary", **document["summary"]})
    if document["mode"] == "train":
        rate = steady_rate(record for record in records if record.get("kind") == "epoch")
        records = [_with_rate(record, rate) for record in records]
        document["summary"] = _with_rate(document.get("summary"), rate)
    return document, records


def migrate_result(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a sweep's results.jsonl as schema 2 has it."""
    if line.get("status") == "ok":
        line = line | {"status": "done"}
    figures = line.get("figures")
    # Of a training trial; its steady rate is in its run directory only.
    if (
        isinstance(figures, Mapping)
        and "train_time_s" in figures
        and "steady_epochs" not in figures
    ):
        line = line | {"figures": _renamed(figures, _TRAINING_RATE)}
    if isinstance(line.get("place"), Mapping):
        line = line | {"place": _renamed(line["place"], CONFIG_FIELDS)}
    return line


def _mode_of(document: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """Return the mode, which schema 1 did not record: `job` was train for most of them."""
    if document.get("job") == "conv2d":
        return "conv2d"
    for flag, mode in _MODE_OF_FLAG.items():
        if flag in document:
            return mode
    kinds = [record.get("kind") for record in records]
    for kind, mode in _MODE_OF_KIND.items():
        if kind in kinds:
            return mode
    summary, command = document.get("summary"), document.get("command_line")
    planned = isinstance(summary, Mapping) and "planned_bytes_per_device" in summary
    asked = isinstance(command, list) and {"--mode=fit", "--mode=memory"} & set(map(str, command))
    return "memory" if planned or asked else "train"


def _with_rate(value: Any, rate: Mapping[str, Any]) -> Any:
    """Return the summary of a training run with both of its rates; anything else as it is."""
    if not isinstance(value, Mapping) or value.get("kind") != "summary":
        return value
    if "images_per_s" not in value:
        return value
    whole_run, steady = value["images_per_s"], rate["images_per_s"]
    found = _renamed(value, _TRAINING_RATE) | rate
    for name in ("images_per_s_per_device", "flops_per_s_per_device", "mfu"):
        known = steady and whole_run and found.get(name)
        found[name] = found[name] * (steady / whole_run) if known else None
    return found


def _migrate_record(record: dict[str, Any]) -> dict[str, Any]:
    return _renamed(record, _RECORD_FIELDS.get(str(record.get("kind")), {}))


def _migrate_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    migrated = {}
    for name, value in config.items():
        path = CONFIG_FIELDS.get(prefix + name, prefix + name)
        if value in _REMOVED.get(path, ()):
            continue
        if isinstance(value, Mapping):
            value = _migrate_config(value, f"{path}.")
        elif isinstance(value, str):
            value = CONFIG_VALUES.get(path, {}).get(value, value)
        migrated[path.removeprefix(prefix)] = value
    return migrated


def _renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in record.items()}
