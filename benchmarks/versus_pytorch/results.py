"""The contestants' records, the printed table, and what is wrong with a comparison."""

import statistics
from typing import Any

from contestant import Contestant
from step_server import AGREEING_STEPS, FIRST_STEPS

from jaxbench.analysis.rate import design_doubts
from jaxbench.analysis.statistics import median_interval
from jaxbench.hardware.peak_table import find_peak
from jaxbench.modes.windows import describe_windows

# The losses of the first `AGREEING_STEPS` steps must agree to this share. Rounding grows from step
# to step.
AGREEMENT = {"fp32": 5e-3, "bf16": 3e-2, "fp16": 1e-2}
# Losses hardly tell one optimizer from another so early; how far each parameter has gone by then
# does. Half of all distances must agree to this share (without momentum they are 46 % less), which
# leaves room for TF32, and every one to the last: rounding can make much of a small one, and one
# that was left out has not moved. Whether weights decay shows in neither.
DISTANCE_AGREEMENT = {"fp32": 2e-2, "bf16": 1e-1, "fp16": 3e-2}
DISTANCE_LIMIT = 0.9


def headline(config: Any, rounds: int, window_s: float) -> str:
    rule = config.optimizer
    rate = rule.learning_rate * config.batch_size / rule.base_batch_size
    momentum = "" if rule.name == "adamw" else f"momentum {rule.momentum:g}, "
    return (
        f"{config.name}: batch {config.batch_size} of "
        f"{'x'.join(map(str, config.data.example_shape))}, {config.precision}, {rule.name} (rate "
        f"{rate:g}, {momentum}weight decay {rule.weight_decay:g} on {rule.weight_decay_on}), "
        f"label smoothing {config.label_smoothing:g}, one device, "
        f"{rounds} rounds of {window_s:g} s"
    )


def environment_lines(field: list[Contestant], config: Any) -> list[str]:
    ours = field[0].facts["environment"]
    versions = ours["versions"]
    lines = [
        f"jax {versions['jax']}, {ours['device_kind']}, {ours['cpu']}, {ours['cpu_cores']} cores"
        + (f", driver {ours['driver']}" if ours["driver"] else "")
    ]
    facts = next((c.facts for c in field[1:] if c.facts), None)
    theirs = facts["environment"] if facts else None
    if theirs:
        lines.append(
            f"torch {theirs['torch']}, {theirs['device_kind']}, {theirs['threads']} threads"
            + (f", CUDA {theirs['cuda']}, cuDNN {theirs['cudnn']}" if theirs["cuda"] else "")
            + {"bf16": ", bf16 by autocast", "fp16": ", fp16 by autocast and GradScaler"}.get(
                config.precision, ""
            )
            + ("" if facts["fused_optimizer"] else ", no fused optimizer for it")
        )
    if config.precision == "fp32" and field[0].facts["platform"] != "cpu":
        asked = ours["matmul_precision"] or "default (TF32 where the GPU has it)"
        lines.append(
            f"fp32 is multiplied by JAX as: {asked}"
            + (
                f"; by PyTorch in TF32: convolutions {theirs['tf32_convolutions']}, "
                f"dense layers {theirs['tf32_matmul']}"
                if theirs
                else ""
            )
        )
    return lines


def describe(contestant: Contestant, config: Any, ours: Contestant) -> dict[str, Any]:
    """Return a contestant's record; what is unknown is null."""

    record = {
        "contestant": contestant.name,
        "failed": contestant.failed,
        "steps_per_window": contestant.calls,
        "last_loss": contestant.last_loss,
        "mfu": None,
        "ratio": None,
    } | contestant.facts
    if contestant.failed:
        return record
    record |= describe_windows(config.batch_size * contestant.calls, contestant.windows_s)
    environment = ours.facts["environment"]
    peak = find_peak(environment["device_kind"], config.precision, environment["matmul_precision"])
    if peak:
        flops_per_s = record["images_per_s"] * ours.facts["flops_per_image"]
        record |= {"mfu": flops_per_s / peak.flops_per_s, "peak": peak._asdict()}
    if "compile" in contestant.name:
        # It compiles in its first step, and does not say how long.
        step_s = statistics.median(contestant.windows_s) / contestant.calls
        record["compile_s"] = max(0.0, record["first_step_s"] - step_s)
    if contestant is not ours and not ours.failed:
        steps = ours.calls / contestant.calls
        record["ratio"] = median_interval(
            [
                steps * theirs / own
                for own, theirs in zip(ours.windows_s, contestant.windows_s, strict=True)
            ]
        )
    return record


