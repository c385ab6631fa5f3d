"""The whole report of a small set of runs, which has one of every mode, status and kind of record.

A change that is meant is renewed with `pytest --snapshot-update` and read in the diff.
"""

import os
import re

from jaxbench.analysis.pricing import Price
from jaxbench.analysis.scaling_model import predict
from jaxbench.records.run_lock import lock_run
from jaxbench.reports.prices import Prices
from jaxbench.reports.write import write_report
from jaxbench.schema import (
    AllReduceRecord,
    CompileRecord,
    DeviceRecord,
    InputRecord,
    ThroughputRecord,
)
from tests.cards import made
from tests.recorded import (
    IMAGENET,
    PRICE,
    RESNET,
    attempts,
    change_json,
    compiled,
    conv2d_record,
    epochs,
    filled,
    on_the_way,
    recorded_run,
    scaling_record,
    throughput,
    trained,
    write_results,
    write_telemetry,
)

CPU = {"device_kind": "cpu", "num_devices": 4, "cpu": "Xeon", "num_processes": 1}


def write_golden_runs(folder):
    """Write the runs; return the lock that keeps one of them running."""
    write_trainings(folder / "train")
    write_ways_to_a_target(folder / "target")
    write_measurements(folder)
    write_compiled(folder / "compiled")
    write_sweep(folder / "sweep")
    made.write(folder / "card", made.judged(made.networks(9_000.0, others=False), host="lab"))
    return write_states(folder / "states")


def write_trainings(folder):
    """Rates, intervals, seeds, settings, other tasks, and where the time went."""
    for seed in range(3):
        telemetry = {"joules_per_image": 0.02, "energy_j": 3.6e6, "energy_covers": "GPU boards"}
        gpu = {"samples": 60.0, "load_percent_mean": 95.0, "throttle_reasons": {"power cap": 0.5}}
        telemetry["devices"] = {"gpu0": gpu, "host": {"cpu_percent_mean": 20.0}}
        trained(
            folder / f"seed{seed}",
            5000.0 + 100 * seed,
            top1=0.9 + seed / 100,
            config={"seed": seed, "epochs": 10.0},
            price=PRICE,
            summary={"telemetry": telemetry, "flops_per_s_per_device": 1e14},
        )
    write_telemetry(folder / "seed0", 4, ["gpu0", "host"])
    bf16 = {"precision": "bf16", "epochs": 2.5, "batch_size": 256}
    # A slow epoch does not move the rate; an interval is of six epochs or more.
    rates = [500.0, 9000.0, 9001.0, 9002.0, 100.0, 9003.0, 9004.0]
    recorded_run(
        folder / "interval",
        epochs(rates, mfu=[0.1, 0.4, 0.41, 0.42, 0.43, 0.44, 0.45]),
        config=bf16,
    )
    recorded_run(folder / "range", epochs(rates[:-1]), config=bf16 | {"label_smoothing": 0.1})
    trained(folder / "pair", 9000.0, environment={"num_devices": 2})
    trained(folder / "pair256", 9500.0, environment={"num_devices": 2}, config={"batch_size": 256})
    trained(folder / "stream", 2000.0, data={"feed": "stream"}, config={"batch_size": 256})
    trained(folder / "svhn", config={"data": {"source": "tfds", "name": "svhn"}})
    trained(folder / "cpu", 100.0, environment=CPU | {"git": None})
    trained(folder / "tiny", parameters=31_000, experiment="cnn10:tiny")
    phases_s = {"train": 70.0, "checkpoint": 12.0, "restore": 3.0, "records": 4.0, "other": 1.0}
    phases_s |= {"init": 6.0, "init_from_images": 4.0}
    goodput = {"goodput": 0.6, "badput_s": {"startup": 30.0, "lost_work": 8.0, "down": 2.0}}
    goodput |= {"total_wall_s": 130.0, "num_resumes": 2, "wall_s": 130.0}
    trained(
        folder / "resumed",
        summary={"phases_s": phases_s, **goodput, "warnings": ["the clock was set"]},
        environment={
            "versions": {"jax": "0.9.0"},
            "hostname": "attic",
            "git": {"commit": "beef" * 10, "dirty": True},
            "compile_cache": None,
        },
        attempts=attempts(
            {"step": 300, "elapsed_s": 5.0, "lost_s": 12.5},
            {"step": 500, "elapsed_s": 20.0, "lost_s": 1.5, "versions": {"jax": "0.10.2"}},
        ),
    )
    models = [{"seed": n, "top1": 0.5 - n / 10, "loss": 1.0 + n} for n in range(3)]
    spread = {"eval_top1_std": [0.1], "eval_top1_min": [0.3], "eval_top1_max": [0.5]}
    recorded_run(
        folder / "independent",
        epochs([1000.0], 0.4, **spread, eval_models=[models]),
        config={"replicas": "independent"},
        summary={"diverged_seeds": [2], "eval_top1": 0.4},
    )
    dice = {"eval_dice": [0.5, 0.8], "eval_top1": [None] * 2, "train_dice": [0.4, 0.7]}
    network = {"experiment": "unet", "model": "UNet", "parameters": 7_700_000}
    recorded_run(
        folder / "unet", epochs([50.0, 60.0], **dice), summary={"eval_dice": 0.8}, **network
    )
    tokens = {"eval_bits_per_byte": [3.0, 2.5], "eval_metrics": [{"kappa": 0.1}, {"kappa": 0.2}]}
    tokens |= {"tokens_per_s": [900.0, 1000.0], "eval_top1_tta": [0.5, 0.6]}
    network = {"experiment": "gpt", "model": "Gpt", "parameters": 500_000}
    recorded_run(
        folder / "gpt",
        epochs([18.0, 20.0], **tokens),
        config={"data": {"sequence_length": 50}},
        summary={"tokens_per_s": 1000.0},
        price=PRICE,
        **network,
    )
    # One device a process: these are not simulated.
    trained(folder / "workers", 100.0, environment=CPU | {"num_processes": 4})


