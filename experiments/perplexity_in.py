"""Perplexity of a text in a smaller vocabulary than that of a biLM, to compare models with different vocabularies.

    python -m experiments.perplexity_in out/large out/vocabulary.txt data/lm/pretrain-valid.txt

Every word outside the smaller vocabulary counts as <UNK>, whose probability is the sum over these words.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relmo.loading import load
from relmo.nn.softmax import FullSoftmax
from relmo.runs.train_bilm import LANES
from relmo.text.vocabulary import SentenceVocabulary

NUM_ROWS = 512  # distributions at a time


class MergedSoftmax(nn.Module):
    """Output layer in which the symbols marked by `merged` (V,) are one symbol."""

    def __init__(self, softmax: FullSoftmax, merged: Tensor):
        super().__init__()
        self.softmax, self.merged = softmax, merged.to(softmax.weight.device)

    def nll(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of each target; (N,)."""
        losses = []
        for features, ids in zip(x.split(NUM_ROWS), targets.split(NUM_ROWS), strict=True):
            log_probs = self.softmax.log_probs(features)
            target_log_probs = log_probs.gather(1, ids[:, None])[:, 0]
            merged_log_probs = log_probs[:, self.merged].logsumexp(dim=1)
            losses.append(-torch.where(self.merged[ids], merged_log_probs, target_log_probs))
        return torch.cat(losses)


def main() -> None:
    """Print the perplexity of each text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    arguments = parser.parse_args()
    model = load(arguments.model, kinds="bilm")
    smaller = SentenceVocabulary.load(arguments.vocabulary)
    words = model.get_output_vocabulary()
    merged = [word not in smaller.index or i == words.unknown for i, word in enumerate(words.symbols)]
    network: Any = model.network
    network.softmax = MergedSoftmax(network.softmax, torch.tensor(merged))
    for text in arguments.texts:
        score = model.evaluate(text, lanes=LANES[model.device.type]).summary()
        print(f"{text}: {score['perplexity']:.2f}", flush=True)


if __name__ == "__main__":
    main()
