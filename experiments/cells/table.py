"""Records as tables and as one picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells.tasks import TASKS
from relmo.analysis.core.show import Table, format_number, save_figure

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Results by row and measurement."""

FAMILIES: dict[str, tuple[str, ...]] = {
    "simple": ("elman", "irnn"),
    "gated": ("lstm", "gru", "highway", "multiplicative", "mogrifier", "slstm"),
    "parallel": ("sru", "mingru", "minlstm", "rglru"),
    "matrix": ("mlstm",),
    "rotational": ("rum",),
}
OTHER = "other"
PUBLISHED: dict[str, tuple[float, float, float]] = {
    "Transformer": (0.022, 0.031, 0.025),
    "mLSTM": (0.087, 0.040, 0.034),
    "sLSTM": (1.000, 0.787, 0.173),
    "Mamba, eigenvalues in [0, 1]": (0.000, 0.095, 0.092),
    "Mamba, eigenvalues in [-1, 1]": (1.000, 0.241, 0.136),
    "DeltaNet, eigenvalues in [0, 1]": (0.017, 0.314, 0.137),
    "DeltaNet, eigenvalues in [-1, 1]": (1.000, 0.971, 0.200),
    "Mamba-2": (0.009, 0.478, 0.009),
    "Mamba-3": (1.000, 0.985, 0.878),
}
"""Scaled accuracy on long sequences in the tasks below: arXiv 2411.12537, table 3; Mamba-2, -3: 2603.15569, table 4."""
PUBLISHED_TASKS = ("parity", "arithmetic", "brackets")


def scale(accuracy: float, chance: float) -> float:
    """Return the accuracy with chance as 0 and perfection as 1."""
    return (accuracy - chance) / (1 - chance)


def find_family(row: str) -> str:
    """Return the family of a cell."""
    return next((family for family, rows in FAMILIES.items() if row in rows), OTHER)


def sort_rows(rows: Sequence[str]) -> list[str]:
    """Return the rows by family, in the order of the table of families."""
    order = [row for family in FAMILIES.values() for row in family]
    return sorted(rows, key=lambda row: (order.index(row) if row in order else len(order), row))


def make_tables(results: Results) -> list[Table]:
    """Return the tables: formal tasks; the same, scaled, beside published figures; language and speed."""
    rows = sort_rows(list(results))
    tables = [_accuracy_table(results, rows), _published_table(results, rows), _language_table(results, rows)]
    return [table for table in tables if table.rows]


def _accuracy_table(results: Results, rows: Sequence[str]) -> Table:
    names = [name for name in TASKS if any(name in results[row] for row in rows)]
    lines, chances = [], {}
    for row in rows:
        line, sizes = [], set()
        for name in names:
            record = results[row].get(name)
            line.append("" if record is None else format_accuracy(record))
            if record is not None:
                chances[name] = f"{100 * record['short_chance']:.1f} → {100 * record['long_chance']:.1f}"
                sizes.add(f"{record['hidden']} ({record['parameters'] / 1000:.1f}k)")
        if any(line):
            lines.append([row, find_family(row), " / ".join(sorted(sizes)), *line])
    if lines:
        lines.insert(0, ["chance", "", "", *(chances[name] for name in names)])
    return Table(
        ["cell", "family", "units (weights)", *(_title(name) for name in names)],
        lines,
        "Trained short, tested long",
        [
            "accuracy in percent at the sizes of training → at longer ones: mean over seeds (minimum to maximum), "
            "number of seeds with 99 or more",
            "chance: the share of the most frequent class",
        ],
    )


def format_accuracy(record: Mapping[str, Any]) -> str:
    """Return mean accuracy on short and long sequences, range over the seeds, and the number of solved seeds."""
    short, long = (100 * np.array(record[part]) for part in ("short", "long"))
    spread = f" ({long.min():.0f}-{long.max():.0f})" if len(long) > 1 else ""
    return f"{short.mean():.0f} → {long.mean():.1f}{spread}, {record['solved']}/{len(long)}"


def _title(name: str) -> str:
    task = TASKS[name]
    (low, high), (long_low, long_high) = task.short, task.long
    return f"{task.title}, {task.size} {low}-{high} → {long_low}-{long_high}"


def scaled_score(record: Mapping[str, Any]) -> float:
    """Return the scaled accuracy on long sequences, the mean over the seeds."""
    return scale(float(np.mean(record["long"])), record["long_chance"])