def write_ways_to_a_target(folder):
    """Five seeds that got there, one that never did, one that was broken off."""
    own = {"price": PRICE, "training_flops_per_image": 10**9, "experiment": "way"}
    for seed, scores in enumerate([(0.5, 0.8), (0.7, 0.79, 0.81), (0.9,), (0.85,), (0.8,), (0.6,)]):
        cache = {"compile_cache": "hit" if seed else "miss"}
        on_the_way(folder / f"seed{seed}", scores, config={"seed": seed}, summary=cache, **own)
    on_the_way(folder / "seed6", (0.3,), status="preempted", config={"seed": 6}, **own)
    on_the_way(folder / "again", (0.9,), config={"seed": 0}, **own)
    on_the_way(folder / "longer", (0.9,), config={"epochs": 9}, **own)
    changed = {"step": 50, "elapsed_s": 5.0, "lost_s": 9.0, "price": PRICE | {"usd_per_hour": 10.0}}
    on_the_way(folder / "dearer", (0.5, 0.9), attempts=attempts(changed), **own)
    on_the_way(folder / "resnet", (0.76,), 0.757, **RESNET | {"experiment": "resnet50"})
    lost = attempts({"step": 10, "elapsed_s": 5.0, "lost_s": 1000.0})
    on_the_way(folder.parent / "h200-1", (0.5, 0.9), price=PRICE, attempts=lost)


