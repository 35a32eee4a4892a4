"""Regions of the sentences of an experiment: surprisal per region, and differences between conditions.

A table has one sentence per row, with columns for the item and the condition. A column marks the regions: it has the
critical words of the sentence, or it is the column of the sentences, with regions separated by |."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from relmo.errors import CorpusError, quote
from relmo.settings.options import SumOptions
from relmo.text.sources import SourceText


def mark_regions(texts: Iterable[SourceText], options: SumOptions) -> Iterator[SourceText]:
    """Yield the texts of a table with the offsets of their regions; separators are removed."""
    for text in texts:
        columns = text.columns or {}
        for name in (options.region, options.item, options.condition):
            if name not in columns:
                problem = f"there is no column {quote(name)} (--region, --item, --condition), or --id omits it"
                raise CorpusError(f"{problem}; --region needs a table with one sentence per row")
        region = columns[options.region or ""].strip()
        if region == text.text.strip():
            yield _split_regions(text)
            continue
        spans = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(region)}(?!\w)", text.text)]
        if len(spans) != 1 or not region:
            problem = f"row {text.row}: the region {quote(region)} occurs {len(spans)} times in its sentence"
            raise CorpusError(f"{problem}; it must occur once, or separate the regions of the sentences with |")
        yield text._replace(regions=spans)


def _split_regions(text: SourceText) -> SourceText:
    """Replace each separator with a space, or with nothing if no white space is beside it."""
    sentence = re.sub(r"\s*(\|\s*)+", lambda match: " " if re.search(r"\s", match[0]) else "", text.text)
    regions, end = [], 0
    for piece in filter(None, map(str.strip, text.text.split("|"))):
        start = sentence.index(piece, end)
        end = start + len(piece)
        regions.append((start, end))
    return text._replace(text=sentence, regions=regions)


def compare_conditions(records: Iterable[dict[str, Any]], options: SumOptions) -> list[dict[str, Any]]:
    """Return for each region and two conditions the mean difference in surprisal over the items that have both, in
    bits, with a 95% interval of Student's t; sentences of one item and condition are averaged first."""
    values: dict[int, dict[str, dict[str, list[float]]]] = {}  # by region, condition and item
    for record in records:
        item, condition = (record.get(f"input_{name}", record[name]) for name in (options.item, options.condition))
        by_item = values.setdefault(record["region"], {}).setdefault(condition, {})
        by_item.setdefault(item, []).append(record["surprisal"])
    differences = []
    for region, by_condition in sorted(values.items()):
        for (name_a, a), (name_b, b) in combinations(by_condition.items(), 2):
            paired = [float(np.mean(a[item]) - np.mean(b[item])) for item in a if item in b]
            if paired:
                mean, low, high = t_interval(paired)
                names = {"region": region, "conditions": f"{name_a} - {name_b}", "items": len(paired)}
                differences.append(names | {"mean": mean, "low": low, "high": high})
    return differences


def t_interval(differences: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean and its 95% interval of Student's t; without bounds for a single difference."""
    count, mean = len(differences), float(np.mean(differences))
    if count == 1:
        return mean, None, None
    # With T = sqrt(df) tan(A), the density of the angle A is proportional to cos(A) ** (df - 1).
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (count - 2)
    cumulative = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    t = np.sqrt(count - 1) * np.tan(np.interp(0.95 * cumulative[-1], cumulative, angles))
    margin = float(t * np.std(differences, ddof=1) / np.sqrt(count))
    return mean, mean - margin, mean + margin
