"""Adaptation against explicit loops: score a segment, take a step of `torch.optim.SGD`, go on."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relmo import registry
from relmo.errors import SettingError
from relmo.models import adapt, surprisal
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import SequenceModel
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import NeuralLM
from relmo.text.characters import character_ids
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model

SOFTMAXES: list[dict[str, Any]] = [{}, {"tied": True}, {"softmax": "adaptive", "cutoffs": (4,)}]
SOFTMAXES += [{"softmax": "sampled", "samples": 3}, {"layers": 2, "dropout": 0.5, "cell": "gru"}]
SOFTMAXES += [{"cell": "feedforward", "order": 3}]
SHORT = TEXT[:80]
LINES = ["the cat sat", "", "a cat (a mat)", "on the mat.", " ", "the mat sat", "a cat"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(SHORT)
    return tmp_path / "text.txt"


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    (tmp_path / "sentences.txt").write_text(SENTENCES)
    return tmp_path / "sentences.txt"


def scores_of(model: SequenceModel, file: Path, **options: Any) -> tuple[Any, Any]:
    """Return the plain and the adapted score of a file."""
    score = model.evaluate(file, adaptation=adapt.Adaptation(model, **options))
    return dataclasses.replace(score, adapted=None), score.adapted


class Descent:
    """A copy of a network and SGD, with decay to the original weights, or with gradients of a limited norm."""

    def __init__(self, model: SequenceModel, rate: float, decay: float = 0.0, clip: float = math.inf):
        self.network = copy.deepcopy(model.network)
        if isinstance(self.network, BiLMNetwork):  # fast recurrences have no gradient between their calls
            self.network.lstm.fast = False
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=rate)
        self.originals, self.decay = [p.detach().clone() for p in self.network.parameters()], decay
        self.clip = clip
        self.norms: list[float] = []

    def step(self, losses: list[Tensor]) -> None:
        before = [parameter.detach().clone() for parameter in self.network.parameters()]
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        self.norms.append(math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients)))
        if self.norms[-1] > self.clip:
            for gradient in gradients:
                gradient *= self.clip / self.norms[-1]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, old, original in zip(self.network.parameters(), before, self.originals, strict=True):
                parameter.add_(self.decay * (original - old))

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, original in zip(self.network.parameters(), self.originals, strict=True):
                parameter.copy_(original)


def ids_of(model: LanguageModel, text: str) -> list[int]:
    return model.vocabulary.ids(["</s>", *text, "</s>"]).tolist()


def read_symbol(network: NeuralLM, before: int, after: int, state: Any) -> tuple[Tensor, Tensor, Any]:
    """Return the loss of a symbol after another one, the distribution, and the state."""
    log_p, state = network.step(torch.tensor([before]), state)
    return -log_p[0, after], log_p[0], state


def detach(state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach() for tensor in state)


def dynamic_nll(model: LanguageModel, text: str, rate: float, segment: int, decay: float = 0.0) -> float:
    descent, ids, total = Descent(model, rate, decay), ids_of(model, text), 0.0
    state = descent.network.initial_state(1)
    for start in range(0, len(ids) - 1, segment):
        losses = []
        for i in range(start, min(start + segment, len(ids) - 1)):
            loss, _, state = read_symbol(descent.network, ids[i], ids[i + 1], state)
            losses.append(loss)
        total += sum(loss.item() for loss in losses)
        descent.step(losses)
        state = detach(state)
    return total


@pytest.mark.parametrize("options", SOFTMAXES, ids=str)
def test_dynamic_evaluation_is_a_loop_of_scores_and_steps(options: dict[str, Any], text: Path) -> None:
    model = language_model(**options)
    weights = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    plain, adapted = scores_of(model, text, adapt=0.2, segment=7, adapt_decay=0.1)
    assert adapted.nll == pytest.approx(dynamic_nll(model, SHORT, 0.2, 7, 0.1), rel=1e-6)
    assert adapted.symbols == plain.symbols == len(SHORT) + 1
    assert plain == model.evaluate(text)
    assert abs(adapted.nll - plain.nll) > 0.1
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert all(parameter.grad is None for parameter in model.network.parameters())


@pytest.mark.parametrize("unit", ["char", "word"])
def test_default_segments(unit: str, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model()
    monkeypatch.setattr(LanguageModel, "unit", unit)
    _, adapted = scores_of(model, text, adapt=0.2)
    assert adapted.nll == pytest.approx(dynamic_nll(model, SHORT, 0.2, {"char": 20, "word": 5}[unit]), rel=1e-6)


def test_rates_follow_the_statistics_of_another_text(text: Path, tmp_path: Path) -> None:
    model, other = language_model(), TEXT[40:95]
    (tmp_path / "other.txt").write_text(other)
    options = {"segment": 60, "adapt_statistics": str(tmp_path / "other.txt"), "adapt_decay": 0.3}
    _, adapted = scores_of(model, text, adapt=0.001, **options)
    # one segment of statistics: S is the absolute gradient
    descent, ids = Descent(model, 0.0), ids_of(model, other)
    losses, state = [], descent.network.initial_state(1)
    for i in range(len(ids) - 1):
        loss, _, state = read_symbol(descent.network, ids[i], ids[i + 1], state)
        losses.append(loss)
    torch.stack(losses).mean().backward()
    rms = [parameter.grad.abs() for parameter in descent.network.parameters()]
    mean = sum(tensor.mean() for tensor in rms) / len(rms)
    # two segments of the text: the second is scored after one update, in which there is nothing to decay
    ids, total = ids_of(model, SHORT), 0.0
    network, state = copy.deepcopy(model.network), model.network.initial_state(1)
    for segment in (range(60), range(60, len(ids) - 1)):
        losses = []
        for i in segment:
            loss, _, state = read_symbol(network, ids[i], ids[i + 1], state)
            losses.append(loss)
        total += sum(loss.item() for loss in losses)
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(network.parameters()))
        state = detach(state)
        with torch.no_grad():
            for parameter, gradient, scale in zip(network.parameters(), gradients, rms, strict=True):
                parameter.sub_(0.001 * gradient / (scale + 1e-3))
    assert adapted.nll == pytest.approx(total, rel=1e-6)
    weights = adapt.Adaptation(model, adapt=0.5, **options)
    for parameter in weights.parameters:
        parameter.data += 1.0
        parameter.grad = torch.ones_like(parameter)
    weights.step()
    for parameter, original, scale in zip(weights.parameters, model.network.parameters(), rms, strict=True):
        expected = original + 1 - (0.3 * scale / mean).clamp(max=1) - 0.5 / (scale + 1e-3)
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-5)


def test_statistics_are_means_over_lanes_and_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapt, "STATISTICS_LANES", 2)
    model, ids = language_model("gru"), ids_of(language_model("gru"), SHORT[:20])
    (tmp_path / "other.txt").write_text(SHORT[:20])
    weights = adapt.Adaptation(model, adapt=0.1, segment=5, adapt_statistics=str(tmp_path / "other.txt"))
    squares, states = [0.0] * len(list(model.network.parameters())), [model.network.initial_state(1)] * 2
    for start in (0, 5):  # two lanes of ten predictions in two segments; the last prediction is left over
        losses = []
        for lane in range(2):
            for i in range(lane * 10 + start, lane * 10 + start + 5):
                loss, _, states[lane] = read_symbol(model.network, ids[i], ids[i + 1], states[lane])
                losses.append(loss)
            states[lane] = detach(states[lane])
        gradients = torch.autograd.grad(torch.stack(losses).mean(), list(model.network.parameters()))
        squares = [square + gradient**2 / 2 for square, gradient in zip(squares, gradients, strict=True)]
    assert weights.scales is not None
    for value, square in zip(weights.scales, squares, strict=True):
        torch.testing.assert_close(value, 1 / (square.sqrt() + 1e-3), rtol=1e-4, atol=1e-7)


def cached_nll(features: Tensor, log_p: Tensor, targets: list[int], size: int, theta: float, share: float) -> float:
    """The definition, in a double loop over positions."""
    total = 0.0
    for t, target in enumerate(targets):
        weights = {i: math.exp(theta * float(features[t] @ features[i])) for i in range(max(0, t - size), t)}
        p = math.exp(log_p[t, target])
        if weights:
            hits = sum(weight for i, weight in weights.items() if targets[i] == target)
            p = (1 - share) * p + share * hits / sum(weights.values())
        total -= math.log(p)
    return total


@pytest.mark.parametrize("cell", ["lstm", "feedforward"])
@pytest.mark.parametrize("size", [1, 9, 1000])
def test_cache_is_a_double_loop_over_positions(
    cell: str, size: int, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapt, "UNROLL", 13)
    model = language_model(cell, tied=True) if cell == "lstm" else language_model(cell, order=4)
    ids = torch.tensor(ids_of(model, SHORT))
    with torch.no_grad():
        features, _ = model.network.features(ids[None, :-1], model.network.initial_state(1))
        log_p = model.network.log_probs(features[0]).double()
    expected = cached_nll(features[0].double(), log_p, ids[1:].tolist(), size, 0.7, 0.2)
    options = {"cache": size, "cache_theta": 0.7, "cache_lambda": 0.2}
    _, adapted = scores_of(model, text, **options)
    assert adapted.nll == pytest.approx(expected, rel=1e-6)
    _, frozen = scores_of(model, text, adapt=1e-12, segment=3, **options)
    assert frozen.nll == pytest.approx(expected, rel=1e-6)


def test_without_rate_or_weight_of_the_cache_the_score_is_the_plain_one(text: Path, sentences: Path) -> None:
    model = language_model("gru", tied=True)
    for options in (
        {"adapt": 0.0},
        {"cache": 20, "cache_lambda": 0.0},
        {"adapt": 0.0, "cache": 5, "cache_lambda": 0.0},
    ):
        plain, adapted = scores_of(model, text, **options)
        assert adapted.nll == pytest.approx(plain.nll, rel=1e-6)
        plain, adapted = scores_of(bilm(), sentences, **options)
        assert adapted.forward_nll == pytest.approx(plain.forward_nll, rel=1e-6)
        assert adapted.backward_nll == pytest.approx(plain.backward_nll, rel=1e-6)
    table = model.surprisal(SHORT, adapt=0.0, ends=True)
    np.testing.assert_allclose(table.to_dict()["entropy"], model.surprisal(SHORT, ends=True).to_dict()["entropy"], 1e-4)
    assert table.total_bits == pytest.approx(model.surprisal(SHORT).total_bits, rel=1e-6)


@pytest.mark.parametrize("cell", registry.cell_names())
def test_every_cell_adapts(cell: str, text: Path, sentences: Path) -> None:
    model = language_model(cell, scale=1.0, hidden=8, embedding=8)
    _, adapted = scores_of(model, text, adapt=0.1)
    assert adapted.nll == pytest.approx(dynamic_nll(model, SHORT, 0.1, 20), rel=2e-6)
    both = bilm(cell=cell, hidden=8)
    with torch.no_grad():
        for parameter in both.network.parameters():
            parameter.div_(2.0)
    plain, adapted = scores_of(both, sentences, adapt=0.01)
    assert adapted.forward_nll < plain.forward_nll
    assert adapted.backward_nll < plain.backward_nll
    assert model.surprisal(SHORT, adapt=0.1).total_bits != pytest.approx(model.surprisal(SHORT).total_bits, rel=1e-4)


def read_word(
    model: BiLM, network: BiLMNetwork, before: str, after: str, state: Any, d: int
) -> tuple[Tensor, Tensor, Any]:
    """Return the loss of a word after another one in a direction, the distribution, and the state."""
    vocabulary = model.get_output_vocabulary()
    ids = character_ids([before], model.settings.model.max_characters)
    ids = ids if model.settings.model.input == "char" else vocabulary.ids([before])
    run = network.lstm(network.encoder(torch.from_numpy(ids)).expand(2, 1, 1, -1), state)
    assert network.softmax is not None
    log_p = network.softmax.log_probs(run.layers[-1][d, 0])[0]
    return -log_p[vocabulary.ids([after])[0]], log_p, run.state


def pairs_of(words: list[str], d: int) -> list[tuple[str, str]]:
    """Return the words of a sentence with those before them in a direction, including the boundaries."""
    begin, end = ("</S>", "<S>") if d else ("<S>", "</S>")
    words = words[::-1] if d else words
    return list(zip([begin, *words], [*words, end], strict=True))


@pytest.mark.parametrize("unit", ["char", "word"])
def test_both_directions_of_a_bilm_adapt_on_their_own(unit: str, sentences: Path) -> None:
    model, totals = bilm(input=unit) if unit == "char" else bilm(input=unit, filters=(), char_dim=16), []
    for d in range(2):
        pairs = [pair for line in SENTENCES.splitlines() for pair in pairs_of(line.split(), d)]
        descent, total = Descent(model, 0.05), 0.0
        state = descent.network.initial_state(1)
        for start in range(0, len(pairs), 4):
            losses = []
            for before, after in pairs[start : start + 4]:
                loss, _, state = read_word(model, descent.network, before, after, state, d)
                losses.append(loss)
            total += sum(loss.item() for loss in losses)
            descent.step(losses)
            state = detach(state)
        totals.append(total)
    plain, adapted = scores_of(model, sentences, adapt=0.05, segment=4)
    assert [adapted.forward_nll, adapted.backward_nll] == pytest.approx(totals, rel=1e-5)
    assert plain.forward_nll != pytest.approx(adapted.forward_nll, rel=1e-3)
    _, both = scores_of(model, sentences, adapt=0.05, segment=4, cache=50)
    assert both.forward_nll != pytest.approx(adapted.forward_nll, rel=1e-3)
    assert model.evaluate(sentences) == plain


Rows = list[tuple[float, float]]


def to_bits(loss: Tensor, log_p: Tensor) -> tuple[float, float]:
    """Return surprisal and entropy."""
    log_p = log_p.detach().double()
    return loss.item() / math.log(2), -float((log_p.exp() * log_p).sum()) / math.log(2)


def adapted_lines(descent: Descent, model: LanguageModel, lines: list[str], reset: str) -> list[list[Rows]]:
    """Return the scores of the symbols of the words of each line; those of its end are a word."""
    last, result = "</s>", []
    state = descent.network.initial_state(1)
    for n, line in enumerate(lines):
        if reset == "text" and n and not lines[n - 1].strip():
            descent.restore()
        end = ["\n", "</s>"] if n == len(lines) - 1 else ["\n"]
        pieces = [[*piece] for piece in line.replace(" ", " |").split("|")] if line.strip() else [[*line]]
        scores, losses = [], []
        for piece in [*pieces, end]:
            row, word_losses = [], []
            for symbol in piece:
                before, after = model.vocabulary.ids([last, symbol]).tolist()
                loss, log_p, state = read_symbol(descent.network, before, after, state)
                row.append(to_bits(loss, log_p))
                word_losses.append(loss)
                last = symbol
            if reset == "sentence" and word_losses:
                descent.step(word_losses)
                state = detach(state)
            scores.append(row)
            losses += word_losses
        if reset == "sentence":
            descent.restore()
        else:
            descent.step(losses)
        state = detach(state)
        result.append(scores)
    return result


@pytest.mark.parametrize("reset", ["never", "text", "sentence"])
def test_lines_are_scored_before_the_weights_see_them(reset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surprisal, "BLOCK", 30)
    monkeypatch.setattr(adapt, "MAX_GRADIENT_NORM", 1.2)
    model, descent = language_model(), Descent(language_model(), 0.2, clip=1.2)
    table = model.surprisal(LINES, adapt=0.2, reset=reset, rows="whitespace")  # type: ignore[arg-type]
    expected = adapted_lines(descent, model, LINES, reset)
    assert min(descent.norms) < 1.2 < max(descent.norms)
    words = [row for scores, line in zip(expected, LINES, strict=True) for row in scores[: len(line.split())]]
    assert [row.surprisal for row in table] == pytest.approx([sum(bits for bits, _ in row) for row in words], rel=1e-5)
    assert [row.entropy for row in table] == pytest.approx([row[0][1] for row in words], rel=1e-5)
    total = sum(bits for scores in expected for row in scores for bits, _ in row)
    assert table.total_bits == pytest.approx(total, rel=1e-6)
    never = model.surprisal(LINES, adapt=0.2).total_bits
    assert (table.total_bits == pytest.approx(never, rel=1e-9)) == (reset == "never")


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("reset", ["never", "text", "sentence"])
@pytest.mark.parametrize("context", ["text", "sentence"])
def test_sentences_of_a_bilm_are_scored_before_the_weights_see_them(direction: str, reset: str, context: str) -> None:
    model, lines, d = bilm(), ["the cat sat", "a mat", "", "the large cat", "the mat"], int(direction == "backward")
    descent, expected = Descent(model, 0.05, clip=0.25), []
    state = descent.network.initial_state(1)
    for n, line in enumerate(lines):
        if reset == "text" and n and not lines[n - 1]:
            descent.restore()
        if not line:
            continue
        if context == "sentence":
            state = descent.network.initial_state(1)
        losses, scores = [], []
        for before, after in pairs_of(line.split(), d):
            loss, log_p, state = read_word(model, descent.network, before, after, state, d)
            scores.append(to_bits(loss, log_p))
            losses.append(loss)
            if reset == "sentence":
                descent.step([loss])
                state = detach(state)
        if reset == "sentence":
            descent.restore()
        else:
            descent.step(losses)
        state = detach(state)
        expected += [scores[-1], *scores[-2::-1]] if d else scores
    table = model.surprisal(lines, adapt=0.05, reset=reset, direction=direction, context=context, ends=True)  # type: ignore[arg-type]
    assert [row.surprisal for row in table] == pytest.approx([bits for bits, _ in expected], rel=1e-5)
    assert [row.entropy for row in table] == pytest.approx([entropy for _, entropy in expected], rel=1e-5)


def test_a_line_of_several_windows_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, table = language_model("feedforward", order=3), []
    for unroll in (256, 3):
        monkeypatch.setattr(surprisal, "UNROLL", unroll)
        table.append(model.surprisal(["the cat sat", "a cat sat"], adapt=0.2).to_dict()["surprisal"])
    assert table[0] == pytest.approx(table[1], rel=1e-5)


def test_ids_of_a_table_separate_texts() -> None:
    model, lines = language_model(), [("1", "the cat"), ("1", "a cat"), ("2", "the mat"), ("2", "a mat")]
    sources = [surprisal.SourceText(line, None, 1, True, name) for name, line in lines]  # of one line of a file
    options = surprisal.SurprisalOptions(adapt=0.2, reset="text", context="sentence")
    rows = list(model.surprisal_rows(sources, options))
    halves = [list(model.surprisal_rows(part, options)) for part in (sources[:2], sources[2:])]
    assert [row.surprisal for row in rows] == pytest.approx(
        [row.surprisal for half in halves for row in half], rel=1e-6
    )


def test_models_and_options_that_cannot_adapt(text: Path) -> None:
    with pytest.raises(SettingError, match="neural network; a ngram"):
        scores_of(ngram_model(), text, adapt=0.1)
    with pytest.raises(SettingError, match="neural network"):
        ngram_model().surprisal(SHORT, adapt=0.1)
    for options in ({"segment": 3, "cache": 3}, {"cache_theta": 1.0, "adapt": 0.1}, {"adapt": -0.1}, {"cache": -1}):
        with pytest.raises(SettingError, match=next(iter(options))):
            scores_of(language_model(), text, **options)
    with pytest.raises(SettingError, match="reset has no effect without adapt"):
        language_model().surprisal(SHORT, reset="text")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["lm", "bilm"])
def test_a_gpu_gives_the_same_scores_and_is_waited_for_at_the_end_only(
    kind: str, text: Path, sentences: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model: Any = language_model(scale=1.0) if kind == "lm" else bilm()
    file, waits = text if kind == "lm" else sentences, []
    _, expected = scores_of(model, file, adapt=0.05, segment=3, cache=9)
    on_gpu = copy.copy(model)
    on_gpu.network, on_gpu.device = copy.deepcopy(model.network).cuda(), torch.device("cuda")
    for segment in (3, 10, 3):
        adaptation = adapt.Adaptation(on_gpu, adapt=0.05, segment=segment, cache=9)
        readings, _, make_score = on_gpu.open_file(file, file.parent)
        recwarn.clear()
        torch.cuda.set_sync_debug_mode("warn")
        score = make_score(*adaptation.total_nll(readings))
        torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(warning.message) for warning in recwarn))
    assert score.perplexity == pytest.approx(expected.perplexity, rel=1e-3)
    assert waits[1] == waits[2] <= 2 * len(readings)
