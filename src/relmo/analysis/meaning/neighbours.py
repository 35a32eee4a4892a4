"""Nearest neighbours by cosine in bounded memory: rows are added in batches and only the best are kept.

    search = Search(queries, k=10)
    for rows in batches: search.add(rows)
    search.places, search.cosines                # (Q, k) each, nearest first

The result does not depend on the batch boundaries: among equal cosines the earlier row comes first.
"""

from typing import NamedTuple

import numpy as np

BATCH_ROWS = 1 << 16


class Nearest(NamedTuple):
    """Nearest rows of each query, nearest first; missing entries have index -1 and cosine -inf."""

    places: np.ndarray  # (Q, k)
    cosines: np.ndarray  # (Q, k)


class Search:
    """Running top-k search for queries (Q, D) over rows that are added in batches."""

    def __init__(self, queries: np.ndarray, k: int):
        self.queries = normalize(queries)
        self.k = k
        self.num_rows = 0
        self.places = np.full((len(queries), k), -1, dtype=np.int64)
        self.cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)

    def add(self, rows: np.ndarray, banned: np.ndarray | None = None) -> np.ndarray:
        """Add rows (n, D), numbered after the previous ones, and return all cosines (Q, n). `banned` (Q, n) rows are
        excluded from a query's neighbours."""
        k, n = self.k, len(rows)
        all_cosines = self.queries @ normalize(rows).T
        allowed = all_cosines if banned is None else np.where(banned, -np.inf, all_cosines)
        for query, cosines in enumerate(allowed):
            least = np.partition(cosines, n - k)[n - k] if n > k else -np.inf
            new = np.flatnonzero((cosines >= least) & (cosines > self.cosines[query, -1]))
            merged = np.concatenate([self.cosines[query], cosines[new]])
            best = np.argsort(-merged, kind="stable")[:k]  # stable: earlier rows win ties
            self.places[query] = np.concatenate([self.places[query], self.num_rows + new])[best]
            self.cosines[query] = merged[best]
        self.num_rows += n
        return all_cosines

    def result(self) -> Nearest:
        """Return the nearest rows so far."""
        return Nearest(self.places, self.cosines)


def nearest(queries: np.ndarray, matrix: np.ndarray, *, k: int = 10, banned: np.ndarray | None = None) -> Nearest:
    """Return the k rows of a matrix (N, D), in memory or memory-mapped, with the largest cosine to each query (Q, D),
    without `banned` (Q, N). A row of zeros has cosine 0 to everything."""
    search = Search(queries, k)
    for begin in range(0, len(matrix), BATCH_ROWS):
        batch = slice(begin, begin + BATCH_ROWS)
        search.add(matrix[batch], None if banned is None else banned[:, batch])
    return search.result()


def normalize(rows: np.ndarray) -> np.ndarray:
    """Return rows (n, D) scaled to length 1; zeros stay zeros."""
    rows = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
