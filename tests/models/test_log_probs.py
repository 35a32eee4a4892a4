"""Log-probabilities of sentences: those that `relmo evaluate` scores, whatever stands beside them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relmo.errors import ModelError, SettingError
from relmo.models import bilm
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import SentenceVocabulary

WORDS = ["the", "cat", "sat", "on", "a", "mat", "ran"]
KINDS = {
    "characters": {"input": "char", "filters": ("1x4", "3x6"), "char_dim": 3, "max_characters": 9},
    "words": {"input": "word"},
    "tied words, no skip connections": {"input": "word", "tied": True, "skip_connections": False, "layers": 3},
}
SENTENCES = ["the cat sat on a mat", "the cat ran", "the dog sat on a mat", "ran", "the cat ran", "unknown words only"]


def make_bilm(kind: str = "characters") -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, dropout=0.3, samples=4, **KINDS[kind])  # type: ignore[arg-type]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *WORDS])
    model = BiLM(BiLMNetwork(network, vocab_size=len(vocabulary)), BiLMSettings(model=network), vocabulary)
    with torch.no_grad():
        for parameter in model.network.parameters():
            nn.init.normal_(parameter, std=0.5)
    return model


def evaluated(model: BiLM, sentence: str, folder: Path) -> np.ndarray:
    """What `surprisal` gives each word of this one sentence, in the order of the text; (2, words + 1). The sentence is
    also written to a file."""
    (folder / "text.txt").write_text(sentence + "\n", encoding="utf-8")
    both = [model.surprisal(sentence, direction=direction, ends=True) for direction in ("forward", "backward")]
    return -math.log(2) * np.array([[row.surprisal for row in rows] for rows in both])


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_surprisal_word_by_word(kind: str, tmp_path: Path) -> None:
    model = make_bilm(kind)
    for sentence, found in zip(SENTENCES, model.log_probs(SENTENCES), strict=True):
        expected = evaluated(model, sentence, tmp_path)
        assert found.shape == (2, len(sentence.split()) + 1)
        assert found.dtype == np.float32
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
        score = model.evaluate(str(tmp_path / "text.txt"))
        assert -found.sum(axis=1) == pytest.approx([score.forward_nll, score.backward_nll], rel=1e-5)


def test_one_direction_is_the_row_of_both() -> None:
    model = make_bilm()
    both = model.log_probs(SENTENCES)
    for row, direction in enumerate(("forward", "backward")):
        found = model.log_probs(SENTENCES, direction=direction)  # type: ignore[arg-type]
        assert [each.tolist() for each in found] == [each[row].tolist() for each in both]


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_the_sentences_beside_it_change_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_bilm()
    expected = [model.log_probs([sentence])[0] for sentence in SENTENCES]
    monkeypatch.setattr(bilm, "SCORE_BATCH", at_once)
    for found, alone in zip(model.log_probs(SENTENCES), expected, strict=True):
        assert found == pytest.approx(alone, abs=1e-5)


def test_a_sentence_without_words_has_an_end_and_a_beginning() -> None:
    empty, tokens = make_bilm().log_probs([[], ["cat"]])
    assert empty.shape == (2, 1)
    assert tokens.shape == (2, 2)
    assert make_bilm().log_probs([]) == []


def test_probabilities_of_all_words_after_a_context_sum_to_one() -> None:
    model = make_bilm()
    assert model.vocabulary is not None
    after = [model.log_probs([["the", "cat", word]], direction="forward")[0][2] for word in [*WORDS, "?"]]
    end = model.log_probs([["the", "cat"]], direction="forward")[0][2]
    beginning = model.log_probs([["the", "cat", "<S>"]], direction="forward")[0][2]
    assert np.exp([*after, end, beginning]).sum() == pytest.approx(1, abs=1e-5)


def test_words_outside_the_vocabulary_share_a_probability() -> None:
    dog, cow, cat = (
        model.log_probs([["the", word]], direction="forward")[0][1]
        for model in [make_bilm()]
        for word in ("dog", "cow", "cat")
    )
    assert dog == cow != cat


def test_what_sentences_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_bilm()
    assert model.network.softmax is not None
    asked: list[int] = []
    nll = model.network.softmax.nll

    def counted(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        asked.append(len(x))
        return nll(x, targets)

    monkeypatch.setattr(model.network.softmax, "nll", counted)
    model.log_probs(["the cat sat", "the cat ran"])
    assert asked == [6, 8], "forwards 'the' and 'cat' are shared; backwards all words come after the one that differs"


def test_training_a_step_is_noticed() -> None:
    model = make_bilm()
    before = model.log_probs(["the cat"])[0]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    assert np.abs(model.log_probs(["the cat"])[0] - before).max() > 1e-3


@pytest.mark.parametrize(
    ("sentences", "direction", "message"),
    [("the cat", "both", "put a single one into a list"), (["the cat"], "up", "'both', 'forward' or 'backward'")],
)
def test_a_mistake_in_the_arguments_is_one_line(sentences: Sequence[str], direction: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_bilm().log_probs(sentences, direction=direction)  # type: ignore[arg-type]


def test_a_model_without_an_output_layer_says_how_to_get_one() -> None:
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4",), char_dim=3)
    model = BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network))
    with pytest.raises(ModelError, match=r"no output layer.*relmo train bilm TEXT --init MODEL"):
        model.log_probs(["the cat"])
