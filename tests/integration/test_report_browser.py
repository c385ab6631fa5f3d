"""A report over real runs, opened in a real browser: nothing missing, cut off or unreadable.

The runs are made by the entry points in all states that a reader may meet. The browser is the
system's Chromium; without it, or without Playwright, these tests are skipped.
"""

import contextlib
import fcntl
import functools
import itertools
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import cv2
import pytest

from jaxbench.analysis.rate import Estimate
from jaxbench.cards.card_file import write_card
from jaxbench.clock import Stopwatch
from jaxbench.launchers import local
from jaxbench.parallel import child
from jaxbench.reports.blocks import Dot, DotChart, LineChart, Point, Section, Series
from jaxbench.reports.write import render_html
from jaxbench.tables.columns import Cell, metric_column
from jaxbench.tables.table import Table, make_table
from tests.cards import made
from tests.conftest import MICRO, ROOT, UNOPTIMIZED, run_json
from tests.in_process import run_command
from tests.integration.browser import DESKTOP, PAPER, PHONE, unfold
from tests.integration.conftest import program, run_program, wait_for
from tests.launchers.fakes import fake_child
from tests.recorded import compiled

# In the order of the page; another section of the report is added here.
SECTIONS = [
    *("overview", "cards", "card-details", "before-you-rent", "runs", "rates"),
    *("learning", "time", "scaling", "telemetry", "conv2d", "cost", "target"),
]
# Those that are tables alone.
WITHOUT_CHARTS = {"overview", "cards", "card-details", "runs", "time", "conv2d", "cost"}
DAMAGED = "corrupt <b>"
MARKUP = '<script>alert(1)</script>/"><img src=x onerror=alert(2)>'
CNN = "--experiment=cnn10:tiny"
SMALL = f"--experiment={MICRO}"
ONE, PRICE = "--experiment.num_devices=1", "--usd_per_hour=2.5"
SHORT = "--rounds=6 --window_s=0.02"
# So large a batch does not fit: it is asked in a process of its own, whose memory is limited.
TOO_LARGE = "batch_size=32768"
# What is run, and with which exit code it ends.
COMMANDS = {
    f"main {CNN} --experiment.epochs=1 {ONE} --workdir=cnn10": 0,
    f"sweep {SMALL} --grid=num_devices=1,2 --grid=precision=fp32,bf16 {PRICE} --sweepdir=sweep": 0,
    # 127 does not divide over two devices.
    f"sweep {CNN} --mode=throughput {SHORT} --experiment.num_devices=2 --memory_limit_mb=1500"
    " --grid=batch_size=64,127,128,32768 --sweepdir=batches": 1,
    f"sweep {SMALL} {ONE} --grid=seed=0,1 --target_accuracy=0.0001 {PRICE} --sweepdir=target": 0,
    f"main {SMALL} --mode=scaling --scaling=weak --device_counts=1,2 {SHORT} --telemetry_s=0.1"
    " --workdir=scaling": 0,
    "main --experiment=conv2d:tiny --experiment.device_counts=1,2 --workdir=conv2d": 0,
    f"main {SMALL} {ONE} --experiment.optimizer.learning_rate=1e30 --workdir=diverged": 1,
    f"main {SMALL} --mode=memory --workdir={shlex.quote(f'names/{MARKUP}')}": 0,
}