def print_results(results: list[dict[str, Any]], precision: str, min_ratio: float) -> list[str]:
    """Print the table and the ratio; return what makes it no comparison, or a lost one."""
    width = max(len(record["contestant"]) for record in results)
    print(
        f"\n{'':{width}}  {'images/s (95 % interval)':<32}  {'MFU':>6}  {'peak memory':>13}"
        f"  {'compile':>8}  {'first step':>10}  jaxbench / it (95 % interval)"
    )
    problems = []
    for record in results:
        name = record["contestant"]
        if record["failed"]:
            print(f"{name:{width}}  failed: {record['failed']}")
            problems.append(f"{name} failed")
            continue
        interval = f"({record['images_per_s_low']:,.1f} to {record['images_per_s_high']:,.1f})"
        mfu = f"{record['mfu']:.1%}" if record["mfu"] is not None else "-"
        memory = record["peak_memory_bytes"]
        where = "" if memory is not None else " host"
        memory = f"{(memory or record['host_peak_memory_bytes']) / 2**30:.2f} GiB{where}"
        compile_s = f"{record['compile_s']:.1f} s" if "compile_s" in record else "-"
        ratio = ""
        if record["ratio"]:
            ratio = "{:.3f} ({:.3f} to {:.3f})".format(*record["ratio"])
        line = (
            f"{name:{width}}  {record['images_per_s']:9,.1f} {interval:<22}  {mfu:>6}  {memory:>13}"
            f"  {compile_s:>8}  {record['first_step_s']:8.2f} s  {ratio}"
        )
        print(line.rstrip())
        if record["mfu"] is not None and record["mfu"] > 1:
            problems.append(f"{name} cannot be that fast: its MFU is above 100 %")
    running = [record for record in results if not record["failed"]]
    print(f"\nloss after steps 1 to {FIRST_STEPS} from the same parameters, and after all windows:")
    for record in running:
        losses = "  ".join(f"{loss:8.5f}" for loss in record["losses"])
        print(f"{record['contestant']:{width}}  {losses}  ...  {record['last_loss']:8.5f}")
        if not record["last_loss"] < record["losses"][0]:
            problems.append(f"the loss of {record['contestant']} did not fall")
    for record in running[1:]:
        pairs = list(zip(running[0]["losses"], record["losses"], strict=True))[:AGREEING_STEPS]
        apart = max(abs(own - other) / abs(own) for own, other in pairs)
        if not apart <= AGREEMENT[precision]:
            problems.append(
                f"{record['contestant']} does other work: its first {AGREEING_STEPS} losses differ "
                f"by up to {apart:.2%}, {AGREEMENT[precision]:.1%} is allowed"
            )
        if problem := other_updates(running[0]["distances"], record["distances"], precision):
            problems.append(f"{record['contestant']} does other work: {problem}")
    compared = [record for record in running if record["ratio"]]
    if compared:
        best = max(compared, key=lambda record: record["images_per_s"])
        ratio, low, high = best["ratio"]
        # Each contestant is one process.
        [doubt] = design_doubts([("A", [""]), ("B", [""])], same_host=True)
        print(
            f"\nbest PyTorch variant: {best['contestant']} (A); jaxbench (B) / it {ratio:.3f} "
            f"(95 % interval of the windows {low:.3f} to {high:.3f}): inconclusive: {doubt}"
        )
        if low < min_ratio:
            how = "is" if high < min_ratio else "may be"
            problems.append(f"jaxbench {how} below {min_ratio:g} times the best PyTorch variant")
    for problem in problems:
        print(problem)
    return problems


def other_updates(ours: dict[str, float], theirs: dict[str, float], precision: str) -> str | None:
    """Return why parameters have not gone as far on both sides; None where they have."""
    if ours.keys() != theirs.keys():
        return f"its parameters are others: {', '.join(sorted(ours.keys() ^ theirs.keys()))[:200]}"
    apart = {
        name: abs(ours[name] - theirs[name]) / max(ours[name], theirs[name], 1e-30) for name in ours
    }
    farthest = max(apart, key=apart.__getitem__)
    if not apart[farthest] <= DISTANCE_LIMIT:
        return (
            f"after {AGREEING_STEPS} steps {farthest} is {theirs[farthest]:.3g} from its start, "
            f"ours {ours[farthest]:.3g}"
        )
    typical = statistics.median(apart.values())
    if not typical <= DISTANCE_AGREEMENT[precision]:
        return (
            f"after {AGREEING_STEPS} steps the distances of parameters from their start differ by "
            f"{typical:.1%} (median), {DISTANCE_AGREEMENT[precision]:.0%} is allowed"
        )
    return None
