"""Figures of the tables. Published scores are grey, plain networks light, and each biLM has its own colour. Only
finished results are drawn."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.elmo_table.plan import PLAIN, VARIANT_TABLES, Variant, default_variant, has_row, published_scores
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.tables import PLACES, ElmoTables, LayerMix, compute_increase, layer_names
from relmo.analysis.core.show import PALETTE, save_figure

PAPER_COLOUR, PLAIN_COLOUR = "#6b7280", "#c3ccd6"
GROUP_WIDTH = 0.8  # of a group of bars
FILES = {
    "1": "elmo-table.png",
    "2": "elmo-layers.png",
    "placement": "elmo-placement.png",
    "weights": "elmo-weights.png",
}


def draw_figures(tables: ElmoTables, out: Path) -> list[str]:
    """Draw the tables of the plan that have results; return the names of the files in `out`."""
    names = []
    for table in tables.plan.tables:
        path = out / FILES[table]
        if table in VARIANT_TABLES:
            is_drawn = draw_variants(tables, table, path)
        elif table == "1":
            is_drawn = draw_table(tables, path)
        else:
            mixes = {
                f"{ROWS[name].title} ({bilm})": [tables.mix(name, bilm, place) for place in PLACES]
                for name in tables.plan.rows
                for bilm in tables.plan.columns
            }
            is_drawn = draw_mixes(mixes, path)
        if is_drawn:
            names.append(FILES[table])
    return names


def draw_table(tables: ElmoTables, path: Path) -> bool:
    """Draw Table 1; return whether there were results."""
    rows = [name for name in tables.plan.rows if tables.score(name, PLAIN) is not None]
    scores = {"plain": [_mean(tables, name, PLAIN) for name in rows]}
    for bilm in tables.plan.columns:
        scores[bilm] = [_mean(tables, name, default_variant(ROWS[name], bilm)) for name in rows]
    if rows:
        draw_scores([ROWS[name].title for name in rows], scores, [ROWS[name].table1 for name in rows], path)
    return bool(rows)


def draw_scores(
    titles: Sequence[str], scores: Mapping[str, list[float]], published: Sequence[tuple[float, float]], path: Path
) -> None:
    """Draw the scores of each task, and the error reduction, by series: "plain" and one per biLM, beside the published
    pairs (plain, ELMo)."""
    plain = scores["plain"]
    with save_figure(path, 12, 4.8) as figure:
        left, right = figure.subplots(1, 2)
        _draw_bars(left, scores)
        for k, label in enumerate(("baseline", "ELMo")):
            marker = {"marker": "_D"[k], "s": (150, 22)[k], "color": PAPER_COLOUR}
            left.scatter(
                range(len(titles)), [pair[k] for pair in published], label=f"paper, {label}", zorder=3, **marker
            )
        left.set(ylabel="score (%)", title="Scores", ylim=(0, 100))
        reductions = {
            bilm: [compute_increase(*pair).relative for pair in zip(plain, means, strict=True)]
            for bilm, means in scores.items()
            if bilm != "plain"
        }
        reductions["paper"] = [compute_increase(*pair).relative for pair in published]
        _draw_bars(right, reductions)
        right.set(ylabel="error reduction (%)", title="Relative error reduction with ELMo")
        right.axhline(0, color="black", linewidth=0.8)
        legend: dict[str, Any] = {}
        for axes in (left, right):
            axes.set_xticks(range(len(titles)), titles)
            handles, labels = axes.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        figure.legend(legend.values(), legend, loc="outside lower center", ncols=len(legend))


def draw_variants(tables: ElmoTables, table: str, path: Path) -> bool:
    """Draw Table 2 or Table 3, one panel per task: our and published scores by column; return whether there were
    results."""
    make_variants = VARIANT_TABLES[table]
    panels: dict[str, dict[str, list[float]]] = {}
    for name in (name for name in tables.plan.rows if has_row(table, ROWS[name])):
        lines = {
            bilm: [_mean(tables, name, variant) for variant in make_variants(ROWS[name], bilm).values()]
            for bilm in tables.plan.columns
        }
        if any(not math.isnan(score) for scores in lines.values() for score in scores):
            panels[name] = lines
    if not panels:
        return False
    with save_figure(path, 3.8 * len(panels), 3.8) as figure:
        figure.suptitle("Layers of the biLM" if table == "2" else "Place of ELMo")
        for axes, (name, lines) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
            row = ROWS[name]
            titles = list(make_variants(row, ""))
            for bilm, scores in lines.items():
                axes.plot(titles, scores, marker="o", label=bilm)
            published = published_scores(table, row)
            axes.plot(titles, published, marker="D", color=PAPER_COLOUR, linestyle=":", label="paper")
            axes.set(title=row.title, ylabel=f"{row.score}, percent")
            axes.set_xticks(range(len(titles)), titles, rotation=20, ha="right", size=8)
            axes.grid(axis="y", alpha=0.3)
            axes.legend(fontsize=8)
    return True


def draw_mixes(mixes: Mapping[str, Sequence[LayerMix | None]], path: Path) -> bool:
    """Draw a heat map of the layer weights at the input and at the output, one row per network; return whether there
    were results."""
    rows = {name: pair for name, pair in mixes.items() if any(pair)}
    if not rows:
        return False
    weights = [mix.weights for pair in rows.values() for mix in pair if mix is not None]
    count, maximum = max(map(len, weights)), max(map(max, weights))
    with save_figure(path, 8, 1.4 + 0.34 * len(rows)) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for k, (axes, place) in enumerate(zip(panels, PLACES, strict=True)):
            shares = np.full((len(rows), count), np.nan)
            for cells, pair in zip(shares, rows.values(), strict=True):
                if (mix := pair[k]) is not None:
                    cells[: len(mix.weights)] = mix.weights
            image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=maximum, aspect="auto")
            for (y, x), share in np.ndenumerate(shares):
                if not math.isnan(share):
                    colour = "w" if share > 0.6 * maximum else "k"
                    axes.text(x, y, f"{share:.2f}", ha="center", va="center", color=colour, size=8)
            axes.set(title=f"ELMo at the {place}", xticks=range(count), xticklabels=layer_names(count))
        panels[0].set(yticks=range(len(rows)), yticklabels=list(rows))
        figure.colorbar(image, ax=panels, label="share of the mix")
    return True


def _mean(tables: ElmoTables, row: str, variant: Variant) -> float:
    score = tables.score(row, variant)
    return math.nan if score is None else score.mean


def _draw_bars(axes: Any, series: Mapping[str, list[float]]) -> None:
    width = GROUP_WIDTH / len(series)
    colours = iter(PALETTE)
    for k, (name, heights) in enumerate(series.items()):
        x = np.arange(len(heights)) - GROUP_WIDTH / 2 + (k + 0.5) * width
        colour = {"plain": PLAIN_COLOUR, "paper": PAPER_COLOUR}.get(name) or next(colours)
        axes.bar(x, heights, width, label="baseline" if name == "plain" else name, color=colour)
