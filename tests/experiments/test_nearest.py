"""Nearest vectors by cosine: against a search that sorts everything."""

import numpy as np
import pytest

from experiments.neighbours import Search
from relmo.analysis.meaning.occurrences import Nearest, normalize


def nearest(
    queries: np.ndarray, matrix: np.ndarray, *, k: int, banned: np.ndarray | None = None, piece: int = 1000
) -> Nearest:
    """The rows given to the search in pieces."""
    search = Search(queries, k)
    for begin in range(0, len(matrix), piece):
        batch = slice(begin, begin + piece)
        search.add(matrix[batch], None if banned is None else banned[:, batch])
    return Nearest(search.places, search.cosines)


def by_sorting(queries: np.ndarray, matrix: np.ndarray, k: int, banned: np.ndarray | None = None) -> np.ndarray:
    cosines = np.array(
        [[q @ m / max(np.linalg.norm(q) * np.linalg.norm(m), 1e-30) for m in matrix] for q in queries.astype(float)]
    )
    if banned is not None:
        cosines[banned] = -np.inf
    return np.argsort(-cosines, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("piece", [1, 3, 7, 64, 1000])
def test_the_nearest_are_those_of_a_full_sort_however_the_rows_are_cut(piece: int) -> None:
    generator = np.random.default_rng(piece)
    matrix, queries = generator.standard_normal((200, 6)), generator.standard_normal((4, 6)) * 100
    banned = generator.random((4, 200)) < 0.3
    found = nearest(queries, matrix, k=9, banned=banned, piece=piece)
    assert np.array_equal(found.places, by_sorting(queries, matrix, 9, banned))
    assert not np.take_along_axis(banned, found.places, axis=1).any()
    expected = np.take_along_axis(normalize(queries) @ normalize(matrix).T, found.places, axis=1)
    assert np.allclose(found.cosines, expected, atol=1e-6)


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_of_equally_near_rows_the_earlier_come_first(piece: int) -> None:
    matrix = np.array([[1, 0], [0, 1], [2, 0], [4, 0], [0, 3], [8, 0]], dtype=np.float32)
    assert nearest(np.array([[1.0, 0.0]]), matrix, k=3, piece=piece).places.tolist() == [[0, 2, 3]]
    assert nearest(np.array([[0.0, 5.0]]), matrix, k=3, piece=piece).places.tolist() == [[1, 4, 0]]


def test_where_there_are_too_few_rows_the_rest_is_marked() -> None:
    found = nearest(np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), k=5)
    assert found.places.tolist() == [[0, 1, 2, -1, -1]]
    assert found.cosines[0, :3].tolist() == [1, 0, -1]
    assert np.isneginf(found.cosines[0, 3:]).all()


def test_rows_of_zeros_are_near_to_nothing() -> None:
    found = nearest(np.array([[1.0, 0.0]]), np.zeros((2, 2)), k=1)
    assert found.cosines.tolist() == [[0]]


def test_a_search_gives_the_cosines_of_each_piece_banned_rows_too() -> None:
    search = Search(np.array([[3.0, 0.0]]), k=1)
    assert search.add(np.array([[1.0, 0.0]]), banned=np.array([[True]])).tolist() == [[1]]
    search.add(np.array([[0.0, 1.0], [1.0, 1.0]]))
    assert search.places.tolist() == [[2]]