def make_runs(folder: pathlib.Path) -> None:
    """Runs all commands in this process, the trials of sweeps too."""
    with pytest.MonkeyPatch.context() as patch:
        run = functools.partial(run_trial, folder, child.run_child)
        patch.setattr(local, "Child", fake_child(run))
        for command, code in COMMANDS.items():
            name, *args = shlex.split(command)
            done = run_command(folder, *args, module=f"jaxbench.{name}")
            assert done.returncode == code, (command, done.stdout + done.stderr)
    # As from a compiler for accelerators, which no test needs.
    for target in ("gpu:rtx2080ti:2", "gpu:h100:8"):
        compiled(folder / "compiled" / target, target)
    metrics = shutil.copytree(folder / "scaling", folder / DAMAGED) / "metrics.jsonl"
    write_card(folder, made.judged(host=MARKUP, preset=MARKUP))
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[: len(whole) // 2] + b"\n\xff garbage {\n")
    with running_run(folder):
        args = (".", "--out=report.html", "--title=A report")
        done = run_command(folder, *args, module="jaxbench.report")
    assert done.returncode == 0, done.stderr


def run_trial(folder, in_a_process, command, log, **limits):
    """Runs a sweep's trial here, where it fits into memory."""
    if any(TOO_LARGE in argument for argument in command):
        return in_a_process(command, log, **limits)
    assert command[1:3] == ["-m", "jaxbench.main"]
    watch = Stopwatch()
    done = run_command(folder, *command[3:])
    log.write_text(done.stdout + done.stderr)
    said = (done.stderr.splitlines() or [""])[-1].removeprefix("jaxbench: ")
    reason = said if done.returncode else None
    return child.ProcessResult("exited", reason, done.returncode, watch.elapsed_s())


@contextlib.contextmanager
def running_run(folder):
    """A training run that has begun and is held still, so that it takes no time from others."""
    args = (SMALL, "--experiment.epochs=100000", "--workdir=running")
    process = subprocess.Popen(
        program(*args),
        cwd=folder,
        env=os.environ | UNOPTIMIZED,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        metrics = folder / "running" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count('"epoch"') > 1, process)
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(chromium, tmp_path_factory):
    """The runs and `report.html`, made once, also where several workers come to these tests."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "browser-report"
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "report.html").exists():
            shutil.rmtree(shared, ignore_errors=True)
            shared.mkdir()
            make_runs(shared)
    return shared


@pytest.fixture
def opened(browse, folder):
    """Opens the report."""
    return functools.partial(browse, folder / "report.html")


def test_every_section_is_there_with_something_in_it(opened):
    page = opened()
    names = page.eval_on_selector_all("section", "all => all.map(one => one.id)")
    assert names == SECTIONS
    unfold(page)
    for name in SECTIONS:
        section = page.locator(f"section#{name}")
        assert section.locator("h2").is_visible()
        assert section.bounding_box()["height"] > 100
        tables = section.locator("table:visible")
        assert tables.count() and tables.first.locator("tbody tr").count()
        assert bool(section.locator("svg.chart").count()) == (name not in WITHOUT_CHARTS)
    # What leads somewhere leads to something.
    targets = page.eval_on_selector_all("a", "all => all.map(one => one.getAttribute('href'))")
    assert len(targets) > 50
    for target in set(targets):
        assert target.startswith("#") and page.locator(f"[id='{target[1:]}']").count() == 1
    # A chart's numbers are folded in and come out.
    page.evaluate("document.querySelectorAll('figure details').forEach(o => { o.open = false })")
    numbers = page.locator("figure details").first
    assert not numbers.locator("table").is_visible()
    numbers.locator("summary").click()
    assert numbers.locator("table").is_visible()


_CHARTS = """() => [...document.querySelectorAll('svg.chart')].map(chart => {
  const box = chart.getBoundingClientRect(), texts = [...chart.querySelectorAll('text')];
  const rect = node => {
    const r = node.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom];
  };
  return {
    title: chart.getAttribute('aria-label'),
    box: rect(chart),
    marks: chart.querySelectorAll('.m, .fill, circle').length,
    texts: texts.map(text => [text.firstChild.nodeValue, ...rect(text)]),
  }})"""


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, PAPER], ids=["desktop", "phone", "paper"])
def test_charts_show_something_and_all_of_their_text(opened, viewport):
    page = opened(viewport=viewport)
    if viewport is PAPER:
        page.emulate_media(media="print")
    unfold(page)
    charts = page.evaluate(_CHARTS)
    assert len(charts) > 10
    check_charts(charts, viewport)


def test_long_numbers_and_names_have_room(chromium):
    """What no tiny run comes to: hundreds of thousands of images, long names."""
    points = [Point(10.0**power, 999_999.0 - power) for power in range(7)]
    name = "R1 " + "a long name " * 9
    charts = [
        LineChart("line", "n", "global batch", "images/s", [Series(name, points)]),
        LineChart("log", "n", "batch", "images/s", [Series(name, points)], x_log=True),
        DotChart("dots", "n", "images/s", [Dot(name, 999_999.0)]),
    ]
    page = chromium.new_page(viewport=DESKTOP)
    page.set_content(render_html([Section("s", "S", "", charts)], "a title"))
    check_charts(page.evaluate(_CHARTS), DESKTOP)
    page.close()


def check_charts(charts, viewport):
    for chart in charts:
        left, top, right, bottom = chart["box"]
        title = chart["title"]
        assert right - left > 200 and bottom - top > 60, title
        assert left >= 0 and right <= viewport["width"], title
        assert chart["marks"] >= 1 and len(chart["texts"]) >= 4, title
        for words, *(x0, y0, x1, y1) in chart["texts"]:
            inside = x0 >= left - 1 and x1 <= right + 1 and y0 >= top - 1 and y1 <= bottom + 1
            assert inside, f"{title}: {words!r} runs out of the chart"
        for one, other in itertools.combinations(chart["texts"], 2):
            wide = min(one[3], other[3]) - max(one[1], other[1])
            high = min(one[4], other[4]) - max(one[2], other[2])
            # Boxes of lines of text are higher than their letters.
            assert wide <= 1 or high <= 3, f"{title}: {one[0]!r} lies on {other[0]!r}"


# What is wider than the page, but for what stands in a box that can be scrolled.
_WIDER = """() => [...document.querySelectorAll('body *')].filter(node => {
  const scrolled = node.closest('.scroll');
  const own = scrolled && getComputedStyle(scrolled).overflowX === 'auto' && scrolled !== node;
  return !own && node.getBoundingClientRect().right > innerWidth + 1
}).map(node => `${node.tagName}: ${node.textContent.slice(0, 60)}`)"""


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_never_wider_than_the_window(opened, viewport):
    page = opened(viewport=viewport)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        assert page.evaluate(_WIDER) == []
        unfold(page)


# [words, colour of the text, colours behind it from the innermost], for every piece of text.
_COLOURS = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const words = walker.currentNode.nodeValue.trim(), node = walker.currentNode.parentElement;
    if (!words || node.tagName.toLowerCase() === 'title' || !node.checkVisibility()) continue;
    const svg = node.closest('svg'), behind = [];
    for (let at = node; at; at = at.parentElement)
      behind.push(getComputedStyle(at).backgroundColor);
    found.push([words.slice(0, 40), getComputedStyle(node)[svg ? 'fill' : 'color'], behind]);
  }
  return found
}"""


