"""Run directories and sweeps as the code writes them, for tests of what reads them.

`filled` makes any record from the few fields that a test is about. The others make the runs that
most tests read: cnn10 on CIFAR-10, trained or measured on an H200.
"""

import datetime
import functools
import itertools
import json
import pathlib
import random
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from jaxbench.schema import (
    CompileSummary,
    Conv2dRecord,
    Conv2dSummary,
    EpochRecord,
    InputSummary,
    MemorySummary,
    Record,
    RunDocument,
    ScalingRecord,
    ScalingSummary,
    TargetRecord,
    ThroughputRecord,
    ThroughputSummary,
    TrainSummary,
    TrialResult,
)

Filled = TypeVar("Filled")
SUMMARIES = {
    "train": TrainSummary,
    "throughput": ThroughputSummary,
    "input": InputSummary,
    "scaling": ScalingSummary,
    "memory": MemorySummary,
    "conv2d": Conv2dSummary,
    "compile": CompileSummary,
}
STARTED = "2026-03-04T05:06:07+00:00"
GIB = 2**30
PRICE = {
    "offer": "stated",
    "hardware": "",
    "devices": None,
    "usd_per_hour": 3.6,
    "date": "2026-03-04",
    "source": "--usd_per_hour",
}
# A network of which rates are published, and its images.
RESNET = {"model": "ResNet", "parameters": 25_557_032, "experiment": "resnet50_synthetic"}
IMAGENET = {"image_shape": [224, 224, 3], "num_classes": 1000, "source": "synthetic"}


def filled(cls: type[Filled], **fields: Any) -> Filled:
    """Return an instance with these fields, and plain values in all others that are required."""
    return cls(**_plain_values(cls) | fields)


@functools.cache
def _plain_values(cls: type) -> dict[str, Any]:
    """Return {required field: the least value of its type}."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in msgspec.inspect.type_info(cls).fields:
        hint = hints[field.name]
        if not field.required:
            continue
        if typing.get_origin(hint) is typing.Literal:
            values[field.name] = typing.get_args(hint)[0]
        elif hint is datetime.datetime:
            values[field.name] = STARTED
        elif hint is int:
            values[field.name] = field.type.ge or 0
        else:
            values[field.name] = (typing.get_origin(hint) or hint)()
    return values


def attempts(*resumed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return run.json's entries of a first process and of those that resumed it at `elapsed_s`."""
    first = {"started_at": STARTED, "import_s": 0.0, "phases_s": {}, "doing": "train"}
    return [
        {**first, "resumed_phases_s": {"train": one.get("elapsed_s", 0.0)}, **one}
        for one in ({}, *resumed)
    ]


def recorded_run(
    folder: pathlib.Path,
    records: Sequence[Record] = (),
    *,
    mode: str = "train",
    status: str = "done",
    summary: dict[str, Any] | None = None,
    **fields: Any,
) -> pathlib.Path:
    """Write a run directory; return its path.

    Args:
      summary: fields of the mode's summary. A run whose status is `running` has none.
      fields: of run.json. `config`, `data` and `environment` are added to the usual ones.
    """
    folder.mkdir(parents=True)
    usual = {
        "config": {"batch_size": 128, "precision": "fp32", "seed": 0, "data": {"source": "tfds"}},
        "data": {"feed": "resident", "description": "cifar10 3.0.2", "train_examples": 50_000},
        "environment": {
            "hostname": "lab",
            "device_kind": "NVIDIA H200",
            "num_devices": 1,
            "versions": {"jax": "0.10.2"},
            "variables": {},
            "git": {"commit": "c0ffee" * 6, "dirty": False},
        },
    }
    document = {
        "experiment": "cnn10",
        "mode": mode,
        "status": status,
        "reason": None if status in ("done", "running") else "out of luck",
        "model": "Cnn10",
        "parameters": 1_900_000,
        "started_at": STARTED,
        "telemetry_s": 1.0,
        **fields,
        **{name: usual[name] | fields.get(name, {}) for name in usual},
    }
    lines = [record.to_json() for record in records]
    if status != "running":
        last = {"status": status, "wall_s": 100.0, **(summary or {})}
        if mode == "train":
            last = {"epochs_done": sum(line["kind"] == "epoch" for line in lines)} | last
        lines.append(filled(SUMMARIES[mode], **last).to_json())
        document["summary"] = {name: v for name, v in lines[-1].items() if name != "kind"}
    document = filled(RunDocument, **document).to_json()
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def change_json(path: pathlib.Path, **fields: Any) -> None:
    """Replace fields of a JSON file, or of the last line of a file of lines."""
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | fields)]) + "\n")


