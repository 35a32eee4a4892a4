"""Agreement accuracy of `small` without its number units, precomputed for the explorer. Minutes on one CPU core.

python -m experiments.recipes.agreement_figures src/relmo/data/agreement.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from relmo.analysis.core.ablate import intervene
from relmo.analysis.syntax.agreement import agreement
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.text.minimal_pairs import noun_pp

UNITS = (1035, 799)  # of the cell state of layer 1: `relmo analyse number-units small`
NUM_PAIRS = 100


def main(out: Path) -> None:
    """Write the accuracy with all units and without each of the number units."""
    model = load("small", device="cpu")
    assert isinstance(model, BiLM)
    assert model.vocabulary is not None
    pairs = noun_pp(per_condition=NUM_PAIRS, known=model.vocabulary.index)

    def measure() -> dict[str, float]:
        report = agreement(model, pairs, control=False)
        return {row["condition"]: row["accuracy"] for row in report.as_dict()["conditions"]}

    accuracies: dict[str, Any] = {"model": "small", "pairs": NUM_PAIRS, "all": measure(), "without": {}}
    for unit in UNITS:
        with intervene(model, 1, unit, state="c"):
            accuracies["without"][f"c1.{unit}"] = measure()
    out.write_text(json.dumps(accuracies, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
