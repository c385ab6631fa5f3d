"""Run directories of a year of work: experiments, machines, batches, precisions and seeds."""

import itertools

from tests.recorded import PRICE, epochs, recorded_run, throughput

_EXPERIMENTS = {
    "cnn10": ("Cnn10", 1_900_000),
    "wrn28_10": ("WideResNet", 36_500_000),
    "resnet18": ("ResNet", 11_200_000),
    "vit_tiny": ("ViT", 5_400_000),
    "quickstart": ("SmallNet", 60_000),
}
# (device, how many, speed, price of an hour)
_MACHINES = (
    ("NVIDIA H200", 8, 8.0, 28.0),
    ("NVIDIA H200", 1, 1.2, 3.6),
    ("TPU v5e", 4, 3.1, 4.8),
    ("NVIDIA GeForce RTX 2080 Ti", 2, 0.5, 0.9),
)
_BATCHES, _PRECISIONS, _RATES = (128, 512, 2048), ("fp32", "bf16"), (0.05, 0.1, 0.2)


def write_many(folder, count, num_epochs=20):
    """Write `count` runs, each of another place in the grid, so that equal ones differ in seed."""
    grid = itertools.product(range(99), _RATES, _BATCHES, _PRECISIONS, _MACHINES, _EXPERIMENTS)
    for number, (seed, rate, batch, precision, machine, experiment) in enumerate(grid):
        if number == count:
            return folder
        kind, devices, speed, usd_per_hour = machine
        model, parameters = _EXPERIMENTS[experiment]
        images_per_s = 4000.0 * speed * (1 + 0.6 * (precision == "bf16")) * batch**0.2
        images_per_s *= 1 + 0.01 * (number % 5)
        fields = {
            "experiment": experiment,
            "model": model,
            "parameters": parameters,
            "started_at": f"2026-{1 + number % 12:02d}-{1 + number % 28:02d}T05:06:07+00:00",
            "config": {
                "batch_size": batch,
                "precision": precision,
                "seed": seed,
                "optimizer": {"name": "sgd", "learning_rate": rate},
            },
            "environment": {"device_kind": kind, "num_devices": devices, "hostname": "lab"},
            "price": PRICE | {"usd_per_hour": usd_per_hour},
        }
        place = folder / experiment / f"run{number:03d}"
        if number % 17 == 16:
            recorded_run(place, status="oom", **fields)
            continue
        if number % 7 == 6:
            throughput(place, images_per_s * 1.2, **fields)
            continue
        top1 = 0.9 + 0.01 * (number % 5)
        records = epochs(
            [images_per_s * (1 + 0.002 * (n % 4)) for n in range(num_epochs)],
            top1,
            elapsed_s=[20 + (n + 1) * 50_000 / images_per_s for n in range(num_epochs)],
        )
        summary = {
            "eval_top1": top1,
            "compile_s": 7.0,
            "median_epoch_s": 50_000 / images_per_s,
            "phases_s": {"compile": 7.0, "train": 80.0, "eval": 12.0, "other": 1.0},
            "target_accuracy": {
                "score": "top1",
                "value": 0.85,
                "reached": True,
                "energy_j": 7200.0,
            },
            "telemetry": {"joules_per_image": 0.05 / speed, "energy_j": 5e4},
        }
        recorded_run(place, records, summary=summary, **fields)
    return folder
