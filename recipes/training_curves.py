"""Draws how training runs went: validation perplexity by tokens seen and by minutes of training.

python recipes/training_curves.py docs/curves.png NAME=FOLDER…       (a folder with settings.toml and metrics.jsonl)
"""

import json
import math
import sys
import tomllib
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def curve(folder: Path) -> list[tuple[float, float, float]]:
    """Millions of tokens seen, minutes of training and perplexity at each validation; validating itself not counted."""
    train = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))["train"]
    tokens = train["batch"] * train["unroll"]
    points, step, seconds = [], 0, 0.0
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        seconds += (record["step"] - step) * tokens / record["symbols_per_second"]
        step = record["step"]
        if "valid" in record:
            points.append((step * tokens / 1e6, seconds / 60, math.exp(record["valid"])))
    return points


def main() -> None:
    """Two panels, a line for each run."""
    target, runs = sys.argv[1], [argument.split("=", 1) for argument in sys.argv[2:]]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for name, folder in runs:
        tokens, minutes, perplexity = zip(*curve(Path(folder)), strict=True)
        for panel, x in zip(panels, (tokens, minutes), strict=True):
            panel.semilogy(x, perplexity, "o-", markersize=3, label=f"{name} ({perplexity[-1]:.1f})")
    for panel, label in zip(panels, ("million tokens seen", "minutes of training"), strict=True):
        panel.set_xlabel(label)
        panel.grid(True, which="both", alpha=0.3)
        panel.yaxis.set_major_formatter("{x:.0f}")
        panel.yaxis.set_minor_formatter("{x:.0f}")
    panels[0].set_ylabel("validation perplexity")
    panels[0].legend()
    figure.savefig(target)


if __name__ == "__main__":
    main()