def epochs(rates: Sequence[float], top1: float = 0.9, **fields: Sequence) -> list[Record]:
    """Return the epochs of a run on 50,000 images; `fields` have a value for each of them."""
    records = []
    for number, rate in enumerate(rates, 1):
        usual = {
            "epoch": number,
            "epochs": len(rates),
            "complete": True,
            "images_per_s": rate,
            "epoch_time_s": 50_000 / rate,
            "step": 390 * number,
            "elapsed_s": 15.75 * number,
            "train_loss": 2 / number,
            "eval_loss": 2.2 / number,
            "eval_top1": top1 * number / len(rates),
            "eval_count": 10_000,
        }
        usual |= {name: values[number - 1] for name, values in fields.items()}
        records.append(filled(EpochRecord, **usual))
    return records


def trained(
    folder: pathlib.Path, rate: float = 5000.0, top1: float = 0.9, **fields: Any
) -> pathlib.Path:
    """Write a training run of four epochs, of which the first has half the rate."""
    summary = {
        "compile_s": 7.0,
        "compile_cache": "miss",
        "first_epoch_with_compile_s": 20.0,
        "median_epoch_s": 50_000 / rate,
        "eval_top1": top1,
        "phases_s": {"compile": 7.0, "train": 80.0, "eval": 12.0, "other": 1.0},
    } | fields.pop("summary", {})
    records = epochs([rate / 2, rate, rate * 1.01, rate * 0.99], top1)
    return recorded_run(folder, records, summary=summary, **fields)


def train_record(
    folder: pathlib.Path, rates: Sequence[float], top1: float = 0.9, **fields: Any
) -> pathlib.Path:
    """Write a training run of these rates; its summary is the one that training makes of them."""
    # It imports JAX.
    from jaxbench.modes.train import summarize

    of_epochs = {"train_time_s": [50_000 / rate for rate in rates], "images": [50_000] * len(rates)}
    records = epochs(rates, top1, **of_epochs)
    progress = types.SimpleNamespace(
        epochs=records,
        step=390 * len(rates),
        compile_s=7.0,
        compile_cache=["miss"],
        first_step_s=1.0,
        import_s=1.0,
        startup_s=1.0,
        invalid=[],
    )
    summary = summarize(
        progress,
        primary_metric="top1",
        num_devices=1,
        loss_scales=types.SimpleNamespace(describe=dict, lost_R=None),
        status=fields.get("status", "done"),
    )
    given = {name: v for name, v in summary.to_json().items() if name != "kind" and v is not None}
    fields["summary"] = given | fields.get("summary", {})
    return recorded_run(folder, records, **fields)


def on_the_way(
    folder: pathlib.Path, scores: Sequence[float], target: float | None = 0.8, **fields: Any
) -> pathlib.Path:
    """Write a run that was to stop at the target, ten seconds and 100 steps an epoch."""
    numbers = range(1, len(scores) + 1)
    records = epochs(
        [5000.0] * len(scores),
        eval_top1=scores,
        elapsed_s=[10.0 * number for number in numbers],
        step=[100 * number for number in numbers],
    )
    if target:
        to_stop = {"score": "top1", "value": target, "energy_j": 7200.0}
        fields["summary"] = {"target_accuracy": to_stop} | fields.get("summary", {})
    return recorded_run(folder, records, **fields)


