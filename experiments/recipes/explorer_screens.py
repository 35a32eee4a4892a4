"""Screenshots of the explorer, wide and narrow, light and dark, and a sheet of all of them.

    python -m experiments.recipes.explorer_screens OUT [SCREEN …]        OUT/SCREEN-WIDTH-THEME.png; OUT/sheet.png of
    all

It needs playwright, chromium and Pillow (pip install 'relmo[dev]'). docs/explorer-screens.png is such a sheet, and
docs/explorer.png the picture quotes-1280-light.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.explorer import running
from relmo.cli.serve import open_session
from relmo.explorer.examples import list_examples
from relmo.explorer.server import Models, make_app

VIEWS = {
    "start": "",
    "quotes": "screen=read&model=prose&at=1300",
    "comments": "screen=read&model=code",
    "gradient": "screen=read&model=prose&mode=gradient&at=1300&text=story",
    "counting": "screen=read&model=anbn-lstm&at=70&gates=true",
    "find": "screen=find&model=code",
    "cell": "screen=cell&model=code",
    "memory": "screen=memory&model=prose",
    "experiments": "screen=experiments&model=small",
    "who-counts": "screen=experiments&model=prose",
    "compare": "screen=compare&model=prose",
    "three": "screen=compare&model=prose-gru",
    "meaning": "screen=meaning&model=small",
    "equations": "screen=equations&model=hello&at=2",
    "write": "screen=write&model=prose",
    "beam": "screen=write&model=prose&how=beam",
    "trace": "screen=trace&model=anbn-lstm&text=thousand",
    "agreement": "screen=trace&model=small",
    "layers": "screen=layers&model=small",
    "align": "screen=align&model=english-french",
}
SIZES, THEMES = ((1280, 900), (400, 860)), ("light", "dark")
SHEET_WIDTH = 360  # pixels of a wide screenshot on the sheet; narrow ones are as tall
NUM_COLOURS = 96


@contextmanager
def explorer() -> Iterator[tuple[Any, str]]:
    """Yield a browser and the address of an explorer with the bundled models."""
    models = Models(list_examples(), lambda name: open_session(name, None, "cpu"))
    chromium = os.environ.get("RELMO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        running(make_app(models, seconds=600.0), seconds=600.0, max_connections=100) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser, f"http://127.0.0.1:{server.address[1]}/"
        browser.close()


def main(out: Path, names: list[str]) -> None:
    """Take the screenshots and compose the sheet."""
    out.mkdir(parents=True, exist_ok=True)
    with explorer() as (browser, address):
        for theme in THEMES:
            for width, height in SIZES:
                options: Any = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
                page = browser.new_context(**options).new_page()
                page.on("pageerror", lambda error: print("error:", error.stack))
                for name in names:
                    page.goto("about:blank")
                    page.goto(f"{address}#{VIEWS[name]}")
                    page.wait_for_selector(".claim", timeout=600_000)
                    page.wait_for_load_state("networkidle", timeout=600_000)
                    page.wait_for_timeout(2500)
                    page.screenshot(path=out / f"{name}-{width}-{theme}.png")
                    print(f"{name} {width} {theme}: {page.inner_text('.claim')}", flush=True)
    if names == list(VIEWS):
        compose_sheet(out, names)


def compose_sheet(out: Path, names: list[str]) -> None:
    """Compose all screenshots: one row per screen, wide and narrow, light and dark."""
    (wide, tall), (narrow, high) = SIZES
    height = SHEET_WIDTH * tall // wide
    narrow_width = height * narrow // high
    width = 2 * (SHEET_WIDTH + narrow_width) + 5 * 8
    sheet = Image.new("RGB", (2 * width, (len(names) + 1) // 2 * (height + 8) + 8), "#888888")
    for i, name in enumerate(names):
        x, y = 8 + (i % 2) * width, 8 + i // 2 * (height + 8)
        for theme in THEMES:
            for size, image_width in ((wide, SHEET_WIDTH), (narrow, narrow_width)):
                image = Image.open(out / f"{name}-{size}-{theme}.png").convert("RGB").resize((image_width, height))
                sheet.paste(image, (x, y))
                x += image_width + 8
    sheet.quantize(NUM_COLOURS).save(out / "sheet.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(VIEWS))
