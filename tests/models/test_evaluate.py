"""Scoring in lanes is one pass from end to end, whatever the number of lanes and however long the memory."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relmo.errors import ModelError
from relmo.models import evaluate
from relmo.models.bilm import BiLM
from relmo.models.evaluate import BiScore, Score, total_nll
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import FeedforwardLM, Network, RecurrentLM
from relmo.networks.ngram import NGramLM
from relmo.nn.recurrence import State
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings
from relmo.text.characters import character_ids
from relmo.text.vocabulary import SentenceVocabulary

CPU = torch.device("cpu")
VOCAB = 7
LANES = (1, 2, 5, 16, 64)


@contextmanager
def warm_up_shortened() -> Iterator[None]:
    """So short that 64 lanes fit a small text, and that a lane's first guess of its state is often wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "WARM_UP", 10)
        patch.setattr(evaluate, "UNROLL", 32)
        yield


@pytest.fixture
def short_warm_up() -> Iterator[None]:
    with warm_up_shortened():
        yield


def make_network(kind: str, **more: object) -> RecurrentLM | FeedforwardLM | NGramLM:
    torch.manual_seed(0)
    if kind.startswith("ngram"):
        order = int(kind.removeprefix("ngram_"))
        return NGramLM.fit(text(500, seed=1), vocab_size=VOCAB, order=order)
    if kind.startswith("feedforward"):
        order = int(kind.removeprefix("feedforward_"))
        chosen = LanguageModelSettings(cell="feedforward", order=order, hidden=8, embedding=4)
        return FeedforwardLM(chosen, vocab_size=VOCAB)
    network = RecurrentLM(LanguageModelSettings(cell=kind, hidden=8, layers=2, **more), vocab_size=VOCAB)  # type: ignore[arg-type]
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.7)
    return network


KINDS = ("lstm", "gru", "elman", "feedforward_2", "feedforward_4", "ngram_1", "ngram_3")


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(VOCAB, size=length).astype(np.uint16)


@torch.no_grad()
def one_at_a_time(network: Network, ids: np.ndarray) -> float:
    """The definition: a loop over the symbols."""
    state, total = network.initial_state(1), 0.0
    for symbol, following in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        log_probs, state = network.step(torch.tensor([symbol]), state)
        total -= log_probs[0, following].item()
    return total


@pytest.mark.slow
@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_lanes_gives_the_one_symbol_at_a_time_score(kind: str) -> None:
    network, ids = make_network(kind), text(64 * 40 + 30)
    expected = one_at_a_time(network, ids)
    for lanes in LANES:
        assert abs(total_nll(network, ids, lanes=lanes, device=CPU) / expected - 1) < 1e-5, lanes


@pytest.mark.parametrize("kind", ["lstm", "ngram_3"])
def test_lanes_agree_with_the_warm_up_as_it_is(kind: str) -> None:
    network, ids = make_network(kind), text(5 * 4 * evaluate.WARM_UP + 123)
    expected = total_nll(network, ids, lanes=1, device=CPU)
    for lanes in (2, 5, 64):
        assert abs(total_nll(network, ids, lanes=lanes, device=CPU) / expected - 1) < 1e-4


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_scores_on_a_gpu_are_those_of_the_cpu(kind: str) -> None:
    network, ids = make_network(kind), text(16 * 40 + 30)
    expected = total_nll(network, ids, lanes=16, device=CPU)
    network.cuda()
    for lanes in (1, 16):
        assert abs(total_nll(network, ids, lanes=lanes, device=torch.device("cuda")) / expected - 1) < 1e-3


