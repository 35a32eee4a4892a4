"""The nearest of many vectors by cosine, in bounded memory: rows come in pieces, and only the best are kept.

    search = Search(queries, k=10)
    for rows in pieces: search.add(rows)
    search.places, search.cosines                # (Q, k) each, nearest first

The result does not depend on how the rows are cut into pieces: of equal cosines the earlier row comes first.
"""

from typing import NamedTuple

import numpy as np

AT_ONCE = 1 << 16  # rows compared together


class Nearest(NamedTuple):
    """For each query its nearest rows, nearest first; where there are fewer than k, places -1 and cosines -inf."""

    places: np.ndarray  # (Q, k)
    cosines: np.ndarray  # (Q, k)


class Search:
    """Keeps, of all rows that are added, the k with the largest cosine to each query (Q, D)."""

    def __init__(self, queries: np.ndarray, k: int):
        self.queries = unit(queries)  # (Q, D)
        self.k = k
        self.seen = 0
        self.places = np.full((len(queries), k), -1, dtype=np.int64)
        self.cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)

    def add(self, rows: np.ndarray, banned: np.ndarray | None = None) -> np.ndarray:
        """More rows (n, D), numbered on from those before; `banned` (Q, n) are not to be found by a query. -> all
        cosines (Q, n)."""
        cosines = self.queries @ unit(rows).T
        allowed = cosines if banned is None else np.where(banned, -np.inf, cosines)
        for query, row in enumerate(allowed):
            self._keep(query, row)
        self.seen += len(rows)
        return cosines

    def _keep(self, query: int, cosines: np.ndarray) -> None:
        """Puts those of the new cosines (n,) that are among the best into their places."""
        k, n = self.k, len(cosines)
        least = np.partition(cosines, n - k)[n - k] if n > k else -np.inf
        new = np.flatnonzero((cosines >= least) & (cosines > self.cosines[query, -1]))
        both = np.concatenate([self.cosines[query], cosines[new]])
        best = np.argsort(-both, kind="stable")[:k]  # what came before stands before
        self.places[query] = np.concatenate([self.places[query], self.seen + new])[best]
        self.cosines[query] = both[best]

    def result(self) -> Nearest:
        """What was found so far."""
        return Nearest(self.places, self.cosines)


def nearest(queries: np.ndarray, matrix: np.ndarray, *, k: int = 10, banned: np.ndarray | None = None) -> Nearest:
    """The k rows of a matrix (N, D), in memory or mapped from a file, with the largest cosine to each query (Q, D);
    without those that are `banned` (Q, N). A row of zeros has the cosine 0 to everything."""
    search = Search(queries, k)
    for begin in range(0, len(matrix), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        search.add(matrix[part], None if banned is None else banned[:, part])
    return search.result()


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows (n, D) with length 1; zeros stay zeros."""
    rows = np.asarray(rows, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
