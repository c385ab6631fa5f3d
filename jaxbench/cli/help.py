"""What --help prints: the text of the command, then its flags by groups, a line or two each."""

import re
import sys

from absl import flags

from jaxbench.modes.options import ALL, OPTIONS, RUNS
from jaxbench.terminal import wrap

_INDENT = 24
_NAMES_ONLY = {"price": "Price", "processes": "Several processes"}
_GROUPS = ("Flags", "Training", "Other modes", "Other machines", "Any run", *_NAMES_ONLY.values())
_NO_DEFAULTS = ("", "false", "0", "[]")
_EXPERIMENT = {
    "--experiment": "A name (list shows all), or the path of a .py file",
    "--experiment.FIELD": "Override a field (--mode=describe shows all)",
}


def help_text(takes_experiment: bool) -> str:
    """Return the help of the command that runs; --helpfull has the whole text of each flag."""
    groups: dict[str, dict[str, str]] = {name: {} for name in _GROUPS}
    groups["Flags"] |= _EXPERIMENT if takes_experiment else {}
    for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0]):
        groups[_group(flag.name)][f"--{flag.name}"] = _first_sentence(flag)
    lines: list[str] = []
    for part in (sys.modules["__main__"].__doc__ or "").strip().split("\n\n"):
        is_text = not re.search(r"^([ *]|jaxbench )", part, re.MULTILINE)
        lines += ["", *(wrap(" ".join(part.split()), "") if is_text else [part])]
    for group, texts in groups.items():
        if texts and group in _NAMES_ONLY.values():
            lines += ["", *wrap(f"{group}: {', '.join(texts)}")]
        elif texts:
            lines += ["", f"{group}:"]
            for name, text in texts.items():
                lines += wrap(f"  {name:<{_INDENT - 3}} {text}", " " * _INDENT)
    return "\n".join([*lines[1:], "", "--helpfull explains all flags in full."])


def _first_sentence(flag: flags.Flag) -> str:
    text = re.split(r"[.;] ", " ".join(flag.help.split()))[0].rstrip(".")
    # The group says for which mode a flag is.
    text = re.sub("^With --mode=(train|describe[^:]*): (with --target: )?", "", text)
    default = (flag.default_as_str or "").strip("'")
    return text[:1].upper() + text[1:] + f" (default {default})" * (default not in _NO_DEFAULTS)


def _group(flag: str) -> str:
    module = flags.FLAGS.find_module_defining_flag(flag)
    if not str(module).startswith("jaxbench.cli.") or flag in ("mode", "workdir"):
        return "Flags"
    option = OPTIONS[flag]
    if option.kind in _NAMES_ONLY:
        return _NAMES_ONLY[option.kind]
    if option.any_modes in (RUNS, ALL):
        return "Any run"
    if "describe" in option.target_modes:
        return "Other machines"
    return "Training" if "train" in option.modes else "Other modes"
