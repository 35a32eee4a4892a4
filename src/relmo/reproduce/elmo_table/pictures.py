"""The tables as pictures: scores and what ELMo adds to them, which layers and places, and the weights of the layers.

What the paper has is grey, plain networks are light, and each biLM has a colour of its own. Nothing that is not
finished is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.show import picture
from relmo.reproduce.elmo_table.plan import COMPARED, PLAIN, Variant, has_row, own_variant, published
from relmo.reproduce.elmo_table.rows import ROWS
from relmo.reproduce.elmo_table.tables import PLACES, ElmoTables, LayerMix, increase, layer_names

PAPER, NO_ELMO = "#777777", "#c9d6e3"
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
BAR = 0.8  # of the room that a row has


def draw(tables: ElmoTables, out: Path) -> list[str]:
    """Draws what was asked for. -> the names of the files, in `out`"""
    names = {
        "1": "elmo-table.png",
        "2": "elmo-layers.png",
        "placement": "elmo-placement.png",
        "weights": "elmo-weights.png",
    }
    return [names[table] for table in tables.plan.tables if _draw(tables, table, out / names[table])]


def _draw(tables: ElmoTables, table: str, path: Path) -> bool:
    if table in COMPARED:
        return draw_compared(tables, table, path)
    return draw_scores(tables, path) if table == "1" else draw_weights(tables, path)


def draw_scores(tables: ElmoTables, path: Path) -> bool:
    """Table 1: scores, and how much of the error ELMo takes away. -> there was something to draw"""
    rows = [name for name in tables.plan.rows if tables.score(name, PLAIN) is not None]
    if not rows:
        return False
    with picture(path, 11, 4.5) as figure:
        left, right = figure.subplots(1, 2)
        scores = {"plain": [_mean(tables, name, PLAIN) for name in rows]}
        gains = {}
        for bilm in tables.plan.bilms:
            own = {name: own_variant(ROWS[name], bilm) for name in rows}
            scores[bilm] = [_mean(tables, name, own[name]) for name in rows]
            found = [tables.gain(name, own[name]) for name in rows]
            gains[bilm] = [math.nan if gain is None else gain.relative for gain in found]
        _bars(left, scores, tables)
        for k, what in enumerate(("plain", "ELMo")):
            published = [ROWS[name].table1[k] for name in rows]
            mark = {"marker": "_D"[k], "s": (150, 22)[k], "color": PAPER}
            left.scatter(range(len(rows)), published, label=f"paper, {what}", zorder=3, **mark)
        left.set(ylabel="score, percent", title="Scores", ylim=(0, 100))
        _bars(right, gains | {"paper": [increase(*ROWS[name].table1).relative for name in rows]}, tables)
        right.set(ylabel="percent of the error", title="What ELMo takes away of the error")
        right.axhline(0, color="black", linewidth=0.8)
        for panel in (left, right):
            panel.set_xticks(range(len(rows)), [ROWS[name].title for name in rows])
        (marks, names), (bars, others) = left.get_legend_handles_labels(), right.get_legend_handles_labels()
        legend = dict(zip(names, marks, strict=True)) | dict(zip(others, bars, strict=True))
        figure.legend(legend.values(), legend, loc="outside lower center", ncols=len(legend))
    return True


def draw_compared(tables: ElmoTables, table: str, path: Path) -> bool:
    """Table 2 or Table 3, a panel for each task: ours and the paper's scores over the columns. -> there was something
    to draw"""
    columns = COMPARED[table]
    lines: dict[str, dict[str, list[float]]] = {}
    for name in (name for name in tables.plan.rows if has_row(table, ROWS[name])):
        found = {b: [_mean(tables, name, v) for v in columns(ROWS[name], b).values()] for b in tables.plan.bilms}
        if any(not math.isnan(score) for scores in found.values() for score in scores):
            lines[name] = found
    if not lines:
        return False
    with picture(path, 3.8 * len(lines), 3.8) as figure:
        figure.suptitle("Which layers" if table == "2" else "Where ELMo goes in")
        for panel, (name, found) in zip(np.atleast_1d(figure.subplots(1, len(lines))), lines.items(), strict=True):
            titles = list(columns(ROWS[name], ""))
            for bilm, scores in found.items():
                panel.plot(titles, scores, marker="o", color=_colour(tables, bilm), label=bilm)
            panel.plot(titles, published(table, ROWS[name]), marker="D", color=PAPER, linestyle=":", label="paper")
            panel.set(title=ROWS[name].title, ylabel=f"{ROWS[name].score}, percent")
            panel.set_xticks(range(len(titles)), titles, rotation=20, ha="right", size=8)
            panel.grid(axis="y", alpha=0.3)
            panel.legend(fontsize=8)
    return True


def draw_weights(tables: ElmoTables, path: Path) -> bool:
    """Figure 2."""
    found = {
        f"{ROWS[name].title} ({bilm})": [tables.mix(name, bilm, place) for place in PLACES]
        for name in tables.plan.rows
        for bilm in tables.plan.bilms
    }
    return draw_mixes(found, path)


def draw_mixes(mixes: Mapping[str, Sequence[LayerMix | None]], path: Path) -> bool:
    """A map of the layers' weights at the input and at the output, a row for each network that has some. -> there was
    something to draw"""
    found = {name: both for name, both in mixes.items() if any(both)}
    if not found:
        return False
    drawn = [mix for both in found.values() for mix in both if mix is not None]
    count, greatest = max(len(mix.weights) for mix in drawn), max(max(mix.weights) for mix in drawn)
    with picture(path, 8, 1.4 + 0.34 * len(found)) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for k, (panel, place) in enumerate(zip(panels, PLACES, strict=True)):
            shares = np.full((len(found), count), np.nan)
            for row, both in zip(shares, found.values(), strict=True):
                if (mix := both[k]) is not None:
                    row[: len(mix.weights)] = mix.weights
            image = panel.imshow(shares, cmap="viridis", vmin=0, vmax=greatest, aspect="auto")
            for (y, x), share in np.ndenumerate(shares):
                if not math.isnan(share):
                    colour = "w" if share < 0.7 * greatest else "k"
                    panel.text(x, y, f"{share:.2f}", ha="center", va="center", color=colour, size=8)
            panel.set(title=f"ELMo at the {place}", xticks=range(count), xticklabels=layer_names(count))
        panels[0].set(yticks=range(len(found)), yticklabels=list(found))
        figure.colorbar(image, ax=panels, label="share of the mix")
    return True


def _mean(tables: ElmoTables, row: str, variant: Variant) -> float:
    score = tables.score(row, variant)
    return math.nan if score is None else score.mean


def _colour(tables: ElmoTables, what: str) -> str:
    names = list(tables.plan.bilms)
    return {"plain": NO_ELMO, "paper": PAPER}.get(what) or COLOURS[names.index(what) % len(COLOURS)]


def _bars(panel: Any, series: dict[str, list[float]], tables: ElmoTables) -> None:
    """Groups of bars, one beside the other."""
    width = BAR / len(series)
    for k, (name, values) in enumerate(series.items()):
        places = np.arange(len(values)) - BAR / 2 + (k + 0.5) * width
        panel.bar(places, values, width, label=name, color=_colour(tables, name))
