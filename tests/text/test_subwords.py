"""Subwords: cut as by hand and as sentencepiece cuts, and put together again."""

from pathlib import Path

import pytest

from relmo.errors import SettingError, VocabularyError
from relmo.text.vocabulary import MAX_WORD_LENGTH, Pieces, Subwords, learn_subwords

TEXT = Path(__file__).parents[2] / "src/relmo/data/alice.txt"


def test_bpe_joins_what_comes_first_in_the_list() -> None:
    subwords = Subwords(Pieces(["in", "▁s", "ing", "▁sing", "▁", "s", "i", "n", "g"]), "bpe")
    assert subwords.split("sing sings  inn") == ["▁sing", "▁sing", "s", "▁", "in", "n"]
    assert subwords.split("sxß") == ["▁s", "x", "ß"]
    assert subwords.split(" ") == []


def test_unigram_takes_the_most_probable_cut() -> None:
    subwords = Subwords(Pieces(["▁ab -2.0", "▁ -1.0", "a -1.5", "b -1.5", "c -1", "bc -1.2"]), "unigram")
    assert subwords.split("ab") == ["▁ab"]  # -2 beats -1 - 1.5 - 1.5
    assert subwords.split("abc") == ["▁ab", "c"]  # -3 beats -1 - 1.5 - 1.2
    assert subwords.split("ax") == ["▁", "a", "x"]


@pytest.mark.parametrize("piece", ["▁a", "▁a b", "▁a nan", " -1"])
def test_a_piece_without_a_number_is_one_clear_line(piece: str) -> None:
    with pytest.raises(VocabularyError, match="not a piece followed by"):
        Subwords(Pieces([piece]), "unigram")


def test_a_word_of_any_length_is_cut_in_no_time() -> None:
    subwords = Subwords(Pieces(["aa", "▁"]), "bpe")
    word = "a" * (50 * MAX_WORD_LENGTH)
    assert Subwords.join(subwords.split(word)) == word


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_learnt_pieces_cut_as_sentencepiece_does_and_give_the_text_back(kind: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs relmo[translate]")
    lines = [" ".join(line.split()) for line in TEXT.read_text().splitlines()[:1500] if line.strip()]
    pieces = learn_subwords(lines, kind=kind, size=300)  # type: ignore[arg-type]
    pieces.save(tmp_path / "pieces-vocabulary.txt")
    subwords = Subwords(Pieces.load(tmp_path / "pieces-vocabulary.txt"), kind)  # type: ignore[arg-type]
    assert all(subwords.join(subwords.split(line)) == line for line in lines)
    model = tmp_path / "model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(model), model_type=kind, vocab_size=300, minloglevel=2,
        hard_vocab_limit=False, character_coverage=1.0, normalization_rule_name="identity", num_threads=1,
        unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    assert [subwords.split(line) for line in lines] == library.encode(lines, out_type=str)


def test_without_sentencepiece_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(SettingError, match=r"package sentencepiece; try: pip install 'relmo\[translate\]'"):
        learn_subwords(["a b"], kind="bpe", size=10)
