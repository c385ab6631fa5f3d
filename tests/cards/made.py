"""Cards for tests: a healthy one of four GPUs, and what tests change in it."""

import json
import random

from msgspec.structs import replace

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card import Card, Expected, HostLoad, Part, measured
from jaxbench.cards.card_file import digest_of, write_card
from jaxbench.cards.expected import expect
from jaxbench.cards.figures import STANDARD
from jaxbench.cards.verdict import judge
from jaxbench.hardware.system import Check

PEAK_TFLOPS, PEAK_GB_PER_S = 989.4, 3352.0
NETWORK = {"network": "resnet50", "precision": "bf16", "batch": 256}
FLOPS = 24_535_105_536
PEAK_FP32_TFLOPS, PEAK_TF32_TFLOPS = 66.9, 494.7
RUN, SOAK = "runs/resnet50", "runs/soak"
DEVICES = range(4)


def around(name, value, **how):
    """A figure with an interval of 1 % to both sides."""
    return measured(name, Estimate(value, value * 0.99, value * 1.01), **how)


def ceilings(matmul=700.0, triad=3000.0):
    """Of four devices; `matmul` and `triad` may be a value for each."""
    matmuls = matmul if isinstance(matmul, list) else [matmul] * 4
    triads = triad if isinstance(triad, list) else [triad] * 4
    figures = [
        figure
        for device in DEVICES
        for figure in (
            around("matmul_bf16_tflops", matmuls[device], device=device),
            around("matmul_fp32_tflops", 50.0, device=device),
            around("copy_gb_per_s", 3000.0, device=device),
            around("scale_gb_per_s", 3000.0, device=device),
            around("triad_gb_per_s", triads[device], device=device),
            around("dispatch_latency_s", 1e-5, device=device),
            around("h2d_gb_per_s", 50.0, device=device),
        )
    ]
    return Part(name="ceilings", status="measured", time_s=60.0, figures=tuple(figures))


