"""Draw training curves: validation perplexity by tokens and by minutes of training.

python -m experiments.training_curves docs/curves.png NAME=FOLDER…       (a folder with settings.toml and
metrics.jsonl)
"""

import json
import math
import sys
import tomllib
from pathlib import Path

from relmo.analysis.core.show import save_figure


def read_curve(folder: Path) -> list[tuple[float, float, float]]:
    """Return millions of tokens, minutes of training (without validation) and perplexity at each validation."""
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
    """Draw two panels with one line per run."""
    target, runs = sys.argv[1], [argument.split("=", 1) for argument in sys.argv[2:]]
    with save_figure(target, 11, 4.4) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for name, folder in runs:
            tokens, minutes, perplexity = zip(*read_curve(Path(folder)), strict=True)
            for panel, x in zip(panels, (tokens, minutes), strict=True):
                panel.semilogy(x, perplexity, "o-", markersize=3, label=f"{name} ({perplexity[-1]:.1f})")
        for panel, label in zip(panels, ("million tokens", "minutes of training"), strict=True):
            panel.set_xlabel(label)
            panel.grid(True, which="both", alpha=0.3)
            panel.yaxis.set_major_formatter("{x:.0f}")
            panel.yaxis.set_minor_formatter("{x:.0f}")
        panels[0].set_ylabel("validation perplexity")
        panels[0].legend()


if __name__ == "__main__":
    main()
