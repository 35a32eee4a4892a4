"""Spans of words: pruning of crossing spans, and buckets of distances between spans."""

from collections.abc import Iterable

import torch
from torch import Tensor

BUCKET_STARTS = (2, 3, 4, 5, 8, 16, 32, 64)  # the buckets are 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more
BUCKETS = len(BUCKET_STARTS) + 1


def distance_buckets(distances: Tensor) -> Tensor:
    """Return the bucket of each distance, which start at 1 and have any shape (Clark & Manning 2016)."""
    edges = torch.tensor(BUCKET_STARTS, dtype=distances.dtype, device=distances.device)
    return torch.bucketize(distances, edges, right=True)


def keep_spans(order: Iterable[int], *, width: int, max_spans: int) -> list[int]:
    """Select up to `max_spans` spans in this order that cross no selected one; return them in the order of the text.

    A span of n words from word s has the number s * width + n - 1. Two spans cross if they overlap and neither contains
    the other. So a span from s to e crosses one that begins in s + 1 … e and ends after e, or one that ends in
    s … e - 1 and begins before s. The longest selected span that begins, or ends, at a word is enough to know.
    """
    end_by_start: dict[int, int] = {}  # end of the longest selected span that begins at a word
    start_by_end: dict[int, int] = {}  # start of the longest that ends at a word
    selected: list[int] = []
    for number in order:
        if len(selected) == max_spans:
            break
        start, extent = divmod(number, width)
        end = start + extent
        if any(end_by_start.get(word, end) > end for word in range(start + 1, end + 1)):
            continue
        if any(start_by_end.get(word, start) < start for word in range(start, end)):
            continue
        selected.append(number)
        end_by_start[start] = max(end, end_by_start.get(start, end))
        start_by_end[end] = min(start, start_by_end.get(end, start))
    return sorted(selected)