def collectives():
    pairs = [(a, b) for a in DEVICES for b in DEVICES if a < b]
    figures = [measured("pair_gb_per_s", 100.0 + a + b, source=a, peer=b) for a, b in pairs]
    for collective, factor in (("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75)):
        labels = {"collective": collective, "bytes": 2**28}
        figures.append(measured("bus_gb_per_s", 250.0 * factor, **labels))
    return Part(name="collectives", status="measured", time_s=20.0, figures=tuple(figures))


def networks(images_per_s=10_000.0, mfu=None, matmul=700.0, others=True):
    """Return a card's networks, whose matmul ceiling is `matmul` TFLOP/s.

    `mfu` follows from the rate if it is not given. `others=False` leaves one network of the preset,
    and no reason for the missing ones.
    """
    tflops = images_per_s * FLOPS / 4 / 1e12
    figures = (
        around("images_per_s", images_per_s, run=RUN, **NETWORK),
        measured("flops_per_image", FLOPS, run=RUN, **NETWORK),
        measured("mfu", tflops / PEAK_TFLOPS if mfu is None else mfu, run=RUN, **NETWORK),
        measured("measured_peak_share", tflops / matmul, run=RUN, **NETWORK),
        measured("energy_j_per_image", 0.2, run=RUN, **NETWORK),
        *(other_networks(matmul) if others else ()),
    )
    return Part(name="networks", status="measured", time_s=200.0, figures=figures)


def other_networks(matmul):
    """Figures of the preset's other networks and precisions: 130 TFLOP/s on each device."""
    for precision, peak in (("bf16", PEAK_TFLOPS), ("fp32", PEAK_TF32_TFLOPS)):
        for network in STANDARD.networks:
            batch = network.batch_per_device * 4
            labels = {"network": network.spec, "precision": precision, "batch": batch}
            if labels == NETWORK:
                continue
            how = {"run": f"runs/{network.spec}-{precision}", **labels}
            yield measured("images_per_s", 520e12 / network.flops_per_image, **how)
            yield measured("flops_per_image", network.flops_per_image, **how)
            yield measured("mfu", 130 / peak, **how)
            if precision == "bf16":
                yield measured("measured_peak_share", 130 / matmul, **how)


def soak(
    drift=(-0.5, -1.0, 0.2),
    throttled=0.0,
    reason="any",
    errors=0,
    counter="nvlink_errors",
    before=3,
):
    value, low, high = drift
    figures = (
        measured("drift_percent", Estimate(value, low, high), run=SOAK),
        measured("throttled_share", throttled, device=0, reason=reason),
        measured("errors_before", before, device=0, counter=counter),
        measured("errors_after", before + errors, device=0, counter=counter),
    )
    return Part(name="soak", status="measured", time_s=100.0, figures=figures)


def corruption(mismatches=0, named=()):
    """Device 1 has all mismatches."""
    figures = [measured("rounds", 8)]
    figures += [measured("mismatches", mismatches * (at == 1), device=at) for at in DEVICES]
    for round_, tensor in named:
        values = {"round": round_, "tensor": tensor}
        figures.append(measured("mismatched_values", 2, device=1, **values))
    return Part(name="corruption", status="measured", time_s=30.0, figures=tuple(figures))


def doctor(**statuses):
    checks = [Check(name=name, status=status, detail="it") for name, status in statuses.items()]
    checks.append(Check(name="jax", status="ok", detail="0.10.2"))
    return Part(name="doctor", status="measured", time_s=1.0, checks=tuple(checks))


def skipped(name, status="skipped", reason="there is no time"):
    return Part(name=name, status=status, reason=reason, time_s=0.0)


def card(
    *parts,
    load=(1.0, 0),
    busy=None,
    kind="NVIDIA H100 80GB HBM3",
    backend="gpu",
    host="lab",
    **fields,
):
    """A card of the standard parts; those that are given take the place of their like."""
    own = [doctor(), ceilings(), collectives(), networks(), soak(), corruption()]
    own = {part.name: part for part in (*own, *parts)}
    environment = {
        "hostname": host,
        "backend": backend,
        "device_kind": kind,
        "num_devices": 4,
        "devices": [{"id": device, "kind": kind} for device in DEVICES],
    }
    return Card(
        **{
            "jaxbench_version": "0.1.0",
            "created_at": "2026-03-04T05:06:07+00:00",
            "minutes_asked": 10.0,
            "minutes_taken": 8.0,
            "environment": environment,
            "preset": "standard-1",
            "load": HostLoad(
                other_cpu_percent=load[0], cpu_percent=busy, other_gpu_processes=load[1]
            ),
            "parts": tuple(own.values()),
        }
        | fields
    )


def fleet(count, **fields):
    """Sound cards of one kind, which differ by 0.3 %."""
    draw = random.Random(0)
    return [
        judged(
            ceilings([700 + draw.gauss(0, 2) for _ in DEVICES]),
            networks(10_000 + draw.gauss(0, 20)),
            host=f"node{number}",
            **fields,
        )
        for number in range(1, count + 1)
    ]


def expected(card, others):
    """The card with what to expect of it; of its networks `NETWORK` is predicted, on an H100."""

    def predict(figure, card):
        known = "H100" in card.environment["device_kind"] and figure.labels["network"] == "resnet50"
        if known and figure.labels["precision"] == "bf16":
            return Expected("predicted", "817 published rates", 10_600.0, 7_300.0, 15_300.0)
        return None

    return expect(card, others, predict)


def with_verdict(one):
    return replace(one, verdict=judge(one))


def judged(*parts, **fields):
    return with_verdict(card(*parts, **fields))


def write(folder, made=None):
    """Writes a card; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_card(folder, made or judged())


def alter(path, change, digest=True):
    """Changes the content of a card.json in place; its digest follows, or does not."""
    content = json.loads(path.read_text())
    change(content)
    if digest:
        content["digest"] = digest_of(content)
    path.write_text(json.dumps(content))
    return path
