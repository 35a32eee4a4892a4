"""High-order n-gram models over a network's symbols in bounded memory, for comparison.

    model = ngram_like(lstm, ids, order=20)          # a LanguageModel: it scores and generates as any other

The model is the interpolated modified Kneser-Ney of `networks.ngram` (Chen & Goodman 1999). For a text of T symbols it
would store up to T n-grams of every order. But most long n-grams, and all their continuations, occur once. Above order
`once_up_to` these are pruned, as in the usual toolkits. Their probability goes to the shorter context, so every context
still sums to one, and discounts are estimated before pruning. With `once_up_to` = order nothing is pruned.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from relmo.errors import CorpusError
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM, estimate_discounts

ONCE_UP_TO = 6  # highest order at which n-grams with one occurrence are kept
MAX_SYMBOLS = 50_000_000  # sorting takes about forty bytes per symbol


def ngram_like(
    model: LanguageModel,
    ids: np.ndarray,
    *,
    order: int = 20,
    once_up_to: int = ONCE_UP_TO,
    progress: Callable[[float], object] | None = None,
) -> LanguageModel:
    """Fit an n-gram model to a text in the ids of another model's vocabulary, such as its training text."""
    network = fit_pruned(ids, vocab_size=len(model.vocabulary), order=order, once_up_to=once_up_to, progress=progress)
    settings = replace(model.settings, model=replace(model.settings.model, cell="ngram", order=order))
    return LanguageModel(network, model.vocabulary, settings)


def fit_pruned(
    stream: np.ndarray,
    *,
    vocab_size: int,
    order: int,
    once_up_to: int = ONCE_UP_TO,
    progress: Callable[[float], object] | None = None,
) -> NGramLM:
    """Fit the model to one text (T,), without the n-grams of orders above `once_up_to` that occur once.

    Each order reads only positions whose shorter n-gram occurs twice, so memory and time fall with the order.
    """
    model = NGramLM(vocab_size=vocab_size, order=order)
    if not len(stream):
        raise CorpusError("The text is empty.")
    if len(stream) > MAX_SYMBOLS:
        raise CorpusError(f"The text has {len(stream):,} symbols; at most {MAX_SYMBOLS:,} are supported.")
    starts = np.arange(len(stream))  # positions of the remaining (k-1)-grams
    nodes = np.zeros(len(stream), dtype=np.int64)  # their indices in the table of order k - 1
    num_contexts = 1
    for k in range(1, order + 1):
        within = starts + k - 1 < len(stream)
        starts, nodes = starts[within], nodes[within]
        key = nodes * vocab_size
        key += stream[starts + k - 1]
        keys, inverse, occurrences = np.unique(key, return_inverse=True, return_counts=True)
        counts = occurrences if k == order else _count_continuations(stream, starts, inverse, len(keys), vocab_size)
        retained = occurrences > 1 if k > once_up_to else np.ones(len(keys), dtype=bool)
        probability, gamma = _apply_discounts(counts, keys // vocab_size, retained, num_contexts)
        for name, array in (("keys", keys[retained]), ("probability", probability), ("gamma", gamma)):
            setattr(model, f"{name}_{k}", torch.from_numpy(array))
        num_contexts = int(np.count_nonzero(retained))
        indices = np.cumsum(retained) - 1
        alive = retained[inverse]
        starts, nodes = starts[alive], indices[inverse[alive]]
        if progress is not None:
            progress(k / order)
    return model


def _count_continuations(
    stream: np.ndarray, starts: np.ndarray, ngrams: np.ndarray, count: int, vocab_size: int
) -> np.ndarray:
    """Count the distinct symbols before each n-gram; `ngrams` (P,) are those at the positions `starts`."""
    has_previous = starts > 0
    pairs = ngrams[has_previous] * vocab_size
    pairs += stream[starts[has_previous] - 1]
    return np.bincount(np.unique(pairs) // vocab_size, minlength=count)


def _apply_discounts(
    counts: np.ndarray, parents: np.ndarray, retained: np.ndarray, num_contexts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each retained n-gram's discounted probability, and the weight (contexts,) that goes to the order below.

    Pruned n-grams give all their weight to the order below. counts, parents and retained are (N,).
    """
    discount = estimate_discounts(counts)[np.minimum(counts, 3)]
    total = np.bincount(parents, weights=counts, minlength=num_contexts)
    freed = np.bincount(parents, weights=np.where(retained, discount, counts), minlength=num_contexts)
    gamma = np.divide(freed, total, out=np.ones(num_contexts), where=total > 0)
    probability = ((counts - discount) / np.maximum(total, 1)[parents])[retained]
    return probability.astype(np.float32), gamma.astype(np.float32)
