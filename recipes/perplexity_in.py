"""The perplexity of a text in a smaller vocabulary than a biLM's own, so that models of different vocabularies compare.

python recipes/perplexity_in.py out/large out/vocabulary.txt data/lm/pretrain-valid.txt

Every word that is not in the smaller vocabulary counts as <UNK>, whose probability is then that of all of them.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from relmo.loading import load
from relmo.nn.softmax import FullSoftmax
from relmo.runs.train_bilm import LANES
from relmo.text.vocabulary import SentenceVocabulary

ROWS = 512  # distributions at a time


class FewerWords(nn.Module):
    """An output layer, in which the symbols that `merged` marks (V,) are one."""

    def __init__(self, softmax: FullSoftmax, merged: Tensor):
        super().__init__()
        self.softmax, self.merged = softmax, merged.to(softmax.weight.device)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """The exact negative log-likelihood of each target; (N,)."""
        found = []
        for features, own in zip(x.split(ROWS), targets.split(ROWS), strict=True):
            log_probs = self.softmax.log_probs(features)
            of_one = log_probs.gather(1, own[:, None])[:, 0]
            of_merged = log_probs[:, self.merged].logsumexp(dim=1)
            found.append(-torch.where(self.merged[own], of_merged, of_one))
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
    model.network.softmax = FewerWords(model.network.softmax, torch.tensor(merged))
    for text in given.texts:
        score = model.evaluate(text, lanes=LANES[model.device.type]).summary()
        print(f"{text}: {score['perplexity']:.2f}", flush=True)


if __name__ == "__main__":
    main()
