"""MUC, B³ and CEAF-φ4: the worked example of Pradhan et al. 2014, cases computed by hand, and two other programs."""

import random

import numpy as np
import pytest

from relmo.tasks.scores import b_cubed, best_pairs, ceaf, coref_report, mentions, muc

KEY = ["a", "bc", "def"]
# The clusters that are predicted for KEY; recall and precision of MUC, B³ and CEAF-φ4 as fractions, by hand.
BY_HAND = [
    (["a", "bc", "def"], (1, 1), (1, 1), (1, 1)),
    (["a", "ef"], (1 / 3, 1), ((1 + 4 / 3) / 6, 1), (1.8 / 3, 1.8 / 2)),  # something is missing
    (
        ["a", "bcx", "defy", "z"],
        (1, 3 / 5),
        (1, (1 + 4 / 3 + 9 / 4) / 9),
        ((1 + 0.8 + 6 / 7) / 3, (1 + 0.8 + 6 / 7) / 4),
    ),
    (["abcdef"], (1, 3 / 5), (1, (1 + 4 + 9) / 36), ((6 / 9) / 3, 6 / 9)),  # everything is one
    (["a", "b", "c", "d", "e", "f"], (0, 0), ((1 + 1 + 1) / 6, 1), ((1 + 2 / 3 + 1 / 2) / 3, (1 + 2 / 3 + 1 / 2) / 6)),
    ([], (0, 0), (0, 0), (0, 0)),
    (["xyz"], (0, 0), (0, 0), (0, 0)),
]


@pytest.mark.parametrize(("response", "of_muc", "of_b_cubed", "of_ceaf"), BY_HAND)
def test_measures_are_what_a_hand_computes(
    response: list[str], of_muc: tuple[float, float], of_b_cubed: tuple[float, float], of_ceaf: tuple[float, float]
) -> None:
    for measure, expected in ((muc, of_muc), (b_cubed, of_b_cubed), (ceaf, of_ceaf)):
        precision, recall, _ = measure(KEY, response).divide()
        assert (recall, precision) == pytest.approx(expected)


def test_the_worked_example_of_the_reference_implementation() -> None:
    key, response = ["abc", "defg"], ["ab", "cd", "fghi"]
    shown = [[round(figure, 2) for figure in measure(key, response).divide()[:2]] for measure in (muc, b_cubed, ceaf)]
    assert shown == [[0.40, 0.40], [0.50, 0.42], [0.43, 0.65]]  # precision, recall
    assert b_cubed(key, response).divide() == pytest.approx((4 / 8, (4 / 3 + 1 / 3 + 1 / 4 + 1) / 7, 5 / 11))
    assert mentions(key, response).divide() == pytest.approx((6 / 8, 6 / 7, 12 / 15))


def test_documents_are_summed_before_anything_is_divided() -> None:
    gold, predicted = [["ab"], ["cd", "efg"]], [["ab"], ["cdefg"]]
    report = coref_report(gold, predicted)
    of_muc, of_b_cubed, of_ceaf, of_mentions = report.labels
    assert (of_muc.precision, of_muc.recall, of_muc.support) == ((1 + 3) / (1 + 4), 1, 4)
    assert of_b_cubed.precision == (2 + 4 / 5 + 9 / 5) / 7
    assert of_ceaf.recall == pytest.approx((1 + 6 / 8) / 3)
    assert of_mentions.f1 == 1
    assert report.score == pytest.approx((of_muc.f1 + of_b_cubed.f1 + of_ceaf.f1) / 3)
    assert report.count == 7


def test_singletons_count_and_the_other_figure_stands_beside() -> None:
    report = coref_report([["ab", "c", "d"]], [["ab"]])
    assert [label.recall for label in report.labels] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 2])
    assert report.score < report.values["average_f1_no_singletons"] == 1


def _partition(generator: random.Random, elements: str) -> list[str]:
    """Some clusters of more than half of the elements: two of these share some, which scorch needs."""
    clusters: dict[int, str] = {}
    for element in generator.sample(elements, generator.randint(11, len(elements))):
        number = generator.randint(0, 9)
        clusters[number] = clusters.get(number, "") + element
    return list(clusters.values())


def test_random_clusters_score_as_scorch_says() -> None:
    scorch = pytest.importorskip("scorch.scores", reason="pip install scorch, the other program")
    generator = random.Random(0)
    for _ in range(200):
        key, response = (_partition(generator, "abcdefghijklmnopqrst") for _ in range(2))
        sets = [[set(cluster) for cluster in clusters] for clusters in (key, response)]
        for ours, theirs in ((muc, scorch.muc), (b_cubed, scorch.b_cubed), (ceaf, scorch.ceaf_e)):
            precision, recall, f1 = ours(key, response).divide()
            assert (recall, precision, f1) == pytest.approx(theirs(*sets))


def test_pairs_are_the_best_there_are() -> None:
    assign = pytest.importorskip("scipy.optimize").linear_sum_assignment
    generator = np.random.default_rng(0)
    for _ in range(200):
        values = generator.random(generator.integers(0, 9, 2)) * (generator.random() < 0.9)
        values[values < generator.random()] = 0  # as sparse as clusters that share mentions are
        pairs = best_pairs(values)
        assert len(pairs) == min(values.shape)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
        assert sum(values[i, j] for i, j in pairs) == pytest.approx(values[assign(-values)].sum())
