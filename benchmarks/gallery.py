"""Make the pictures in README.md and docs: charts of a report on runs that this script makes.

    pip install -e '.[test]'   # and Chromium, from the system's packages
    python benchmarks/gallery.py [--workdir=DIR]

Trains, measures and scales on eight simulated devices, about eight minutes on two CPU cores, makes
a report of it, opens that in Chromium and writes its charts, light and dark, to --out. What a
picture leaves out of its section (tables, further charts) is in report.html in --workdir.

--runs=DIR makes the pictures from the runs in DIR and measures nothing; --tiny shrinks all.
--targets only makes the picture of rates that are predicted for machines that are not here, in
about two minutes; it needs no compiler for them.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import cv2
import numpy as np
from absl import flags

import jaxbench
from jaxbench.cli import entry_point
from jaxbench.clock import Stopwatch
from jaxbench.errors import BadInput

_HERE = pathlib.Path(__file__).resolve().parent
_OUT = flags.DEFINE_string("out", str(_HERE / "gallery"), "The folder for the pictures.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "A new or empty folder for runs and report.html; default a temporary one."
)
_RUNS = flags.DEFINE_string("runs", None, "Make pictures of these runs, measure nothing.")
_TARGETS = flags.DEFINE_bool(
    "targets", False, "Make the picture of machines that are not here, no other one."
)
_TINY = flags.DEFINE_bool("tiny", False, "Measure next to nothing: to try this program.")

# What Chromium is called, the likeliest first.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DEVICES = 8
# {section: how many of its charts are in its picture; 0 for its tables}.
PICTURES = {"batches": 0, "rates": 2, "learning": 2, "scaling": 2, "telemetry": 2, "conv2d": 1}
# That of --targets, and its sweeps: a folder each.
TARGET_PICTURES = {"before-you-rent": 2}
TARGET_SWEEPS = {
    "resnet50": "resnet50_synthetic bf16 tpu:v2:2x2,tpu:v3:2x2,tpu:v5e:2x4,tpu:v6e:2x4,"
    "gpu:a100:4,gpu:a100:8,gpu:h100:8,gpu:h200:8,gpu:b200:8",
    "resnet50-fp16": "resnet50_synthetic fp16 gpu:v100:4,gpu:t4:8",
    "wrn28_10": "wrn28_10_2019 fp32 gpu:rtx2080ti,gpu:titanx,gpu:rtx3090,gpu:v100,gpu:a100,"
    "gpu:h100,tpu:v2:2x2",
}
# Pages are about 900 pixels wide; screens have more than one dot for each.
_WIDTH, _MARGIN, _SCALE = 1060, 20, 2


def commands(tiny: bool) -> dict[str, list[str]]:
    """Returns what is run: {folder: arguments of python -m}."""
    quickstart = "--experiment=quickstart" + (":tiny" if tiny else "")
    rounds, window_s, counts = (6, 0.02, "1,2") if tiny else (11, 0.3, "1,2,4,8")
    windows = [f"--rounds={rounds}", f"--window_s={window_s}"]
    conv2d = ["--experiment=conv2d:tiny"]
    if not tiny:
        conv2d = ["--experiment=conv2d", "--experiment.kernels=3,7", "--experiment.channels=1,4"]
    return {
        "seeds": [
            *("jaxbench.sweep", quickstart, "--grid=seed=0,1,2", "--experiment.num_devices=1"),
            *([] if tiny else ["--experiment.epochs=10"]),
        ],
        # 65,536 images are more than fits in so much memory.
        "batches": [
            *("jaxbench.sweep", quickstart, "--mode=throughput", *windows),
            f"--grid=batch_size={'64,128' if tiny else '64,128,256,512,65536'}",
            *("--grid=precision=fp32,bf16", "--experiment.num_devices=1"),
            *("--telemetry_s=0.5", "--memory_limit_mb=2500"),
        ],
        "scaling": [
            *("jaxbench.main", quickstart, "--mode=scaling", f"--device_counts={counts}"),
            *(*windows, "--experiment.batch_size=256", "--telemetry_s=0.5"),
        ],
        "conv2d": ["jaxbench.main", *conv2d],
    }


def target_commands() -> dict[str, list[str]]:
    """Returns what is run for --targets: {folder: arguments of python -m}."""
    sweeps = {name: words.split() for name, words in TARGET_SWEEPS.items()}
    return {
        name: [
            *("jaxbench.sweep", f"--experiment={experiment}", f"--target={targets}"),
            f"--experiment.precision={precision}",
        ]
        for name, (experiment, precision, targets) in sweeps.items()
    }


def main(arguments: list[str]) -> int:
    if arguments:
        raise BadInput(f"{arguments[0]!r}: flags begin with --")
    if _RUNS.value and _TINY.value:
        raise BadInput("--runs measures nothing: --tiny does not go with it")
    if _TARGETS.value and _TINY.value:
        raise BadInput("--targets measures nothing: --tiny does not go with it")
    if _RUNS.value and not pathlib.Path(_RUNS.value).is_dir():
        raise BadInput(f"--runs={_RUNS.value}: no such folder")
    # Before minutes are spent on what could not be shown.
    browser = find_browser()
    out = pathlib.Path(_OUT.value)
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(_WORKDIR.value or temporary).absolute()
        runs = pathlib.Path(_RUNS.value or work).absolute()
        if not _RUNS.value:
            _measure(work, target_commands() if _TARGETS.value else commands(_TINY.value))
        work.mkdir(parents=True, exist_ok=True)
        page = work / "report.html"
        _run(["jaxbench.report", str(runs), f"--out={page}", "--title=A report"], work, "report")
        pictures = TARGET_PICTURES if _TARGETS.value else PICTURES
        written = take_pictures(page, out, browser, pictures)
    for path in written:
        print(f"{path}  {path.stat().st_size / 1024:.0f} kB")
    return 0


def find_browser() -> str:
    """Returns the path of the system's Chromium.

    Raises:
      BadInput: it or Playwright, which drives it, is not installed.
    """
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        raise BadInput("this needs Playwright: pip install playwright") from None
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise BadInput(f"this needs Chromium: none of {', '.join(BROWSERS)} is installed")
    return found


def _measure(work: pathlib.Path, todo: dict[str, list[str]]) -> None:
    if work.exists() and (not work.is_dir() or any(work.iterdir())):
        raise BadInput(f"--workdir={work}: must be a new or empty folder")
    work.mkdir(parents=True, exist_ok=True)
    for number, (name, arguments) in enumerate(todo.items(), 1):
        where = "--sweepdir" if arguments[0] == "jaxbench.sweep" else "--workdir"
        print(f"[{number}/{len(todo)}] python -m {' '.join(arguments)}", flush=True)
        watch = Stopwatch()
        _run([*arguments, f"{where}={name}"], work, name)
        print(f"      done after {watch.elapsed_s():.0f} s", flush=True)


def _run(arguments: list[str], work: pathlib.Path, name: str) -> None:
    """Runs a module in the folder, its output in a log beside; ends the program where it fails."""
    given = os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {
        "XLA_FLAGS": f"{given} --xla_force_host_platform_device_count={DEVICES}".strip(),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(pathlib.Path(jaxbench.__file__).parent.parent),
    }
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    (work / f"{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def take_pictures(
    page: pathlib.Path, out: pathlib.Path, browser: str, pictures: dict[str, int]
) -> list[pathlib.Path]:
    """Writes every picture as SECTION-light.webp and SECTION-dark.webp; returns their paths.

    Args:
      page: the report.
      out: the folder for them; it is made.
      browser: the path of a Chromium.
      pictures: as `PICTURES`.

    Raises:
      BadInput: the report lacks a section that is to be shown.
    """
    from playwright.sync_api import sync_playwright

    written = []
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root.
        chromium = playwright.chromium.launch(executable_path=browser, chromium_sandbox=False)
        for scheme in ("light", "dark"):
            opened = chromium.new_page(
                viewport={"width": _WIDTH, "height": 900},
                device_scale_factor=_SCALE,
                color_scheme=scheme,
            )
            opened.goto(page.as_uri())
            for name in pictures:
                if not opened.locator(f"section#{name}").count():
                    raise BadInput(f"the report of these runs has no section {name!r}")
            opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            out.mkdir(parents=True, exist_ok=True)
            for name, charts in pictures.items():
                hidden = [f"figure:nth-child(n + {charts + 1})", "p:not(.lead, .note)"]
                hidden += ["figure details", ".wide"] if charts else []
                style = ", ".join(f"#{name} {one}" for one in hidden) + " { display: none }"
                opened.add_style_tag(content=f"{style} #{name} h2 {{ border: 0; margin: 0 }}")
                box = opened.locator(f"section#{name}").bounding_box()
                clip = {
                    "x": box["x"] - _MARGIN,
                    "y": box["y"],
                    "width": min(box["width"], _WIDTH) + 2 * _MARGIN,
                    "height": box["height"] + _MARGIN,
                }
                png = opened.screenshot(clip=clip, full_page=True)
                written.append(out / f"{name}-{scheme}.webp")
                _write_webp(written[-1], png)
        chromium.close()
    return written


def _write_webp(path: pathlib.Path, png: bytes) -> None:
    pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    # Above 100 it is lossless, and flat drawings are smaller that way.
    path.write_bytes(cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes())


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
