"""An n-gram model to compare a network with: over the network's own symbols, to high orders, in bounded memory.

    model = ngram_like(lstm, ids, order=20)          a LanguageModel: it is scored and generates as any other

The model is the interpolated modified Kneser-Ney of `networks.ngram` (Chen & Goodman 1999). For a text of T symbols
that model would keep up to T n-grams of every order, so twenty orders would take twenty times the text. But most long
n-grams stand in the text once, and so does everything that goes on from them. Above order `once_up_to` these are left
out, as the usual toolkits do. Their probability goes to the shorter context, so every context still sums to one, and
discounts are estimated before they are left out. With `once_up_to` = order nothing is left out.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from relmo.errors import CorpusError
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM, discounts

ONCE_UP_TO = 6  # n-grams up to this order are kept though they were seen once
MOST = 50_000_000  # symbols that are counted; sorting them takes some forty bytes each


def ngram_like(
    model: LanguageModel,
    ids: np.ndarray,
    *,
    order: int = 20,
    once_up_to: int = ONCE_UP_TO,
    progress: Callable[[float], object] | None = None,
) -> LanguageModel:
    """An n-gram model of a text in the ids of another model's vocabulary, such as the one that model was trained on."""
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
    """The model of one text (T,), without the n-grams of orders above `once_up_to` that stand in it once.

    Each order looks only at places whose n-gram of the order below was seen twice, so memory and time fall with the
    order."""
    model = NGramLM(vocab_size=vocab_size, order=order)
    if not len(stream):
        raise CorpusError("the text is empty; an n-gram model counts at least one token")
    if len(stream) > MOST:
        raise CorpusError(f"{len(stream):,} symbols are more than the {MOST:,} that are counted; give less text")
    places = np.arange(len(stream))  # where the (k-1)-grams that were kept begin
    nodes = np.zeros(len(stream), dtype=np.int64)  # their positions in the table of order k - 1
    contexts = 1
    for k in range(1, order + 1):
        within = places + k - 1 < len(stream)
        places, nodes = places[within], nodes[within]
        key = nodes * vocab_size
        key += stream[places + k - 1]
        keys, inverse, seen = np.unique(key, return_inverse=True, return_counts=True)
        counts = seen if k == order else _continuations(stream, places, inverse, len(keys), vocab_size)
        kept = seen > 1 if k > once_up_to else np.ones(len(keys), dtype=bool)
        probability, gamma = _discount_kept(counts, keys // vocab_size, kept, contexts)
        for name, array in (("keys", keys[kept]), ("probability", probability), ("gamma", gamma)):
            setattr(model, f"{name}_{k}", torch.from_numpy(array))
        contexts = int(np.count_nonzero(kept))
        position = np.cumsum(kept) - 1
        alive = kept[inverse]
        places, nodes = places[alive], position[inverse[alive]]
        if progress is not None:
            progress(k / order)
    return model


def _continuations(
    stream: np.ndarray, places: np.ndarray, ngrams: np.ndarray, count: int, vocab_size: int
) -> np.ndarray:
    """How many distinct symbols stand right before each n-gram; `ngrams` (P,) are those that begin at `places`."""
    after = places > 0
    pairs = ngrams[after] * vocab_size
    pairs += stream[places[after] - 1]
    return np.bincount(np.unique(pairs) // vocab_size, minlength=count)


def _discount_kept(
    counts: np.ndarray, parents: np.ndarray, kept: np.ndarray, contexts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each kept n-gram's discounted probability, and the weight each context leaves to the order below; n-grams that
    are not kept leave all they had. counts, parents, kept (N,) -> (kept N,), (contexts,), float32."""
    taken = discounts(counts)[np.minimum(counts, 3)]
    total = np.bincount(parents, weights=counts, minlength=contexts)
    left = np.bincount(parents, weights=np.where(kept, taken, counts), minlength=contexts)
    gamma = np.divide(left, total, out=np.ones(contexts), where=total > 0)
    probability = ((counts - taken) / np.maximum(total, 1)[parents])[kept]
    return probability.astype(np.float32), gamma.astype(np.float32)
