"""Stretches of words: which of them are kept, and how far apart two of them are."""

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST_OF_BUCKETS = (2, 3, 4, 5, 8, 16, 32, 64)  # the buckets are 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more
BUCKETS = len(FIRST_OF_BUCKETS) + 1


def distance_buckets(distances: Tensor) -> Tensor:
    """The number of the bucket of each distance from 1 on, of any shape (Clark & Manning 2016)."""
    edges = torch.tensor(FIRST_OF_BUCKETS, dtype=distances.dtype, device=distances.device)
    return torch.bucketize(distances, edges, right=True)


def keep_spans(order: Iterable[int], *, width: int, most: int) -> list[int]:
    """The first spans of `order`, at most so many, that cross none before them; in the order of the text.

    A span of n words from word s on has the number s * width + n - 1. Two spans cross if they share words and each has
    words of its own. So a span from s to e crosses one that begins in s + 1 … e and ends behind e, or one that ends in
    s … e - 1 and begins before s: of all kept spans that begin, or end, at a word, one is enough to know.
    """
    last_from: dict[int, int] = {}  # the last word of the longest kept span that begins at a word
    first_to: dict[int, int] = {}  # the first word of the longest that ends at one
    kept: list[int] = []
    for number in order:
        if len(kept) == most:
            break
        start, more = divmod(number, width)
        end = start + more
        if any(last_from.get(word, end) > end for word in range(start + 1, end + 1)):
            continue
        if any(first_to.get(word, start) < start for word in range(start, end)):
            continue
        kept.append(number)
        last_from[start] = max(end, last_from.get(start, end))
        first_to[end] = min(start, first_to.get(end, start))
    return sorted(kept)
