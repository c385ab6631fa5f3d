"""Run one experiment: train it, or measure how fast the devices are.

jaxbench main --experiment=quickstart
jaxbench main --experiment=cnn10 --experiment.batch_size=512 --mode=throughput
jaxbench main --experiment=resnet50:synthetic --mode=describe --target=gpu:h100:8
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxbench.cli import entry_point, main_flags, price_flags, process_flags, registry
from jaxbench.clock import process_age_s
from jaxbench.config import Experiment
from jaxbench.config.custom import config_record
from jaxbench.config.fields import names_that_may_differ
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import list_targets, split_targets
from jaxbench.modes import import_mode
from jaxbench.modes.options import OPTIONS
from jaxbench.parallel import processes
from jaxbench.parallel.launch_local import run_local_processes
from jaxbench.parallel.signals import defer_signals, set_grace_period
from jaxbench.records.reader import flat
from jaxbench.terminal import print_wrapped, wrap

flags.adopt_module_key_flags(main_flags)


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Do what the flags say; return the exit code."""
    target = flags.FLAGS.target
    if spec == "list":
        purposes = registry.available()
        width = max(map(len, purposes))
        for name, purpose in purposes.items():
            print("\n".join(wrap(f"{name:<{width}}  {purpose}", " " * (width + 2))))
        return 0
    if target == "list":
        print("\n".join(list_targets()))
        return 0
    experiment = entry_point.load_experiment(spec, overrides)
    set_grace_period(flags.FLAGS.grace_period_s)
    mode = main_flags.chosen_mode(experiment)
    keywords = main_flags.check_flags(experiment, mode)
    compiling = _compiling(spec, overrides) if target else {}
    if target and mode != "describe":
        from jaxbench.modes.targets import compile_for

        if len(split_targets(target)) > 1:
            raise BadInput(
                f"--target={target} with --mode={mode}: must be one machine; "
                "--mode=describe and jaxbench.sweep take several"
            )
        scaling = flags.FLAGS.scaling if mode == "scaling" else None
        price = next(iter(price_flags.target_prices(target).values()), None)
        workdir = flags.FLAGS.workdir
        compile_for(target, experiment, workdir, scaling=scaling, price=price, **compiling)
        return 0
    if flags.FLAGS.local_processes:
        return run_local_processes(sys.orig_argv, flags.FLAGS.local_processes)
    from jaxbench.hardware.backend_flags import start_backend

    names = ("profile", "xla_flags", "backend_flags", "deterministic")
    given: dict[str, Any] = {name: flags.FLAGS[name].value for name in names}
    start_backend(print_wrapped, compile_cache=main_flags.cache_setting(), **given)
    config = process_flags.coordinator_config(one_host=mode != "describe")
    with processes.process_group(config, process_flags.exit_status):
        if processes.count() > 1:
            processes.check_same("the command", _common_settings(experiment, mode))
        if mode == "describe":
            return _describe(experiment, target, compiling)
        # Imported before the keywords are computed: `import_s` includes it.
        run = import_mode(mode)
        if mode in OPTIONS["offer"].modes:
            keywords["price"] = price_flags.stated_price()
        if mode == "train":
            keywords["import_s"] = process_age_s()
        result = run(experiment, flags.FLAGS.workdir, **keywords)
        return int(result.summary.get("status") == "invalid")


def _common_settings(experiment: Experiment, mode: str) -> dict[str, Any]:
    """Return, by name, everything that must be the same in all processes of a run."""
    with defer_signals():
        from jaxbench.hardware.environment import describe_code
    fields = flat(config_record(experiment))
    of_each = names_that_may_differ(experiment, "processes")
    return {
        "--num_processes": processes.count(),
        "--mode": mode,
        **{f"--{name}": flags.FLAGS[name].value for name, one in OPTIONS.items() if one.same},
        **{f"--experiment.{name}": value for name, value in fields if name not in of_each},
        **describe_code(),
    }


def _compiling(spec: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the keywords of what predicts and compiles for a target, but for prices."""
    for override in overrides:
        if override.lstrip("-").startswith("experiment.num_devices="):
            raise BadInput(f"{override} with --target: the target's name says how many")
    forwarded = [flags.FLAGS[name] for name in ("compile_cache", "xla_flags")]
    forwarded = [f"--{flag.name}={flag.value}" for flag in forwarded if flag.present]
    anchor = flags.FLAGS.anchor
    return {
        "arguments": [f"--experiment={spec}", *overrides, *forwarded],
        "calibration": flags.FLAGS.calibration,
        "anchors": anchor.split(",") if anchor else (),
    }


def _describe(experiment: Experiment, target: str | None, compiling: dict[str, Any]) -> int:
    if target:
        from jaxbench.modes.targets import describe_targets

        prices = price_flags.target_prices(target)
        as_json = flags.FLAGS.json
        return describe_targets(experiment, target, as_json=as_json, prices=prices, **compiling)
    from jaxbench.modes.describe import describe, print_description

    description = describe(experiment)
    if flags.FLAGS.json:
        print(json.dumps(description))
    else:
        print_description(description, experiment)
    return 0


if __name__ == "__main__":
    entry_point.run_with_experiment(main)
