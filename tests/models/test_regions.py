"""Regions of experiments: their offsets, sums, and differences between conditions."""

import statistics
from pathlib import Path

import pytest

from relmo.errors import CorpusError, SettingError
from relmo.models.regions import compare_conditions, mark_regions, t_interval
from relmo.models.surprisal import SurprisalTable, WordSurprisal, sum_lines
from relmo.settings.options import SumOptions
from relmo.text.sources import SourceText, read_texts
from relmo.text.tokenize import split_whitespace

SEPARATED = SumOptions(region="sentence")


def make_text(sentence: str, row: int = 1, **columns: str) -> SourceText:
    return SourceText(sentence, row=row, columns={"item": "1", "condition": "a", "sentence": sentence} | columns)


def score_by_length(texts: list[SourceText]) -> list[WordSurprisal]:
    """Rows whose surprisal is the length of the word."""
    rows = []
    for line, text in enumerate(texts, start=1):
        for i, token in enumerate(split_whitespace(text.text), start=1):
            place = (line, i, token.text, token.start, token.end)
            rows.append(WordSurprisal(*place, float(len(token.text)), 1.0, False, source=text))
    return rows


@pytest.mark.parametrize(
    ("marked", "sentence", "regions"),
    [
        ("The horse | raced past | fell.", "The horse raced past fell.", ["The horse", "raced past", "fell."]),
        ("The horse |raced|.", "The horse raced.", ["The horse", "raced", "."]),
        ("|One| two| |three |", "One two three ", ["One", "two", "three"]),
        ("no mark", "no mark", ["no mark"]),
    ],
)
def test_separators_are_removed_and_regions_keep_their_words(marked: str, sentence: str, regions: list[str]) -> None:
    (text,) = mark_regions([make_text(marked)], SEPARATED)
    assert text.text == sentence
    assert [text.text[start:end] for start, end in text.regions] == regions


def test_critical_words_are_those_that_occur_once_as_words() -> None:
    options = SumOptions(region="critical")
    (text,) = mark_regions([make_text("The cathedral saw a cat.", critical="cat")], options)
    assert text.regions == [(20, 23)]
    for critical in ("a dog", "", "the"):
        with pytest.raises(CorpusError, match=r"row 3: the region .* times"):
            list(mark_regions([make_text("the cat saw the dog", 3, critical=critical)], options))
    with pytest.raises(CorpusError, match="no column 'critical'"):
        list(mark_regions([make_text("the cat")], options))
    with pytest.raises(CorpusError, match="needs a table"):
        list(mark_regions([SourceText("the cat")], options))
    with pytest.raises(SettingError, match="without region"):
        SumOptions(item="x").check()


def test_words_are_summed_by_region_and_punctuation_goes_with_its_word() -> None:
    texts = list(
        mark_regions([make_text("The old | man |.", words="x"), make_text("A | dog", 2, words="y")], SEPARATED)
    )
    records = list(sum_lines(score_by_length(texts)))
    names = [(record["row"], record["region"], record["region_text"], record["surprisal"]) for record in records]
    # "man ." is two words here, and the last region is its own.
    assert names == [(1, 1, "The old", 6.0), (1, 2, "man", 3.0), (1, 3, ".", 1.0), (2, 1, "A", 1.0), (2, 2, "dog", 3.0)]
    assert [record["input_words"] for record in records] == ["x", "x", "x", "y", "y"]
    glued = list(mark_regions([make_text("The old | man|.")], SEPARATED))
    assert [record["surprisal"] for record in sum_lines(score_by_length(glued))] == [6.0, 4.0], "man. is one word"


def test_differences_are_paired_by_item() -> None:
    surprisals = {"1": {"amb": [9.0, 7.0], "un": [4.0]}, "2": {"amb": [5.0], "un": [2.0]}, "3": {"amb": [100.0]}}
    records = [
        {"region": 1, "item": item, "condition": condition, "surprisal": value}
        for item, by_condition in surprisals.items()
        for condition, values in by_condition.items()
        for value in values
    ]
    (difference,) = compare_conditions(records, SumOptions(region="x"))
    assert difference["conditions"] == "amb - un"
    assert difference["items"] == 2, "the third item has one condition"
    assert difference["mean"] == pytest.approx(3.5)
    margin = 12.7062 * statistics.stdev([4.0, 3.0]) / 2**0.5
    assert (difference["low"], difference["high"]) == pytest.approx((3.5 - margin, 3.5 + margin), rel=1e-3)


def test_intervals_are_those_of_students_t() -> None:
    stats = pytest.importorskip("scipy.stats")
    for count in (2, 3, 5, 12, 40, 400):
        values = [float((7 * i) % 13) for i in range(count)]
        mean, low, high = t_interval(values)
        margin = stats.t.ppf(0.975, count - 1) * statistics.stdev(values) / count**0.5
        assert mean == pytest.approx(statistics.mean(values))
        assert (low, high) == pytest.approx((mean - margin, mean + margin), rel=1e-4)
    assert t_interval([2.0]) == (2.0, None, None)


def test_columns_of_a_table_are_kept_and_renamed_where_an_output_has_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("item,sentence,word,input_word,row\n1,a cat,x,y,z\n")
    (text,) = read_texts(tmp_path / "a.csv")
    table = SurprisalTable(score_by_length([text]), 0.0).to_dict()
    names = ["row", "item", "sentence", "input_word", "input_input_word", "input_row", "line"]
    assert list(table)[:7] == names
    assert [table[name][0] for name in names] == [1, "1", "a cat", "x", "y", "z", 1]
    assert table["word"] == ["a", "cat"]
    (few,) = read_texts(tmp_path / "a.csv")
    assert few.columns is not None
    table = SurprisalTable(score_by_length([few._replace(columns={"item": "1"})]), 0.0).to_dict()
    assert list(table)[:3] == ["row", "item", "line"]
