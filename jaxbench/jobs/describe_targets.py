"""Print what compilers say about machines that are not here: --mode=describe --target=NAME,NAME."""

import json
import sys
from collections.abc import Sequence

from jaxbench.config import Experiment
from jaxbench.errors import BadInput
from jaxbench.jobs.ask_compiler import Answer, ask_compiler, is_asked, write_answer
from jaxbench.jobs.targets import check_target, split_targets
from jaxbench.records.writers.console import PlainConsole, create_console
from jaxbench.records.writers.targets import compiled_facts, target_table


def describe_targets(
    experiment: Experiment, names: str, arguments: Sequence[str], *, as_json: bool
) -> int:
    """Compile a training step for each target, one after the other, and print what was found.

    Args:
      experiment: a valid one.
      names: the targets, with commas between them.
      arguments: see `ask_compiler`.
      as_json: print a list of objects with the fields of `TargetRecord`, not a table.

    Returns:
      The exit code: 1 where a compiler failed.

    Raises:
      BadInput: see `check_target` and `split_targets`; also a machine that its compiler does not
        know, where it is the only one.
    """
    targets = [check_target(experiment, name) for name in split_targets(names)]
    if is_asked():
        write_answer(experiment, *targets)
        return 0
    answers: dict[str, Answer] = {}
    # Standard output is for what was found.
    console = PlainConsole(sys.stderr)
    for target in targets:
        with console.phase(f"compiling for {target.name}"):
            try:
                answers[target.name] = ask_compiler(arguments, target)
            except BadInput as error:
                if len(targets) == 1:
                    raise
                answers[target.name] = Answer(None, {}, str(error))
    failed = {name: answer.failed for name, answer in answers.items() if answer.failed}
    if as_json:
        shown = [
            answer.record.to_json() if answer.record else {"target": name, "failed": answer.failed}
            for name, answer in answers.items()
        ]
        print(json.dumps(shown))
        return int(bool(failed))
    from jaxbench.jobs.describe import print_network  # imports JAX

    console = create_console()
    if network := next((answer.network for answer in answers.values() if answer.record), None):
        print_network(network)
    records = [answer.record for answer in answers.values() if answer.record]
    for line in [*target_table(records), *compiled_facts(records)]:
        console.say(line)
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    return int(bool(failed))
