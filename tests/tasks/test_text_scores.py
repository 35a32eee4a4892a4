"""Scores of written texts: cases known by hand, and sacreBLEU's own figures."""

import pytest

from relmo.errors import SettingError
from relmo.tasks import scores
from relmo.tasks.scores import sacrebleu_score, score_text, text_report


def test_the_longest_common_subsequence_is_that_of_the_textbook() -> None:
    # Cormen et al., chapter 15: 4 of 7 and of 6
    assert score_text("A B C B D A B", ["B D C A B A"])["rougeL"] == pytest.approx(2 * 4 / (7 + 6))
    for text, reference in (("a b c", ""), ("", "a b c"), ("a b", "c d")):
        assert score_text(text, [reference])["rougeL"] == 0


def means(texts: list[str], references: list[list[str]]) -> dict[str, float]:
    return text_report(texts, references, [1] * len(texts), metric="exact").values


def test_rouge_is_as_lin_has_it() -> None:
    """Lin 2004: police killed the gunman, beside `police kill the gunman` and `the gunman kill police`."""
    reference = ["police killed the gunman"]
    first, second = (score_text(text, reference) for text in ("Police kill the gunman!", "the gunman kill police"))
    assert (first["rouge1"], first["rouge2"], first["rougeL"]) == pytest.approx((3 / 4, 1 / 3, 3 / 4))
    assert (second["rouge1"], second["rouge2"], second["rougeL"]) == pytest.approx((3 / 4, 1 / 3, 2 / 4))
    longer = means(["the cat sat", ""], [["the cat", "a dog sat"], ["x"]])
    assert longer["rouge1"] == pytest.approx((2 * 1 * (2 / 3) / (1 + 2 / 3)) / 2)  # the better of two references


def test_exact_match_counts_any_reference_and_no_spaces_at_the_ends() -> None:
    assert means(["19 ", "7", "A"], [["19"], ["8", "7"], ["a"]])["exact"] == pytest.approx(2 / 3)
    assert means([], [])["exact"] == 0.0


def test_the_right_prefix_ends_at_the_first_mistake() -> None:
    found = means(["abxd", "", "12"], [["abcd"], ["a"], ["99", "123"]])
    assert found["prefix"] == pytest.approx((2 / 4 + 0 + 2 / 3) / 3)


def test_bleu_and_chrf_are_sacrebleus_with_their_signatures() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs relmo[translate]")
    found = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
    right = [["The dog bit the man.", "The dog had bit the man."], ["It was not unexpected."], ["The man had bitten."]]
    columns = [[each[0] for each in right], ["The dog had bit the man.", None, None]]
    bleu, signature = sacrebleu_score("bleu", found, right)
    assert bleu == pytest.approx(sacrebleu.metrics.BLEU().corpus_score(found, columns).score / 100)
    assert signature.startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    chrf, signature = sacrebleu_score("chrf", found, right)
    assert chrf == pytest.approx(sacrebleu.metrics.CHRF().corpus_score(found, columns).score / 100)
    assert "nc:6" in signature
    report = text_report(found, right, [5, 4, 11])
    assert report.metric == "bleu"
    assert report.score == bleu
    assert [(row.least, row.most, row.texts) for row in report.by_length] == [(0, 5, 2), (11, 15, 1)]
    assert report.by_length[0].score == pytest.approx(sacrebleu_score("bleu", found[:2], right[:2])[0])
    assert set(report.summary()["signatures"]) == {"bleu", "chrf"}


def test_without_sacrebleu_other_scores_are_there_and_bleu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "HAS_SACREBLEU", False)
    report = text_report(["a b"], [["a b"]], [300], metric="exact")
    assert report.values == {"exact": 1.0, "rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0, "prefix": 1.0}
    assert report.by_length[0][:3] == (201, None, 1)
    with pytest.raises(
        SettingError, match=r"metric bleu needs the sacrebleu package: pip install 'relmo\[translate\]'"
    ):
        text_report(["a b"], [["a b"]], [3])
