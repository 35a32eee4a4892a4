"""Perplexities from files to table: what is done to a text before it is scored, and that nothing else is."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments import perplexity
from experiments.perplexity import SETS, make_table, read_sentences, split_wikitext, take_words, unigram_perplexity
from experiments.tables import Controls
from relmo.errors import CorpusError, ModelError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.text.vocabulary import SentenceVocabulary
from support.published import find_row

WIKI = "\n".join(
    [
        " ",
        " = Homarus gammarus = ",
        " ",
        " The lobster , 1 @,@ 000 of a <unk> @-@ like kind , don 't see . <unk> <unk> ",
        " = = A section = = ",
        " The sea is 3 @.@ 5 m . ",
        "",
    ]
)
PLAIN = "The lobster sees the sea. It is large.\n\nThe sea is here.\n"


def make_bilm(*, vocabulary: bool = True, lowercase: bool = False) -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    words = SentenceVocabulary([*SentenceVocabulary.specials, ".", ",", "the", "The", "sea", "is", "kind", "do", "n't"])
    settings = BiLMSettings(model=network, text=BiLMTextSettings(lowercase=lowercase))
    return BiLM(
        BiLMNetwork(network, vocab_size=len(words) if vocabulary else None), settings, words if vocabulary else None
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder, with a few lines of each text."""
    for file in SETS.values():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(WIKI * 3 if file.endswith(".tokens") else PLAIN * 3)
    return tmp_path


def test_the_marks_of_wikitext_are_undone() -> None:
    for line, words in (
        ("a state @-@ of @-@ the @-@ art 1 @,@ 234 @.@ 5 thing", "a state-of-the-art 1,234.5 thing"),
        ("I don 't and won 't , the '80s ' tis", "I don't and won't , the '80s ' tis"),
        ("me @ home @-@", "me @ home @-@"),
    ):
        assert split_wikitext(line, str.split, "<UNK>") == words.split()


def test_hidden_words_are_unknown_whole_and_the_rest_is_split_as_the_model_splits_it() -> None:
    model = make_bilm()
    assert split_wikitext("a <unk> b.", model.tokens, "<UNK>") == ["a", "<UNK>", "b", "."]
    assert split_wikitext("<unk>-like <unk> <unk>", model.tokens, "<UNK>") == ["<UNK>"] * 3


def test_headings_and_blank_lines_of_wikitext_are_left_out(folder: Path) -> None:
    found = list(read_sentences(folder / SETS["WikiText-2 valid"], make_bilm(), wikitext=True))
    first = ["The", "lobster", ",", "1,000", "of", "a", "<UNK>", "kind", ",", "do", "n't", "see", ".", "<UNK>", "<UNK>"]
    assert found == [first, ["The", "sea", "is", "3.5", "m", "."]] * 3


def test_equals_signs_in_other_texts_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" = x = \n")
    assert list(read_sentences(tmp_path / "a.txt", make_bilm(), wikitext=False)) == [["=", "x", "="]]


def test_the_unigrams_of_a_text_predict_it_as_well_as_its_entropy_allows() -> None:
    vocabulary = make_bilm().vocabulary
    assert vocabulary is not None
    # the, the, the, sea, unknown (two words), end (twice): 3/8, 1/8, 2/8, 2/8
    entropy = -sum(p * math.log(p) for p in (3 / 8, 1 / 8, 2 / 8, 2 / 8))
    assert unigram_perplexity([["the", "the", "x"], ["y", "the", "sea"]], vocabulary) == pytest.approx(
        math.exp(entropy)
    )


def test_a_text_without_marks_is_scored_as_relmo_evaluate_scores_the_file(folder: Path) -> None:
    model = make_bilm()
    table = make_table(model, data=folder, controls=Controls(untrained(model)), on_message=lambda _: None)
    direct = model.evaluate(str(folder / SETS["pretrain-valid"]))
    ours = find_row(table, "pretrain-valid").ours
    assert ours["forward"] == pytest.approx(direct.forward_perplexity, rel=1e-6)
    assert ours["backward"] == pytest.approx(direct.backward_perplexity, rel=1e-6)
    assert ours["joint"] == pytest.approx(direct.perplexity, rel=1e-6)
    assert (ours["tokens"], ours["vocabulary"]) == (direct.tokens, 12)
    assert ours["unknown %"] == pytest.approx(100 * direct.unknown / direct.tokens)


def test_every_text_has_its_controls_and_the_unknown_words_are_counted(folder: Path) -> None:
    model = make_bilm()
    said: list[str] = []
    table = make_table(model, data=folder, controls=Controls(untrained(model)), on_message=said.append)
    for name in SETS:
        assert find_row(table, f"{name}, uniform").ours["joint"] == 12
        assert find_row(table, f"{name}, unigram").ours["forward"] < 12
        assert {*find_row(table, f"{name}, untrained network").ours} == {*table.columns}
        assert any(name in line for line in said)
    # of the 21 words of a piece and 2 ends: lobster, 1,000, of, a, see, three hidden, 3.5, m
    assert find_row(table, "WikiText-2 valid").ours["unknown %"] == pytest.approx(100 * 10 / 23)
    assert table.rows[0].published == {"vocabulary": 793_471, "average": 39.7}


def test_small_letters_are_read_where_the_model_was_trained_on_them(folder: Path) -> None:
    model = make_bilm(lowercase=True)
    found = list(read_sentences(folder / SETS["WikiText-2 valid"], model, wikitext=True))
    assert found[0][:2] == ["the", "lobster"]
    assert found[0].count("<UNK>") == 3
    table = make_table(model, data=folder, controls=Controls(untrained(model)), on_message=lambda _: None)
    assert (
        find_row(table, "pretrain-valid").ours["tokens"] == model.evaluate(str(folder / SETS["pretrain-valid"])).tokens
    )


def test_the_untrained_network_reads_the_beginning_only() -> None:
    sentences = [["a"] * 3, ["b"] * 3, ["c"] * 3]
    assert take_words(sentences, 4) == sentences[:2]
    assert take_words(sentences, 100) == sentences


def test_a_model_that_predicts_no_words_is_refused_at_once(folder: Path) -> None:
    model = make_bilm(vocabulary=False)
    with pytest.raises(ModelError, match="no output layer"):
        make_table(model, data=folder, controls=Controls(model), on_message=lambda _: None)


def test_a_text_of_headings_alone_is_an_error(folder: Path) -> None:
    (folder / SETS["WikiText-2 valid"]).write_text(" = A = \n\n")
    model = make_bilm()
    with pytest.raises(CorpusError, match=r"wiki\.valid\.tokens"):
        make_table(model, data=folder, controls=Controls(model), on_message=lambda _: None)


def test_wikitext_2_loses_its_headings_and_marks_and_keeps_all_else(data: Callable[[str], Path]) -> None:
    file = data(SETS["WikiText-2 valid"])
    found = list(read_sentences(file, make_bilm(), wikitext=True))
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip() and not perplexity.HEADING.fullmatch(line)]
    assert len(found) == len(lines) == 2_461 - 620  # of lines with text, those of headings left out
    words = [word for sentence in found for word in sentence]
    assert not {"@-@", "@,@", "@.@", "<unk>", "unk"} & {*words}
    hidden = sum(word == "<UNK>" for word in words)
    assert 0.95 < hidden / text.count("<unk>") < 1  # some are joined with a neighbour