def _published_table(results: Results, rows: Sequence[str]) -> Table:
    lines = []
    for row in rows:
        records = [results[row].get(name) for name in PUBLISHED_TASKS]
        if any(records):
            scores = ["" if record is None else f"{scaled_score(record):.3f}" for record in records]
            best = [
                "" if record is None else f"{scale(max(record['long']), record['long_chance']):.3f}"
                for record in records
            ]
            lines.append(
                [row, "ours", *(f"{mean} ({top})" if mean else "" for mean, top in zip(scores, best, strict=True))]
            )
    if lines:
        for name, published in PUBLISHED.items():
            lines.append([name, "published", *(f"{score:.3f}" for score in published)])
    return Table(
        ["cell", "from", *(TASKS[name].title for name in PUBLISHED_TASKS)],
        lines,
        "Scaled accuracy on long sequences, beside published figures",
        [
            "(accuracy - chance) / (1 - chance); ours: mean over seeds (best seed)",
            "published: arXiv 2411.12537, table 3; Mamba-2 and Mamba-3: 2603.15569, table 4. Their networks have "
            "several layers and more weights, and train longer; ours learn from every prefix",
        ],
    )


def _language_table(results: Results, rows: Sequence[str]) -> Table:
    lines = []
    for row in rows:
        record = results[row]
        shakespeare, wikitext = record.get("shakespeare", {}), record.get("wikitext", {})
        speeds = [record.get(name, {}) for name in ("speed", "speed-cuda")]
        sizes = next((part for part in (shakespeare, wikitext, *speeds) if part), None)
        if sizes is None:
            continue
        lines.append(
            [
                row,
                find_family(row),
                f"{sizes['hidden']} ({sizes['parameters'] / 1000:.0f}k)",
                _format_score(shakespeare, "bits_per_character", 3),
                _format_score(wikitext, "perplexity", 1),
                _format_score(wikitext, "blimp", 3),
                _format_reach(shakespeare.get("reach", {})),
                *(
                    f"{speed['tokens_per_second']:,} ({speed['ratio']:.2f}, {speed['backend']})" if speed else ""
                    for speed in speeds
                ),
            ]
        )
    columns = ["cell", "family", "units (weights)", "Shakespeare, bits per character", "WikiText-2, perplexity"]
    columns += ["BLiMP", "gradient reach", "CPU, tokens/s", "GPU, tokens/s"]
    return Table(
        columns,
        lines,
        "Language, gradients and speed",
        [
            "one layer, equal numbers of recurrent weights, a fixed budget of text; BLiMP: accuracy of the model of "
            "WikiText-2, the mean over 67 paradigms; chance 0.5",
            "gradient reach: lag at which the gradient's median falls below 1% of that at lag 0, by state",
            "speed of training one layer, in brackets its ratio to torch's fused LSTM and the backend",
        ],
    )


def _format_score(record: Mapping[str, Any], name: str, digits: int) -> str:
    return "diverged" if "diverged" in record else format_number(record.get(name), digits) if record else ""


def _format_reach(reach: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {'never' if lag is None else lag}" for name, lag in reach.items() if name != "path")


def draw_heat_map(results: Results, path: Path) -> None:
    """Draw scaled accuracies on long sequences as a heat map of cells and tasks, with the accuracy and the number of
    solved seeds in each square."""
    rows = [row for row in sort_rows(list(results)) if any(name in results[row] for name in TASKS)]
    names = [name for name in TASKS if any(name in results[row] for row in rows)]
    shares = np.full((len(rows), len(names)), math.nan)
    for y, row in enumerate(rows):
        for x, name in enumerate(names):
            if name in results[row]:
                shares[y, x] = max(0.0, scaled_score(results[row][name]))
    with save_figure(path, 3.0 + 1.15 * len(names), 2.0 + 0.52 * len(rows)) as figure:
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
        for (y, x), share in np.ndenumerate(shares):
            if not math.isnan(share):
                record = results[rows[y]][names[x]]
                text = f"{100 * np.mean(record['long']):.0f}\n{record['solved']} of {len(record['long'])}"
                colour = "black" if share > 0.5 else "white"
                axes.text(x, y, text, ha="center", va="center", color=colour, size=8.5, linespacing=1.1)
        _label_rows(axes, rows)
        titles = [f"{TASKS[name].title}\n{TASKS[name].size} {_range(TASKS[name].long)}" for name in names]
        axes.set_xticks(range(len(names)), titles, rotation=35, ha="left", rotation_mode="anchor", size=9)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        figure.colorbar(image, ax=axes, label="scaled accuracy: 0 chance, 1 perfect", shrink=0.8)
        figure.supxlabel(
            "trained short, tested long: accuracy in percent, mean over seeds; below it, seeds with 99 or more", size=9
        )


def _range(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]}-{sizes[1]}"


def _label_rows(axes: Any, rows: Sequence[str]) -> None:
    """Name the rows, and separate families by lines."""
    labels = []
    for y, row in enumerate(rows):
        family = find_family(row)
        is_first = y == 0 or family != find_family(rows[y - 1])
        labels.append(f"{family}:  {row}" if is_first else row)
        if is_first and y:
            axes.axhline(y - 0.5, color="white", linewidth=3)
    axes.set_yticks(range(len(rows)), labels)