class Fake:
    """A network with the state and the score that its subclass says, and that counts the lanes it was asked to run."""

    vocab_size = VOCAB
    rows = 0

    def nll(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        self.rows += len(inputs)
        return self.score(inputs, targets, state)

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        raise NotImplementedError


class Uniform(Fake):
    def __init__(self, width: int):
        self.width = width

    def initial_state(self, batch: int) -> State:
        return (torch.zeros(batch, self.width),)

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.full(targets.shape, math.log(VOCAB)), state


class Weighing(Uniform):
    """Each pair of an input and its target has a weight of its own: no pair can be left out or counted twice unseen."""

    weights = torch.arange(VOCAB * VOCAB, dtype=torch.float64).square().view(VOCAB, VOCAB)

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        return self.weights[inputs, targets], state


class Counting(Fake):
    """Its score depends on how many symbols were read since the very beginning: no warm-up can guess it."""

    def initial_state(self, batch: int) -> State:
        return (torch.zeros(batch, 1),)

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        read = state[0] + torch.arange(targets.shape[1])  # (B, T)
        return read.sqrt(), (state[0] + targets.shape[1],)


class Latching(Fake):
    """Remembers for ever whether a 0 was ever followed by a 0: one bit that hangs on the farthest past."""

    def initial_state(self, batch: int) -> State:
        return (torch.zeros(batch, 1), torch.full((batch, 1), -1))

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        seen, last = state
        ids = torch.cat([last, inputs], dim=1)
        pair = ((ids[:, 1:] == 0) & (ids[:, :-1] == 0)).float()  # (B, T)
        ever = torch.maximum(pair.cummax(dim=1).values, seen)
        return 1 + ever, (ever[:, -1:], inputs[:, -1:])


@given(length=st.integers(1, 700), lanes=st.integers(1, 70), width=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_every_symbol_is_counted_exactly_once(length: int, lanes: int, width: int) -> None:
    ids = text(length, seed=length)
    with warm_up_shortened():
        total = total_nll(Uniform(width), ids, lanes=lanes, device=CPU)
        weighed = total_nll(Weighing(width), ids, lanes=lanes, device=CPU)
    assert abs(total - (length - 1) * math.log(VOCAB)) < 1e-3
    assert weighed == sum((VOCAB * int(a) + int(b)) ** 2 for a, b in pairwise(ids))


@pytest.mark.parametrize("length", [1, 2, 3, 256, 257, 258, 1024, 1025, 2049, 4100, 4101])
@pytest.mark.parametrize("lanes", [1, 3, 64])
def test_every_symbol_is_counted_exactly_once_with_the_warm_up_as_it_is(length: int, lanes: int) -> None:
    ids = text(length)
    weighed = total_nll(Weighing(1), ids, lanes=lanes, device=CPU)
    assert weighed == sum((VOCAB * int(a) + int(b)) ** 2 for a, b in pairwise(ids))


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize("lanes", LANES)
def test_a_network_that_counts_from_the_beginning_comes_out_right(lanes: int) -> None:
    ids = text(64 * 40 + 30)
    expected = np.sqrt(np.arange(len(ids) - 1)).sum()
    assert abs(total_nll(Counting(), ids, lanes=lanes, device=CPU) / expected - 1) < 1e-6


@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("place", [0, 3, 700, 1500, 2588])
def test_one_far_event_that_is_never_forgotten_comes_out_right(lanes: int, place: int) -> None:
    ids = np.ones(64 * 40 + 30, dtype=np.int64)
    ids[place : place + 2] = 0
    after = len(ids) - 1 - (place + 1)  # predictions made from the pair on
    assert total_nll(Latching(), ids, lanes=lanes, device=CPU) == len(ids) - 1 + max(after, 0)


@pytest.mark.usefixtures("short_warm_up")
def test_only_the_lanes_that_began_wrong_run_again() -> None:
    ids = np.ones(16 * 64 + 1, dtype=np.int64)
    right, wrong = Latching(), Latching()
    total_nll(right, ids, lanes=16, device=CPU)
    ids[700:702] = 0  # lane 10 of 64 symbols each: the five after it began without knowing
    total_nll(wrong, ids, lanes=16, device=CPU)
    assert right.rows == 15 + 2 * 16  # the warm-up and two pieces of each lane
    assert right.rows < wrong.rows <= right.rows + 2 * (5 + 4 + 3 + 2 + 1)


class Idle(Counting):
    """Counts from the very beginning, but its score does not depend on it."""

    def score(self, inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        nll, state = super().score(inputs, targets, state)
        return torch.ones_like(nll), state


@pytest.mark.usefixtures("short_warm_up")
def test_lanes_whose_states_differ_without_effect_run_again_for_one_piece_only() -> None:
    network = Idle()
    assert total_nll(network, text(16 * 64 + 1), lanes=16, device=CPU) == 16 * 64
    assert network.rows == 15 + 2 * 16 + 15  # the warm-up, two pieces of each lane, and one more of all but the first


@pytest.mark.slow
@pytest.mark.usefixtures("short_warm_up")
def test_an_lstm_that_never_forgets_comes_out_right() -> None:
    network = make_network("lstm")
    assert isinstance(network, RecurrentLM)
    for (cell,) in network.encoder.recurrent.layers:  # type: ignore[misc]
        with torch.no_grad():
            cell.weight_ih[8:16] = cell.weight_hh[8:16] = 0
            cell.bias_ih[8:16] = 30  # the forget gate stands open
            cell.bias_ih[:8] -= 3  # and the input gate nearly shut, so that c does not run away
    ids = text(64 * 40 + 30)
    expected = one_at_a_time(network, ids)
    unrepaired = one_at_a_time(network, ids[len(ids) // 2 :]) + one_at_a_time(network, ids[: len(ids) // 2 + 1])
    assert abs(unrepaired / expected - 1) > 1e-3, "the far past matters"
    for lanes in LANES:
        assert abs(total_nll(network, ids, lanes=lanes, device=CPU) / expected - 1) < 1e-4


def test_scoring_turns_dropout_off() -> None:
    network, plain = make_network("gru", dropout=0.5, input_dropout=0.5, weight_drop=0.5), make_network("gru")
    network.train()
    ids = text(300)
    assert total_nll(network, ids, lanes=1, device=CPU) == total_nll(plain, ids, lanes=1, device=CPU)


def test_scoring_reads_a_memory_map(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    ids = text(900)
    np.save(path, ids)
    network = make_network("ngram_3")
    mapped = np.load(path, mmap_mode="r")
    assert total_nll(network, mapped, lanes=2, device=CPU) == total_nll(network, ids, lanes=2, device=CPU)


def test_score_derives_its_figures_from_the_total() -> None:
    score = Score(symbols=10, characters=40, unknown=3, nll=20.0)
    assert score.nats == 2.0
    assert math.isclose(score.perplexity, math.e**2)
    assert math.isclose(score.bits_per_character, 20 / math.log(2) / 40)
    assert score.summary()["unknown"] == 3


def test_scores_add_up_to_the_score_of_both_texts() -> None:
    both = Score(10, 40, 3, 20.0) + Score(5, 9, 0, 1.0)
    assert both == Score(15, 49, 3, 21.0)


def test_perplexity_beyond_what_a_float_holds_is_infinite() -> None:
    assert Score(1, 1, 0, 1e6).perplexity == math.inf


BILM_WORDS = ["the", "cat", "sat", "on", "a", "mat", "ran"]
BILM_KINDS = {
    "characters": {"input": "char", "filters": ("1x4", "3x6"), "char_dim": 3, "max_characters": 9},
    "words": {"input": "word"},
    "tied words": {"input": "word", "tied": True},
}


def make_bilm(kind: str = "characters") -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, dropout=0.3, samples=4, **BILM_KINDS[kind])  # type: ignore[arg-type]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *BILM_WORDS])
    model = BiLM(BiLMNetwork(network, vocab_size=len(vocabulary)), BiLMSettings(model=network), vocabulary)
    with torch.no_grad():
        for parameter in model.network.parameters():
            nn.init.normal_(parameter, std=0.5)
    return model


def bilm_text(path: Path, sentences: int) -> list[list[str]]:
    """Writes sentences, some of their words in no vocabulary, with blank lines between some. -> their words"""
    rng = np.random.default_rng(1)
    words = [*BILM_WORDS, "extraordinarily", "Ünbekannt", "x"]
    written = [rng.choice(words, size=rng.integers(1, 12)).tolist() for _ in range(sentences)]
    lines = ["\n" * (i % 7 == 3) + " ".join(sentence) for i, sentence in enumerate(written)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return written


@torch.no_grad()
def word_by_word(model: BiLM, sentences: list[list[str]], direction: int) -> list[list[float]]:
    """The definition, in double precision: one word after the other, both stacks from zeros at the text's beginning,
    each word's vector from its whole row of characters, the whole softmax. -> the nll of the words of each sentence and
    of the mark at its end, in the order of reading"""
    network, vocabulary = model.network.double(), model.vocabulary
    assert vocabulary is not None
    assert network.softmax is not None
    network.lstm.fast = False
    first, last = ("<S>", "</S>") if direction == 0 else ("</S>", "<S>")
    state, found = network.initial_state(1), []
    for sentence in sentences:
        nlls, read = [], sentence if direction == 0 else sentence[::-1]
        for word, following in zip([first, *read], [*read, last], strict=True):
            if model.settings.model.input == "char":
                look = torch.from_numpy(character_ids([word], model.settings.model.max_characters))
            else:
                look = torch.from_numpy(vocabulary.ids([word]))
            x = network.encoder(look).expand(2, 1, 1, -1)  # both directions read it; one of them is looked at
            run = network.lstm(x, state)
            state = run.state
            logits = network.softmax.weight @ run.layers[-1][direction, 0, 0] + network.softmax.bias
            nlls.append(-float(torch.log_softmax(logits, 0)[vocabulary.ids([following])[0]]))
        found.append(nlls)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("short_warm_up")
@pytest.mark.parametrize("kind", BILM_KINDS)
def test_both_directions_of_a_bilm_are_scored_as_a_loop_over_the_words_scores_them(kind: str, tmp_path: Path) -> None:
    sentences = bilm_text(tmp_path / "text.txt", 120)
    expected = [word_by_word(make_bilm(kind), sentences, direction) for direction in range(2)]
    tokens = sum(len(sentence) + 1 for sentence in sentences)
    for lanes in (1, 3, 64):
        score = make_bilm(kind).evaluate(str(tmp_path / "text.txt"), lanes=lanes)
        assert score.tokens == tokens
        assert score.unknown == sum(word not in BILM_WORDS for sentence in sentences for word in sentence)
        near = 1e-6 if lanes == 1 else 2e-4  # lanes may begin in a state that is a little off
        assert abs(score.forward_nll / sum(map(sum, expected[0])) - 1) < near, lanes
        assert abs(score.backward_nll / sum(map(sum, expected[1])) - 1) < near, lanes
    assert abs(score.forward_nll / score.backward_nll - 1) > 1e-3, "the directions differ"


def test_a_model_without_an_output_layer_says_how_to_get_one(tmp_path: Path) -> None:
    bilm_text(tmp_path / "text.txt", 3)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4",), char_dim=3)
    model = BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network))
    with pytest.raises(ModelError, match=r"no output layer.*relmo train bilm TEXT --init MODEL"):
        model.evaluate(str(tmp_path / "text.txt"))


def test_bilm_scores_derive_their_figures_from_the_totals() -> None:
    score = BiScore(tokens=10, unknown=3, forward_nll=20.0, backward_nll=30.0)
    assert math.isclose(score.forward_perplexity, math.e**2)
    assert math.isclose(score.backward_perplexity, math.e**3)
    assert math.isclose(score.perplexity, math.e**2.5)
    assert math.isclose(score.average_perplexity, (math.e**2 + math.e**3) / 2)
    assert score + BiScore(5, 1, 1.0, 2.0) == BiScore(15, 4, 21.0, 32.0)
    assert BiScore(1, 0, 1e6, 1.0).summary()["forward_perplexity"] == math.inf
