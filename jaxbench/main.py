"""Run one experiment: `python -m jaxbench.main --experiment=wrn28_10`.

--experiment=list lists all experiments; --experiment.FIELD=VALUE overrides a field, as in
--experiment.batch_size=512; --mode=describe shows every field without training. The documentation
(docs/, page Fields) explains each of them.
"""

import inspect
import json
import sys
from typing import Any

from absl import flags

from jaxbench.cli import entry_point, main_flags, price_flags, process_flags, registry
from jaxbench.cli.main_checks import check_flags, checkpoint_policy, chosen_mode, parse_counts
from jaxbench.clock import process_age_s
from jaxbench.config import Experiment
from jaxbench.custom.code import config_record
from jaxbench.errors import BadInput
from jaxbench.hardware.targets.target import list_targets
from jaxbench.modes import import_mode
from jaxbench.modes.targets import describe_targets, is_asked, split_targets
from jaxbench.parallel import processes
from jaxbench.parallel.launch_local import run_local_processes
from jaxbench.parallel.signals import defer_signals, set_grace_period
from jaxbench.records.reader import flat
from jaxbench.terminal import warn, wrap

flags.adopt_module_key_flags(main_flags)

# Where the value of a function's keyword comes from, if not from the flag of its name.
_COMPUTED = {
    "price": price_flags.stated_price,
    "checkpoints": checkpoint_policy,
    "device_counts": lambda: parse_counts(main_flags.DEVICE_COUNTS.value),
    "import_s": process_age_s,
}


def main() -> int:
    """Do what the flags say; return the exit code."""
    experiment = flags.FLAGS.experiment
    if experiment == "list":
        purposes = registry.available()
        width = max(map(len, purposes))
        for name, purpose in purposes.items():
            print("\n".join(wrap(f"{name:<{width}}  {purpose}", " " * (width + 2))))
        return 0
    if main_flags.TARGET.value == "list":
        print("\n".join(list_targets()))
        return 0
    set_grace_period(main_flags.GRACE_PERIOD_S.value)
    mode = chosen_mode(experiment)
    if main_flags.TARGET.value and mode != "describe":
        return _compile(experiment, mode)
    check_flags(experiment)
    if process_flags.LOCAL_PROCESSES.value:
        return run_local_processes(sys.orig_argv, process_flags.LOCAL_PROCESSES.value)
    if main_flags.XLA_FLAGS.value:
        from jaxbench.xla.flags import add_xla_flags

        for flag in add_xla_flags(main_flags.XLA_FLAGS.value):
            warn(f"jaxbench: XLA does not know {flag}: left out")
    from jaxbench.hardware.backend_flags import prepare_backend

    prepare_backend(main_flags.BACKEND_FLAGS.value)
    config = process_flags.coordinator_config(one_host=mode != "describe")
    with processes.process_group(config, process_flags.exit_status):
        if processes.count() > 1:
            processes.check_same("the command", _common_facts(experiment, mode))
        if mode == "describe":
            return _describe(experiment)
        return _run(experiment, mode)


def _common_facts(experiment: Experiment, mode: str) -> dict[str, Any]:
    """Return, by name, everything that must be the same in all processes of a run."""
    with defer_signals():
        from jaxbench.hardware.environment import describe_code
    fields = flat(config_record(experiment))
    own = {f"data.{name}" for name in main_flags.OF_EACH}
    return {
        "--num_processes": processes.count(),
        "--mode": mode,
        **{f"--{name}": flags.FLAGS[name].value for name in main_flags.OF_ALL},
        **{f"--experiment.{name}": value for name, value in fields if name not in own},
        **describe_code(),
    }


def _run(experiment: Experiment, mode: str) -> int:
    # Imported before the keywords are computed: `import_s` includes it.
    run = import_mode(mode)
    keywords = {
        name: _COMPUTED[name]() if name in _COMPUTED else flags.FLAGS[name].value
        for name in inspect.getfullargspec(run).kwonlyargs
    }
    result = run(experiment, main_flags.WORKDIR.value, **keywords)
    return int(result.summary.get("status") == "invalid")


def _compile(experiment: Experiment, mode: str) -> int:
    """Record what a compiler says of a target."""
    check_flags(experiment)
    from jaxbench.modes import target_run

    name, *others = split_targets(main_flags.TARGET.value)
    if others:
        raise BadInput(
            f"--target={main_flags.TARGET.value} with --mode={mode}: must be one machine; "
            "--mode=describe and jaxbench.sweep take several"
        )
    what = {"arguments": _compiler_arguments(), "target": name}
    if mode == "scaling":
        scaling = main_flags.SCALING.value
        target_run.compile_scaling(experiment, main_flags.WORKDIR.value, scaling=scaling, **what)
    else:
        target_run.compile_memory(experiment, main_flags.WORKDIR.value, **what)
    return 0


def _compiler_arguments() -> list[str]:
    """Return what a process that compiles for a target is given."""
    _, spec, overrides = entry_point.take_experiment(sys.argv)
    for override in overrides:
        if override.lstrip("-").startswith("experiment.num_devices="):
            raise BadInput(f"{override} with --target: a target has as many as its name says")
    given = [flags.FLAGS[name] for name in ("compile_cache", "xla_flags")]
    own = [f"--{flag.name}={flag.value}" for flag in given if flag.present]
    return [f"--experiment={spec}", *overrides, *own]


def _describe(experiment: Experiment) -> int:
    if main_flags.TARGET.value:
        if is_asked():
            from jaxbench.modes.target_run import write_answer

            write_answer(experiment, main_flags.TARGET.value)
            return 0
        return describe_targets(
            experiment,
            main_flags.TARGET.value,
            _compiler_arguments(),
            as_json=main_flags.JSON.value,
        )
    from jaxbench.modes.describe import describe, print_description

    description = describe(experiment)
    if main_flags.JSON.value:
        print(json.dumps(description))
    else:
        print_description(description, experiment)
    return 0


if __name__ == "__main__":
    entry_point.run(main)
