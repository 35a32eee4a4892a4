"""Seconds that the explorer takes in a browser: from its address to the first colours, and to the next cell.

    python -m benchmarks.explorer_times [MODEL …]        by default prose, code and prose-gru

The first opening loads the model. Each opening has its own browser window.
"""

import statistics
import sys
import time
from typing import Any

from experiments.recipes.explorer_screens import explorer

NUM_OPENINGS = 3


def time_opening(browser: Any, address: str) -> tuple[float, float]:
    """Return the seconds to the first colours and, when the page is idle, to those of the next cell."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    start_time = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".text span[style*='background']", timeout=600_000)
    opening_seconds = time.perf_counter() - start_time
    page.wait_for_load_state("networkidle")
    page.keyboard.press("]")
    page.wait_for_timeout(1000)
    turn_seconds = float(page.evaluate("document.documentElement.dataset.took")) / 1000
    context.close()
    return opening_seconds, turn_seconds


def main(names: list[str]) -> None:
    """Print one line per model."""
    with explorer() as (browser, address):
        for name in names:
            initial, *repeated = (
                time_opening(browser, f"{address}#screen=read&model={name}") for _ in range(1 + NUM_OPENINGS)
            )
            opening, turn = (statistics.median(times) for times in zip(*repeated, strict=True))
            print(f"{name}: loaded {initial[0]:.2f}, opened again {opening:.2f}, next cell {turn:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["prose", "code", "prose-gru"])
