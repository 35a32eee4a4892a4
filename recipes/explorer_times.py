"""How long the explorer takes in a browser, in seconds: from its address to the first colours, and to the next cell.

    python recipes/explorer_times.py [MODEL …]        prose, code and prose-gru where none is named

The first opening loads the model. Each of the others is in a browser window of its own.
"""

import statistics
import sys
import time
from typing import Any

from explorer_screens import explorer

OPENINGS = 3


def opening(browser: Any, address: str) -> tuple[float, float]:
    """Seconds to the first colours and, once the page rests, to those of the next cell."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".text span[style*='background']", timeout=600_000)
    coloured = time.perf_counter() - begun
    page.wait_for_load_state("networkidle")
    page.keyboard.press("]")
    page.wait_for_timeout(1000)
    turned = float(page.evaluate("document.documentElement.dataset.took")) / 1000
    context.close()
    return coloured, turned


def main(names: list[str]) -> None:
    """Prints a line for each model."""
    with explorer() as (browser, address):
        for name in names:
            first, *others = (opening(browser, f"{address}#screen=read&model={name}") for _ in range(1 + OPENINGS))
            again, turned = (statistics.median(times) for times in zip(*others, strict=True))
            print(f"{name}: loaded {first[0]:.2f}, opened again {again:.2f}, the next cell {turned:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["prose", "code", "prose-gru"])
