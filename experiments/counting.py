"""Counting as the lecture shows it: networks trained on a^n b^n and a^n b^n c^n with n up to 50, tested on every n up
to 1,000 and 100, and the states of an LSTM and a GRU over a^1000 b^1000 and a^100 b^100 c^100.

    python -m experiments.counting OUT [CELL…]      default: lstm gru elman; docs/counting.png is OUT/counting.png

OUT/LANGUAGE-CELL-SEED/ has each network and OUT/LANGUAGE-CELL-SEED.json its test; finished ones are kept. Two minutes
per network on one CPU core, more for cells that run step by step.

    Weiss et al. 2018, On the practical computational power of finite precision RNNs for language recognition, Figure 2
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from relmo.analysis.core.show import Table, save_figure
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.counting import counting, format_ranges
from relmo.analysis.memory.counting_training import get_language
from relmo.cli.terminal import print_tables
from relmo.disk.files import read_json
from relmo.models.lm import LanguageModel
from relmo.registry import BASIC_CELLS
from relmo.settings.options import CountingOptions
from relmo.store.folder import write_json

LARGEST = {"anbn": 1000, "anbncn": 100}  # n in testing
NUM_SEEDS = 5
PICTURE_CELLS = ("lstm", "gru")


def measure_networks(out: Path, cells: Sequence[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Train and test the networks without a record; return the records of all seeds by language and cell."""
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for language, largest in LARGEST.items():
        options = CountingOptions(tested=largest, seeds=1)
        for cell in cells:
            for seed in range(NUM_SEEDS):
                name = f"{language}-{cell}-{seed}"
                path = out / f"{name}.json"
                if not path.exists():
                    result = counting(language, cell, replace(options, seed=seed))
                    result.model.save_pretrained(out / name, results={"balanced": result.balanced})
                    write_json(path, result.as_dict())
                record = read_json(path, "delete it to train again")
                print(
                    f"{name}: first failure {record['first_failure']}, first wrong {record['first_wrong']}", flush=True
                )
                records.setdefault((language, cell), []).append(record)
    return records


def is_exact(record: Mapping[str, Any]) -> bool:
    """Whether a network accepts all words of the language, and none of the others, up to the largest n."""
    return record["first_failure"] is None and record["first_wrong"] is None


def make_table(records: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> Table:
    """Return a table with one row per language and cell."""
    rows = []
    for (language, cell), seeds in records.items():
        failures = [min(filter(None, (seed["first_failure"], seed["first_wrong"])), default=None) for seed in seeds]
        limits = ", ".join("none" if n is None else str(n) for n in failures)
        accepted = format_ranges([tuple(span) for span in seeds[0]["accepted"]])
        counter = seeds[0]["counters"][0]
        row = [f"{language}, {cell}", f"{sum(map(is_exact, seeds))} of {len(seeds)}", limits, accepted]
        rows.append([*row, f"{counter['state']}{counter['unit']}", f"{counter['r']:+.5f}"])
    columns = ["network", "exact seeds", "first mistake, by seed", "accepts n = (seed 0)", "counter", "r"]
    largest = ", ".join(f"{language} to {n:,}" for language, n in LARGEST.items())
    return Table(columns, rows, "Counting", [f"trained on n = 1 to {CountingOptions().limit}; tested on {largest}"])


def draw_trajectories(out: Path, path: Path) -> None:
    """Draw every unit of the memory of seed 0 of each cell over one word of each language."""
    with save_figure(path, 12, 7) as figure:
        panels = figure.subplots(len(LARGEST), len(PICTURE_CELLS), squeeze=False, sharex="row")
        for row, (language, n) in zip(panels, LARGEST.items(), strict=True):
            word = get_language(language).right(n)[0]
            for axes, cell in zip(row, PICTURE_CELLS, strict=True):
                model = LanguageModel.from_pretrained(out / f"{language}-{cell}-0", device="cpu")
                state = build_stack(model.network).layers[0].cell.memory
                units = trace(model, [word], keep=[state]).states[state][0]  # (T, H)
                axes.plot(units, linewidth=1.3)
                for boundary in range(n, len(word), n):
                    axes.axvline(boundary, color="#6b7280", linestyle=":", linewidth=1)
                text = "".join(f"{letter}$^{{{n}}}$" for letter in dict.fromkeys(word))
                axes.set_title(f"{cell.upper()}, {state} of {units.shape[1]} units over {text}", fontsize=11)
                axes.set(xlabel="symbol", ylabel=f"{state}")


def main(out: Path, cells: Sequence[str] = ()) -> None:
    """Train, test, print the table and draw the picture."""
    out.mkdir(parents=True, exist_ok=True)
    records = measure_networks(out, cells or BASIC_CELLS)
    print_tables(make_table(records))
    if all((out / f"{language}-{cell}-0").exists() for language in LARGEST for cell in PICTURE_CELLS):
        draw_trajectories(out, out / "counting.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
