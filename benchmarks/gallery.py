"""Make the picture in README.md: predicted and published rates, as a chart of a report.

    pip install -e '.[test]'   # and Chromium, from the system's packages
    python benchmarks/gallery.py [--out=DIR]

Predicts rates for machines that are not here, in about two minutes and without a compiler for them,
makes a report of it, opens that in Chromium, and writes its first charts, light and dark, to --out.

--runs=DIR makes the picture of the runs in DIR and predicts nothing.
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

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput

_HERE = pathlib.Path(__file__).resolve().parent
_OUT = flags.DEFINE_string("out", str(_HERE / "gallery"), "The folder for the picture.")
_RUNS = flags.DEFINE_string("runs", None, "Make the picture of these runs, predict nothing.")

# What Chromium is called, the likeliest first.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The section of the report, and how many of its charts.
_SECTION, _CHARTS = "before-you-rent", 2
# {folder: experiment, precision and targets of a sweep}.
SWEEPS = {
    "resnet50": "resnet50_synthetic bf16 tpu:v2:2x2,tpu:v3:2x2,tpu:v5e:2x4,tpu:v6e:2x4,"
    "gpu:a100:4,gpu:a100:8,gpu:h100:8,gpu:h200:8,gpu:b200:8",
    "resnet50-fp16": "resnet50_synthetic fp16 gpu:v100:4,gpu:t4:8",
    "wrn28_10": "wrn28_10_2019 fp32 gpu:rtx2080ti,gpu:titanx,gpu:rtx3090,gpu:v100,gpu:a100,"
    "gpu:h100,tpu:v2:2x2",
}
# Pages are about 900 pixels wide; screens have more than one dot for each.
_WIDTH, _MARGIN, _SCALE = 1060, 20, 2


def main(arguments: list[str]) -> int:
    """Make both pictures."""
    if arguments:
        raise BadInput(f"{arguments[0]!r}: flags begin with --")
    if _RUNS.value and not pathlib.Path(_RUNS.value).is_dir():
        raise BadInput(f"--runs={_RUNS.value}: no such folder")
    # Before minutes are spent on what could not be shown.
    browser = find_browser()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        runs = _RUNS.value or work / "runs"
        if not _RUNS.value:
            for name, words in SWEEPS.items():
                experiment, precision, targets = words.split()
                print(f"{experiment}: {targets}", flush=True)
                _run(
                    *("jaxbench.sweep", f"--experiment={experiment}", f"--target={targets}"),
                    *(f"--experiment.precision={precision}", f"--sweepdir={runs / name}"),
                )
        page = work / "report.html"
        _run("jaxbench.report", str(runs), f"--out={page}", "--title=A report")
        for path in take_pictures(page, pathlib.Path(_OUT.value), browser):
            print(f"{path}  {path.stat().st_size / 1024:.0f} kB")
    return 0


def find_browser() -> str:
    """Return the path of the system's Chromium.

    Raises:
      BadInput: it or Playwright, which drives it, is not installed.
    """
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        raise BadInput("this needs Playwright: pip install playwright") from None
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise BadInput(f"this needs Chromium: none of {', '.join(BROWSERS)} is installed")
    return path


def _run(*arguments: str) -> None:
    """Run a module; end the program with its output if it fails."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_HERE.parent)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def take_pictures(page: pathlib.Path, out: pathlib.Path, browser: str) -> list[pathlib.Path]:
    """Write the section of a report as SECTION-light.webp and SECTION-dark.webp; return the paths.

    Raises:
      BadInput: the report lacks the section.
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
            if not opened.locator(f"section#{_SECTION}").count():
                raise BadInput(f"the report of these runs has no section {_SECTION!r}")
            opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            hidden = [f"figure:nth-child(n + {_CHARTS + 1})", "p:not(.lead, .note)"]
            hidden += ["figure details", ".wide"]
            style = ", ".join(f"#{_SECTION} {one}" for one in hidden) + " { display: none }"
            opened.add_style_tag(content=f"{style} #{_SECTION} h2 {{ border: 0; margin: 0 }}")
            box = opened.locator(f"section#{_SECTION}").bounding_box()
            clip = {
                "x": box["x"] - _MARGIN,
                "y": box["y"],
                "width": min(box["width"], _WIDTH) + 2 * _MARGIN,
                "height": box["height"] + _MARGIN,
            }
            png = opened.screenshot(clip=clip, full_page=True)
            out.mkdir(parents=True, exist_ok=True)
            written.append(out / f"{_SECTION}-{scheme}.webp")
            _write_webp(written[-1], png)
        chromium.close()
    return written


def _write_webp(path: pathlib.Path, png: bytes) -> None:
    pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    # Above 100 it is lossless, and flat drawings are smaller that way.
    path.write_bytes(cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes())


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