def throughput(
    folder: pathlib.Path,
    rate: float,
    stage: str = "train_step",
    *,
    spread: float = 0.02,
    windows: int = 11,
    **fields: Any,
) -> pathlib.Path:
    """Write a run of --mode=throughput with one stage."""
    record = filled(
        ThroughputRecord,
        stage=stage,
        images_per_s=rate,
        images_per_s_low=rate * (1 - spread),
        images_per_s_high=rate * (1 + spread),
        windows_s=[1.0] * windows,
        latency_p50_s=0.02,
        latency_p95_s=0.03,
        latency_p99_s=0.04,
        latency_steps=100,
        mfu=0.4,
        flops_per_byte=40.0,
        flops_per_byte_at_ridge=103.0,
        bound_by="memory",
        flops_per_s_per_device=2e14,
        peak={
            "kind": "NVIDIA H200",
            "arithmetic": "tf32",
            "flops_per_s": 4.947e14,
            "bytes_per_s": 4.8e12,
            "source": "a datasheet",
        },
    )
    fields["data"] = {"feed": "synthetic"} | fields.get("data", {})
    records = [record, *fields.pop("more", ())]
    return recorded_run(folder, records, mode="throughput", **fields)


def scaling_record(
    num_devices: int, rate: float | None, scaling: str = "weak", **fields: Any
) -> ScalingRecord:
    """Return a step of --mode=scaling, 64 images a device or 128 in all."""
    batch_size = 64 * num_devices if scaling == "weak" else 128
    usual = {
        "scaling": scaling,
        "num_devices": num_devices,
        "batch_size": batch_size,
        "batch_per_device": batch_size // num_devices,
        "status": "done",
        "images_per_s": rate,
        "windows_s": [1.0] * 9,
    }
    if rate:
        efficiency = rate / num_devices / 1000
        usual |= {"images_per_s_low": rate * 0.99, "images_per_s_high": rate * 1.01}
        usual |= {"efficiency_low": efficiency * 0.98, "efficiency_high": efficiency * 1.02}
        usual |= {"efficiency": efficiency}
    return filled(ScalingRecord, **usual | fields)


def conv2d_record(devices: int, **fields: Any) -> Conv2dRecord:
    """Return one convolution on some devices."""
    usual = {
        **{"images": 840, "height": 100, "width": 90, "channels": 3, "filters": 1, "kernel": 5},
        **{"lower_s": 0.25, "compile_s": 0.5, "first_use_s": 1.0, "host_to_device_s": 0.004},
        **{"compute_s": 0.002, "device_to_host_s": 0.001, "steady_total_s": 0.007},
        **{"scipy_s": 0.4, "images_per_s": 420_000.0, "speedup": 1.0},
        "samples": {
            "host_to_device_s": [0.003, 0.004, 0.005],
            "compute_s": [0.001, 0.001, 0.002, 0.002, 0.004, 0.004],
            "device_to_host_s": [0.001, 0.001],
            "scipy_s": [0.4],
        },
    }
    return filled(Conv2dRecord, devices=devices, **usual | fields)


_TARGETS = {
    "gpu:rtx2080ti:2": ("GeForce RTX 2080 Ti", 2),
    "gpu:h100:8": ("NVIDIA H100 80GB HBM3", 8),
    "tpu:v2:2x2": ("TPU v2", 8),
}


