"""Write tasks that rent machines: `jaxbench offers --experiment=cnn10 --accelerator=...`.

Each accelerator gets a task for SkyPilot. It installs this checkout, runs the experiment with the
flags that are given here (or the card, with --qualify), and gives the machine back. Nothing is
rented: the commands that launch, fetch the results and tear down are printed, below a table of the
rates to expect, the lowest predicted cost by --prices first.
"""

import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from jaxbench.analysis.pricing import Price, read_prices
from jaxbench.batch_layout import BatchLayout
from jaxbench.cli import entry_point, main_flags
from jaxbench.cli.flag_table import define_flags
from jaxbench.cli.main_flags import check_flags, chosen_mode, reads_data
from jaxbench.config import Config, Experiment
from jaxbench.errors import BadInput
from jaxbench.modes.options import COORDINATOR_FLAGS
from jaxbench.offering.accelerators import Accelerator, lowest_price, parse_accelerators
from jaxbench.offering.folder import changed_files, check_new, write_offers
from jaxbench.offering.tasks import Work
from jaxbench.paths import user_path
from jaxbench.terminal import print_wrapped, warn

_ACCELERATOR = flags.DEFINE_multi_string(
    "accelerator", [], "What to rent, with commas between: H100:1,H100:8,tpu-v5e-8."
)
_OUT, _QUALIFY, _SOURCE, _IDLE_MINUTES = define_flags("offers")
# Flags of jaxbench.main that cannot be for all machines alike, or need more than a machine.
_OF_ONE_MACHINE = (
    *("workdir", "json", "resume", "target", "compile_cache", "wandb", "local_processes"),
    *("usd_per_hour", "offer", *COORDINATOR_FLAGS),
)


def main(spec: str | None, overrides: Sequence[str]) -> int:
    """Do what the flags say; return the exit code."""
    if not _OUT.value:
        raise BadInput("give --out=FOLDER, a new or empty one")
    if _SOURCE.value is not None and "://" not in _SOURCE.value:
        raise BadInput(
            f"--source={_SOURCE.value}: must be a URL, such as git+https://HOST/jaxbench.git"
        )
    accelerators = parse_accelerators(_ACCELERATOR.value)
    if _QUALIFY.value:
        refused = [f"--experiment={spec}"] * (spec is not None) + main_flags.given_flags()
        if refused:
            raise BadInput(f"{refused[0]} with --qualify: the card has fixed settings")
        experiment: Any = None
        parts, user_file = ("qualify", "jaxbench.qualify", (), "--out", ()), None
    else:
        prices = _take_prices()
        experiment = entry_point.load_experiment(spec, overrides)
        parts, user_file = _run(experiment, str(spec), overrides, accelerators)
    work = Work(*parts, _SOURCE.value, _IDLE_MINUTES.value)  # type: ignore[call-arg]
    out = user_path(_OUT.value)
    check_new(out)
    predictions: dict[str, Mapping[str, Any]] = {}
    if isinstance(experiment, Config):
        predictions = _predict(experiment, accelerators, prices)
        accelerators.sort(key=lambda one: [*predictions].index(one.name))
    if _SOURCE.value is None and changed_files():
        warn("jaxbench: changes that are not committed are not sent")
    command = shlex.join(["jaxbench", "offers", *sys.argv[1:]])
    tasks = write_offers(out, work, accelerators, predictions, command, user_file)
    print(f"cd {shlex.quote(str(out))}")
    for name, task in tasks.items():
        print(f"\n# {name} with SkyPilot: launch, fetch the results, give the machine back")
        print("\n".join(task.commands))
    print()
    print_wrapped(f"# Afterwards: jaxbench report {shlex.quote(str(out))}")
    return 0


def _take_prices() -> list[Price]:
    """Return the offers of --prices, which rank the machines and are no flag of their runs."""
    flag = flags.FLAGS["prices"]
    path, flag.present = flag.value, 0
    flag.unparse()
    return read_prices(path) if path else []


def _predict(
    experiment: Config, accelerators: Sequence[Accelerator], prices: Sequence[Price]
) -> dict[str, Mapping[str, Any]]:
    """Return {accelerator: its prediction}, the cheapest first, and print a table of them."""
    from jaxbench.modes.predictions import Predictor, ranked, ranking_lines  # imports JAX

    predictor = Predictor(experiment)
    answers = []
    for one in accelerators:
        price = lowest_price(prices, one.target.kind, one.target.num_devices)
        answers.append(predictor.predict(one.target, price) | {"target": one.name})
    for line in [*ranking_lines(experiment, answers), ""]:
        print_wrapped(line)
    return {answer["target"]: answer for _, answer in ranked(answers)}


def _run(
    experiment: Any, spec: str, overrides: Sequence[str], accelerators: Sequence[Accelerator]
) -> tuple[Any, pathlib.Path | None]:
    """Return the first fields of `Work`, and the user's experiment file."""
    for name in _OF_ONE_MACHINE:
        if flags.FLAGS[name].present:
            raise BadInput(f"--{name}: is for one run; each offer has its own machine and folder")
    mode = chosen_mode(experiment)
    if mode == "describe":
        raise BadInput("--mode=describe: runs nothing; an offer is for the other modes")
    check_flags(experiment, mode)
    for accelerator in accelerators:
        _check_devices(experiment, accelerator)
    extras = []
    if reads_data(experiment, mode):
        if experiment.data.path:
            warn(
                f"jaxbench: data.path={experiment.data.path}: has to be on the rented machines; "
                "add file_mounts to the tasks"
            )
        elif experiment.data.source == "tfds":
            extras = ["prepare"]
    file, colon, variant = spec.partition(":")
    user_file = user_path(file) if file.endswith(".py") else None
    sent = f"{user_file.name}{colon}{variant}" if user_file else spec
    arguments = [f"--experiment={sent}", *overrides, *main_flags.given_flags()]
    return (experiment.name, "jaxbench.main", arguments, "--workdir", extras), user_file


def _check_devices(experiment: Experiment, accelerator: Accelerator) -> None:
    """Raise BadInput if the machine lacks devices, or they cannot do the batch or the attention."""
    most = accelerator.target.num_devices
    num_devices = experiment.num_devices or most
    try:
        if num_devices > most:
            raise BadInput(f"num_devices={num_devices}: it has {most}; 0 takes all of them")
        if isinstance(experiment, Config):
            from jaxbench.modes.runner import describe_attention  # imports JAX

            BatchLayout.create(experiment, num_devices)
            describe_attention(experiment, accelerator.target.devices[0])
    except BadInput as error:
        raise BadInput(f"--accelerator={accelerator.name}: {error}") from error


if __name__ == "__main__":
    flags.adopt_module_key_flags(main_flags)  # --help shows them
    entry_point.run_with_experiment(main)
