"""What agreement costs `small` without its number units, for the explorer to show at once. Minutes of one CPU core.

recipes/agreement_figures.py src/relmo/data/agreement.json
"""

import json
import sys
from pathlib import Path

from relmo.analysis.core.ablate import intervene
from relmo.analysis.syntax.agreement import agreement
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.text.noun_phrases import noun_pp

UNITS = (1035, 799)  # of c of layer 1: `relmo analyse number-units small`
PAIRS = 100


def main(out: Path) -> None:
    """Asks with all units and without each, and writes the shares that are right."""
    model = load("small", device="cpu")
    assert isinstance(model, BiLM)
    assert model.vocabulary is not None
    pairs = noun_pp(per_condition=PAIRS, known=model.vocabulary.index)

    def right() -> dict[str, float]:
        report = agreement(model, pairs, control=False)
        return {row["condition"]: row["accuracy"] for row in report.as_dict()["conditions"]}

    found = {"model": "small", "pairs": PAIRS, "all": right(), "without": {}}
    for unit in UNITS:
        with intervene(model, 1, unit, state="c"):
            found["without"][f"c1.{unit}"] = right()
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