def compiled(
    folder: pathlib.Path,
    target: str = "gpu:rtx2080ti:2",
    batch: int = 128,
    fits: bool = True,
    **fields: Any,
) -> pathlib.Path:
    """Write a run of `--target`, whose step needs a GiB for 128 images and may use eight."""
    kind, devices = _TARGETS[target]
    usual = {
        "target": target,
        "origin": "compiled",
        "compiler": "jax-cuda12-plugin 0.10.2",
        "device_kind": kind,
        "num_devices": devices,
        "batch_size": batch,
        "batch_per_device": batch // devices,
        "precision": "fp32",
        "device_memory_bytes": 8 * GIB,
        "fits": fits,
        "needed_bytes": batch * GIB // 128,
        "compile_s": 12.5,
        "collectives": {"all-reduce": {"count": 1, "bytes": 3_000_000, "largest_bytes": 1}},
        "predicted": {
            "images_per_s": 3_000.0 * devices,
            "images_per_s_low": 2_400.0 * devices,
            "images_per_s_high": 3_750.0 * devices,
            "images_per_s_90_low": 2_000.0 * devices,
            "images_per_s_90_high": 4_500.0 * devices,
        },
    }
    record = filled(TargetRecord, **usual | fields.pop("record", {}))
    own = {
        "mode": "compile",
        "target": target,
        "status": "done" if fits else "oom",
        "reason": None if fits else f"{target}: the step needs more",
        "summary": {"compile_s": 12.5, "phases_s": {"compile": 12.5}},
        **fields,
        "config": {"batch_size": batch} | fields.get("config", {}),
        "environment": {"device_kind": kind, "num_devices": devices},
    }
    return recorded_run(folder, [record], **own)


def write_results(sweep: pathlib.Path, *trials: dict[str, Any]) -> pathlib.Path:
    """Add trials to a sweep's results.jsonl; return the sweep's folder."""
    sweep.mkdir(parents=True, exist_ok=True)
    with open(sweep / "results.jsonl", "a") as file:
        for number, trial in enumerate(trials):
            usual = {"key": f"{number}", "status": "done", "experiment": "cnn10", "wall_s": 1.0}
            usual["log"] = f"{trial['run']}.log" if trial.get("run") else ""
            result = filled(TrialResult, **usual | trial)
            file.write(json.dumps(result.to_json()) + "\n")
    return sweep


def write_telemetry(
    folder: pathlib.Path, rows: int, devices: Sequence[str] = ("gpu0", "gpu1", "host")
) -> None:
    """Write a telemetry.csv with a reading a second of each device."""
    draw = random.Random(0)
    with open(folder / "telemetry.csv", "w") as file:
        file.write("time,elapsed_s,device,kind,load_percent,memory_used_bytes,sm_clock_mhz,")
        file.write("temperature_c,power_w\n")
        for second in range(rows):
            for device in devices:
                load = 90 + draw.random() * 10
                file.write(f"t,{second}.5,{device},gpu,{load:.1f},1000000,1410,65,{load * 3:.1f}\n")


# Runs of one process would be copies.
_PIDS = itertools.count(1)


def write_run(
    folder: pathlib.Path,
    rate: float = 100.0,
    *,
    spread=0.02,
    status="done",
    feed="synthetic",
    epoch_rates=(),
    busy=False,
    began="2026-01-01T00:00:00+00:00",
    host=None,
    distorters=(),
    **config,
):
    """Write a run of `throughput` that a comparison takes; return its path as text."""
    load = {"other_cpu_percent_mean": 60.0 if busy else 1.0}
    run = throughput(
        folder,
        rate,
        spread=spread,
        more=epochs(epoch_rates),
        status=status,
        started_at=began,
        pid=next(_PIDS),
        config=config,
        data={"feed": feed},
        environment=({"hostname": host} if host else {}) | {"distorters": [*distorters]},
        summary={"telemetry": {"host_busy": busy, "devices": {"host": load}}},
    )
    return str(run)


def write_repeats(folder, *rates, hour=0, **how):
    """Writes a folder of runs, one a minute."""
    for number, rate in enumerate(rates):
        began = f"2026-01-01T{hour:02}:{number:02}:00+00:00"
        write_run(folder / f"run{number}", rate, began=began, **how)
    return str(folder)


def write_sweep(folder, rates, **how):
    """Writes a sweep of {(batch, seed): rate}; None is out of memory."""
    for (batch, seed), rate in rates.items():
        name = f"trials/{batch}-{seed}"
        trial = {"key": name, "place": {"batch_size": str(batch), "seed": str(seed)}}
        if rate is None:
            trial |= {"status": "oom", "reason": "out of memory"}
        else:
            write_run(folder / name / "run1", rate, batch_size=batch, seed=seed, **how)
            trial["run"] = f"{name}/run1"
        write_results(folder, trial)
    return str(folder)