def write_measurements(folder):
    """The modes that train nothing."""
    for batch in (128, 256, 512):
        own = {"windows": 2} if batch == 512 else {}
        throughput(folder / f"tp{batch}", batch * 10.0, config={"batch_size": batch}, **own)
    forward = filled(ThroughputRecord, stage="forward", images_per_s=4000.0, windows_s=[1.0] * 3)
    step = filled(CompileRecord, function="train_step", compile_s=3.0, compile_cache="hit")
    more = {"more": [forward, step], "price": PRICE}
    throughput(folder / "resnet", 2500.0, config={"data": IMAGENET}, **RESNET, **more)
    small = IMAGENET | {"image_shape": [32, 32, 3]}
    throughput(folder / "small", 9000.0, config={"data": small}, **RESNET, price=PRICE)
    stages = [
        filled(
            InputRecord,
            stage=stage,
            images_per_s=rate,
            images_per_s_low=rate * 0.9,
            images_per_s_high=rate * 1.1,
            windows_images_per_s=[rate] * 8,
            cores=8,
        )
        for stage, rate in (("prepare", 3000.0), ("train_step", 5000.0))
    ]
    recorded_run(folder / "input", stages, mode="input", summary={"verdict": "the host"})
    steps = [scaling_record(n, 1000.0 * n**0.9, way) for way in ("weak", "strong") for n in (1, 4)]
    steps.append(scaling_record(8, None, status="oom", reason="out of memory"))
    steps.append(filled(DeviceRecord, num_devices=1, images_per_s=990.0, status="done"))
    sums = {"num_devices": 4, "bytes": 7_600_000, "all_reduce_s": 1e-4, "bus_bytes_per_s": 1e11}
    steps.append(filled(AllReduceRecord, **sums, calls_per_window=9))
    prediction = predict(
        64,
        step_s=0.032,
        batch_per_device=32,
        gradient_bytes=7_600_000,
        link_bytes_per_s=1e9,
        link_source="stated (--link_gb_per_s)",
    )
    summary = {"predictions": [prediction], "compile_s": 3.0, "peak_memory_bytes": 7}
    recorded_run(folder / "scaling", steps, mode="scaling", summary=summary)
    recorded_run(folder / "simulated", steps[:2], mode="scaling", environment=CPU)
    published = {"kernel": 3, "channels": 1, "width": 100, "images": 840}
    cells = [conv2d_record(1), conv2d_record(2, speedup=1.9), conv2d_record(1, **published)]
    conv2d = {"experiment": "conv2d", "model": None, "parameters": None, "mode": "conv2d"}
    recorded_run(folder / "conv2d", cells, **conv2d, summary={"cells": 2, "findings": ["as fast"]})
    memory = {"planned_bytes_per_device": 2**30, "peak_memory_bytes": 2**31}
    recorded_run(folder / "memory", mode="memory", summary=memory)


def write_compiled(folder):
    """What compilers said of machines that are not here."""
    compiled(folder / "a")
    compiled(folder / "b", batch=256, fits=False, record={"refusal": "no"})
    compiled(folder / "c", "gpu:h100:8", config={"remat": "blocks"}, price=PRICE)
    compiled(folder / "d", "gpu:h100:8", scaling="weak", record={"scaling": "weak"})
    compiled(folder / "e", "tpu:v2:2x2", **RESNET)
    recorded_run(folder / "f", mode="compile", target="tpu:v2:2x2", status="failed")


def write_sweep(sweep):
    """Trials of a sweep, two of which left no run."""
    for batch in (64, 512):
        own = {"config": {"batch_size": batch}, "status": "done" if batch == 64 else "preempted"}
        throughput(sweep / "trials" / f"b{batch}" / "run1", 1000.0, **own)
    write_results(
        sweep,
        {"run": "trials/b64/run1", "place": {"batch_size": "64"}},
        {"status": "timeout", "run": "trials/b512/run1", "place": {"batch_size": "512"}},
        {"status": "oom", "reason": "out of memory", "place": {"batch_size": "4096"}},
        {"status": "failed", "reason": "killed", "place": {"target": "gpu:h100:8"}},
    )
    (sweep / "max_batch.csv").write_text("precision,status,max_batch\nfp32,done,1024\n")


def write_states(folder):
    """Runs that did not end well, or that cannot be read."""
    for status in ("oom", "diverged", "interrupted", "failed", "invalid"):
        recorded_run(folder / status, epochs([900.0]), status=status, config={"batch_size": 4096})
    recorded_run(folder / "killed", epochs([900.0]), status="running")
    change_json(trained(folder / "lost") / "run.json", status="done")
    kept = (folder / "lost" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "lost" / "metrics.jsonl").write_text("".join(kept[1:]))
    change_json(trained(folder / "wrong") / "metrics.jsonl", wall_s="long")
    (trained(folder / "cut") / "run.json").write_text('{"experiment": "cnn')
    return lock_run(recorded_run(folder / "running", epochs([10.0]), status="running"))


def test_golden_report(tmp_path, snapshot):
    lock = write_golden_runs(tmp_path / "runs")
    prices = Prices(listed=[Price("spot", "NVIDIA H200", 1, 1.8, "2026", "web")], usd_per_kwh=0.25)
    try:
        for name, asked in (("report.md", {"prices": prices}), ("report.csv", {})):
            write_report([str(tmp_path / "runs")], str(tmp_path / name), **asked)
            text = "\n".join((tmp_path / name).read_text().splitlines())
            text = text.replace(str(tmp_path), "…")
            # 12 digits of each number: Python 3.12 rounds sums otherwise than 3.11.
            shown = re.sub(r"\d+\.\d{8,}", lambda number: f"{float(number[0]):.12g}", text)
            assert shown == snapshot(name=name)
    finally:
        os.close(lock)
