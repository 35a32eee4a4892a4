"""Draw the figures of tables in docs/results.md: the table is the only source of their numbers.

python -m experiments.recipes.result_figures docs        elmo-table.png, task-shares.png, reading-times.png
"""

import re
import sys
from pathlib import Path

from experiments.elmo_table.figures import draw_scores
from experiments.elmo_table.rows import ROWS
from experiments.reading_times import GAIN, HIGH, LOW, ComparedRow, draw_gains
from experiments.task_results import SharePanel, draw_efficiency

ELMO_ROWS = {
    "squad": "SQuAD, BiDAF++",
    "snli": "SNLI, ESIM",
    "srl": "Semantic roles, deep highway LSTM",
    "coref": "Coreference, span ranking",
    "ner": "Names, biLSTM-CRF",
    "sst5": "SST-5, biLSTM with attention",
}


def read_table(text: str, first_column: str) -> list[list[str]]:
    """Return the cells of the rows of the table whose header begins with this column."""
    _, _, rest = text.partition(f"| {first_column} |")
    lines = rest.splitlines()[2:]
    end = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end]]


def read_numbers(cell: str) -> list[float]:
    """Return the numbers of a cell, such as mean and standard deviation."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", cell.replace(",", ""))]


def main() -> None:
    """Draw all figures."""
    folder = Path(sys.argv[1])
    text = (folder / "results.md").read_text(encoding="utf-8")

    cells_by_task = {row[0]: row[2:5] for row in read_table(text, "task | score | baseline | small | large")}
    means = [[read_numbers(cell)[0] for cell in cells_by_task[title]] for title in ELMO_ROWS.values()]
    scores = dict(zip(("plain", "small", "large"), map(list, zip(*means, strict=True)), strict=True))
    rows = [ROWS[name] for name in ELMO_ROWS]
    draw_scores([row.title for row in rows], scores, [row.table1 for row in rows], folder / "elmo-table.png")

    share_rows = read_table(text, "share of the training sentences")
    curves: list[list[tuple[float, float, float]]] = []
    for k in range(2, 6):
        curve = []
        for row in share_rows:
            mean, deviation = read_numbers(row[k])[:2]
            curve.append((read_numbers(row[0])[0], mean, deviation))
        curves.append(curve)
    panels = {
        "POS, EWT": SharePanel("accuracy", {"no ELMo": curves[0], "ELMo (small)": curves[1]}),
        "NER, UNER EWT": SharePanel("F1", {"no ELMo": curves[2], "ELMo (small)": curves[3]}),
    }
    draw_efficiency(panels, folder / "task-shares.png")

    gains = []
    for row in read_table(text, "| bits per word"):
        low, high = read_numbers(row[4])
        gains.append(ComparedRow(row[0].replace("`", ""), {GAIN: read_numbers(row[3])[0], LOW: low, HIGH: high}))
    draw_gains(folder / "reading-times.png", gains)


if __name__ == "__main__":
    main()