def parse_colour(text):
    """Red, green, blue and alpha of what getComputedStyle says, 0 to 1."""
    red, green, blue, alpha = (*map(float, re.findall(r"[\d.]+", text)), 1.0)[:4]
    return (red / 255, green / 255, blue / 255, alpha)


def contrast(colour, behind):
    """WCAG 2's contrast ratio of a colour with what lies behind it."""
    layers = []
    for layer in map(parse_colour, behind):
        layers.append(layer)
        if layer[3] == 1:
            break
    else:
        raise AssertionError(f"nothing opaque lies behind: {behind}")
    shown = layers.pop()[:3]
    for layer in [*reversed(layers), parse_colour(colour)]:
        under, shown = shown, blend(layer, shown)
    light, dark = sorted((luminance(shown), luminance(under)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def blend(over, under):
    return tuple(over[3] * o + (1 - over[3]) * u for o, u in zip(over, under, strict=False))


def luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("look", ["light", "dark", "print"])
def test_text_can_be_read(opened, look):
    page = opened(color_scheme="dark" if look == "print" else look)
    if look == "print":
        page.emulate_media(media="print")
    unfold(page)
    pieces = page.evaluate(_COLOURS)
    assert len(pieces) > 500
    pale = {
        (words, colour, round(contrast(colour, behind), 2))
        for words, colour, behind in pieces
        if contrast(colour, behind) < 4.5
    }
    assert not pale
    page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(parse_colour(page_colour)[:3]) < 0.1) == (look == "dark")


def test_nothing_is_cut_off_in_print(opened):
    page = opened()
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print")
    cut = page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(node =>
          getComputedStyle(node).overflow !== 'visible' && !node.closest('svg')
            && (node.scrollWidth > node.clientWidth + 1
              || node.scrollHeight > node.clientHeight + 1)
          || node.getBoundingClientRect().right > innerWidth + 1
        ).map(node => `${node.tagName}: ${node.textContent.slice(0, 60)}`)"""
    )
    assert cut == []


def test_times_sort_by_value_and_an_arrow_says_how(chromium):
    times_s = [3600.0, None, 45.2, math.inf, 700.0]
    rows = [{"time": Estimate(time_s, time_s, time_s)} for time_s in times_s]
    table = make_table([metric_column("duration_s", "time", ends="too")], rows, title="times")
    page = chromium.new_page(viewport=DESKTOP)
    page.set_content(render_html([Section("s", "S", "", [table])], "a title"))
    head = page.locator("th [role]")
    arrow = "node => getComputedStyle(node, '::after').content"
    for sign, up in (("↑", True), ("↓", False)):
        head.click()
        page.mouse.move(0, 0)
        assert sign in head.evaluate(arrow)
        shown = [text.split(" ")[0] for text in page.locator("tbody td").all_text_contents()]
        in_order = ["0:00:45", "0:11:40", "1:00:00", "∞"]
        # What is not known comes last, whichever way.
        assert shown == [*(in_order if up else in_order[::-1]), "–"]
    page.close()


def test_what_is_folded_stays_folded_on_paper_and_says_so(chromium):
    page = chromium.new_page(viewport=PAPER)
    table = Table(("a",), [[Cell(f"row {number}")] for number in range(99)], title="long")
    page.set_content(render_html([Section("s", "S", "", [table])], "a title"))
    last = page.get_by_text("row 98", exact=True)
    seen = "node => node.checkVisibility() && node.getBoundingClientRect().height > 0"
    assert not last.evaluate(seen)
    page.emulate_media(media="print")
    assert not last.evaluate(seen)
    told = "node => getComputedStyle(node, '::after').content"
    assert "is folded here" in page.locator("summary", has_text="long").evaluate(told)
    assert page.get_by_text("printed without the tables of their numbers").is_visible()
    page.close()


def test_markup_in_a_name_stays_text(opened):
    page = opened()
    assert page.locator("script").count() == 1
    assert page.locator("img, iframe, object, embed, b, [onerror]").count() == 0
    assert page.locator("#runs tbody td", has_text=MARKUP).count() == 1
    assert page.locator("#runs tbody td", has_text=DAMAGED).count() >= 1


def test_the_gallery_shows_machines_that_are_not_here(folder, tmp_path):
    script = ROOT / "benchmarks" / "gallery.py"

    def run(runs, out):
        return run_program([sys.executable, script, f"--runs={runs}", f"--out={out}"])

    for runs, why in ((folder / "nowhere", "no such folder"), (folder / "conv2d", "no section")):
        failed = run(runs, tmp_path / "none")
        assert failed.returncode == 2 and why in failed.stderr and failed.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()
    done = run(folder / "compiled", tmp_path)
    assert done.returncode == 0, done.stderr
    dark, light = (
        cv2.imread(str(tmp_path / f"before-you-rent-{scheme}.webp")) for scheme in ("dark", "light")
    )
    assert dark.mean() < 64 and light.mean() > 192
    assert all(p.shape[1] > 1200 and p.shape[0] > 400 and p.std() > 10 for p in (dark, light))


def test_states_are_shown(opened, folder):
    page = opened()
    unfold(page)
    rows = page.locator("#runs tbody tr[id]")
    states = {}
    for row in rows.all():
        cells = row.locator("td").all_text_contents()
        states[cells[1]] = cells[2]
    assert states[DAMAGED] == "corrupt"
    assert states["running"] == "running"
    assert states["diverged"] == "diverged"
    assert states[f"names/{MARKUP}"] == "done"
    assert sorted(states.values()).count("OOM") == 1
    # A mark besides the colour.
    running = rows.locator(".mark-running").first
    assert "…" in running.evaluate("node => getComputedStyle(node, '::before').content")
    text = page.locator("#overview").inner_text()
    assert f"{DAMAGED}: cannot be read" in text and "diverged: the training loss" in text
    rates = page.locator("#rates").inner_text()
    for told in ("OOM", "failed", "127", "does not divide over 2 devices"):
        assert told in rates
    assert run_json(folder / "running")["status"] == "running"
