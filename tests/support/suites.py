"""A test suite of SyntaxGym with three items, and a model of words that knows its answers."""

import json
from pathlib import Path
from typing import Any

from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import Vocabulary

FORMULAS = ["(2;%sing%) < (2;%mismatch%)", "[(2;%plural%) + 1] > (2;%plural%)"]
LESSONS = "the cat sits , the cats sit . the dog runs . the dogs run . the mouse run ."


def make_suite(formulas: list[str] = FORMULAS, metric: str = "sum", **changes: Any) -> dict[str, Any]:
    """Return the content of a suite: three items with the conditions sing, mismatch and plural, the third region empty
    and the fourth a comma with what follows."""
    items = []
    for number, (noun, right, wrong) in enumerate(
        [("cat", "sits", "sit"), ("dog", "runs", "run"), ("mouse", "runs", "run")]
    ):
        sentences = {
            "sing": [f"the {noun}", right, "", ", the cat ."],
            "mismatch": [f"the {noun}", wrong, "", ", the cat ."],
            "plural": [f" the {noun}s", wrong, "", ", the yak ."],
        }
        conditions = [
            {
                "condition_name": name,
                "regions": [{"region_number": i + 1, "content": text} for i, text in enumerate(texts)],
            }
            for name, texts in sentences.items()
        ]
        items.append({"item_number": number + 1, "conditions": conditions})
    regions = {"1": "subject", "2": "verb", "3": "empty", "4": "rest"}
    predictions = [{"type": "formula", "formula": formula} for formula in formulas]
    meta = {"name": "number_test", "metric": metric}
    return {"meta": meta, "region_meta": regions, "predictions": predictions, "items": items} | changes


def write_suite(path: Path, **options: Any) -> Path:
    path.write_text(json.dumps(make_suite(**options)))
    return path


def word_ngram() -> LanguageModel:
    """Return a trigram model of LESSONS, which is wrong about mice, and does not know `mouses` and `yak`."""
    words = LESSONS.split()
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(words))])
    network = NGramLM.fit(vocabulary.ids(words), vocab_size=len(vocabulary), order=3)
    settings = LMSettings(model=LanguageModelSettings(cell="ngram", order=3), text=TextSettings(unit="word"))
    return LanguageModel(network, vocabulary, settings)
