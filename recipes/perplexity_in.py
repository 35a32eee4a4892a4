"""The perplexity of a text in a smaller vocabulary than a biLM's own, so that models of different vocabularies compare.

python recipes/perplexity_in.py out/large out/vocabulary.txt data/lm/pretrain-valid.txt

Every word that is not in the smaller vocabulary counts as <UNK>, whose probability is then that of all of them.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from relmo.loading import load
from relmo.nn.softmax import FullSoftmax
from relmo.text.vocabulary import SentenceVocabulary

ROWS = 512  # of logits at a time


class FewerWords(FullSoftmax):
    """A model's output layer, in which the symbols that `merged` marks (V,) are one."""

    def __init__(self, softmax: FullSoftmax, merged: Tensor):
        super().__init__(softmax.weight.shape[1], 1)
        self.weight, self.bias, self.bottleneck = softmax.weight, softmax.bias, softmax.bottleneck
        self.merged = merged.to(softmax.weight.device)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """As `FullSoftmax`."""
        found = []
        for features, own in zip(x.split(ROWS), targets.split(ROWS), strict=True):
            logits = self.logits(features).float()
            of_one = logits.gather(1, own[:, None])[:, 0]
            of_merged = logits[:, self.merged].logsumexp(dim=1)
            found.append(logits.logsumexp(dim=1) - torch.where(self.merged[own], of_merged, of_one))
        return torch.cat(found)


def main() -> None:
    """Scores each text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    given = parser.parse_args()
    model = load(given.model, kinds="bilm")
    smaller = SentenceVocabulary.load(given.vocabulary)
    words = model.output_words()
    merged = [word not in smaller.index or i == words.unknown for i, word in enumerate(words.symbols)]
    assert model.network.softmax is not None
    model.network.softmax = FewerWords(model.network.softmax, torch.tensor(merged))
    for text in given.texts:
        score = model.evaluate(text, lanes=512 if model.device.type == "cuda" else 16).summary()
        print(f"{text}: {score['perplexity']:.2f}", flush=True)


if __name__ == "__main__":
    main()
