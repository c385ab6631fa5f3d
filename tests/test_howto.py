"""The tutorials about custom code: every block is written or run."""

import re
import shlex

import pytest

from tests.conftest import ROOT, run_json

PAGES = ("custom-network", "custom-optimizer", "custom-data", "custom-task")
_FILE = re.compile(
    r"^```python\n# (\w+\.py)\n(.*?)^```\n(?:[^`]|`[^`])*?^```sh\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _text(page: str) -> str:
    return (ROOT / "docs" / "howto" / f"{page}.md").read_text()


FILES = {(page, m[1]): (m[2], m[3]) for page in PAGES for m in _FILE.finditer(_text(page))}


@pytest.mark.parametrize(("page", "file"), FILES)
def test_a_file_of_a_tutorial_does_what_its_commands_say(run_cli, tmp_path, page, file):
    code, commands = FILES[page, file]
    (tmp_path / file).write_text(code)
    for number, line in enumerate(commands.splitlines()):
        program, command, *args = shlex.split(line)
        assert (program, command) == ("jaxbench", "main") and f"--experiment={file}" in args
        if "--mode=describe" not in args:
            args += [f"--workdir=run{number}", "--telemetry_s=0"]
            args += ["--experiment.num_devices=2", "--experiment.max_steps=4"]
        done = run_cli(*args)
        assert done.returncode == 0, (line, done.stderr)
    if page == "custom-task":
        assert 0 < run_json(tmp_path / "run0")["summary"]["eval_metrics"]["confidence"] < 1


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_begins_with_its_template_and_leaves_no_block_out(page):
    text = _text(page)
    new, main = _COMMANDS.search(text)[1].splitlines()  # test_new.py tries the templates
    kind, file = new.removeprefix("jaxbench new ").split()
    assert page == f"custom-{kind}" and main.startswith(f"jaxbench main --experiment={file}")
    files = [file for other, file in FILES if other == page]
    assert len(files) == text.count("```python") == len(_COMMANDS.findall(text)) - 1
