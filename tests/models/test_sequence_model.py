"""A model of a third kind, defined here, is traced, ablated, differentiated, scored and explored like relmo's own."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import Unit, ablate_units
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import iter_trace, trace
from relmo.analysis.memory.connectivity import connectivity
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.memory.truncation import truncation
from relmo.analysis.syntax.agreement import agreement, sweep
from relmo.analysis.units.cells import find_cells
from relmo.explorer.session import Session
from relmo.explorer.work import Worker
from relmo.models.sequence_model import Reading, SequenceModel
from relmo.models.surprisal import SurprisalTable, read_line, score_windows
from relmo.nn.softmax import FullSoftmax
from relmo.settings.options import SurprisalOptions
from relmo.text.minimal_pairs import MinimalPair
from relmo.text.vocabulary import Vocabulary
from support.small_models import TEXT

HIDDEN = 6


class SpellingNetwork(nn.Module):
    """torch's GRU over the bits of the code point of each character."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.gru = nn.GRU(8, HIDDEN, batch_first=True)
        self.softmax = FullSoftmax(HIDDEN, vocab_size)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.gru(x, state)


class SpellingModel(SequenceModel):
    """Language model of characters without an embedding."""

    kind = "spelling"

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.device = torch.device("cpu")
        self.vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
        self.settings = SimpleNamespace(text=SimpleNamespace(unit="char", lowercase=False, tokenizer="words"))
        self.network = SpellingNetwork(len(self.vocabulary))
        for parameter in self.network.parameters():
            parameter.data.mul_(3.0)

    def with_initial_weights(self) -> "SpellingModel":
        return SpellingModel()

    def tokens(self, text: str) -> list[str]:
        return list(text)

    def target_symbols(self, text: Any, *, is_sentence: bool) -> list[str]:
        return [*text, *("\n" if is_sentence else " ")]

    def bits(self, ids: np.ndarray) -> Tensor:
        """Return the inputs (..., 8) of ids; the end of a text is 0."""
        symbols = np.array([0, 0, *map(ord, self.vocabulary.symbols[2:])])
        return torch.from_numpy(((symbols[ids][..., None] >> np.arange(8)) & 1).astype(np.float32))

    def recurrent_inputs(self, texts: Any, *, boundary: bool = True) -> Tensor:
        ids = np.full((len(texts), max(map(len, texts)) + boundary), self.vocabulary.end)
        for row, text in zip(ids, texts, strict=True):
            row[boundary : boundary + len(text)] = self.vocabulary.ids(text)
        return self.bits(ids).transpose(0, 1).unsqueeze(0)

    def make_reading(self, text: Any, direction: str = "forward") -> Reading:
        return SpellingReading(self, text)

    def read_line(self, source: Any, options: SurprisalOptions, *, last: bool) -> Any:
        return read_line(source, self.settings.text, options, ["\n"] if source.ended else [])

    def score_lines(self, rows: Any, options: SurprisalOptions, carry: Any) -> Any:
        (row,) = rows
        state, last = carry or (None, self.vocabulary.end)
        targets = self.vocabulary.ids([symbol for line in row for symbol in (*line.symbols, *line.ends)])
        x = self.bits(np.array([[last, *targets[:-1]]]))
        scores, state = score_windows(
            lambda window, state: self.network(x[:, window], state),
            self.network.softmax.log_probs,
            torch.from_numpy(targets.astype(np.int64))[None],
            state,
            len(self.vocabulary),
        )
        return scores, (state, int(targets[-1]))


class SpellingReading(Reading):
    def __init__(self, model: SpellingModel, text: Any):
        self.model: Any = model
        ends = [model.vocabulary.end]
        self.ids = np.concatenate([ends, *([*model.vocabulary.ids(t), *ends] for t in model.split_texts(text))])
        self.num_steps = len(self.ids) - 1

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        return [self.model.vocabulary.symbols[i] for i in self.ids[steps]]

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.model.bits(self.ids[steps]), torch.from_numpy(self.ids[steps + 1].astype(np.int64))

    def compute_nll(self, steps: np.ndarray, selection: np.ndarray, state: Any) -> tuple[Tensor, Any]:
        x, targets = self.get_inputs(steps)
        y, state = self.model.network(x, state)
        nll = self.model.softmax.nll(y[:, selection].flatten(0, 1), targets[:, selection].flatten())
        return nll.view(len(x), -1), state


@pytest.fixture(scope="module")
def model() -> SpellingModel:
    return SpellingModel()


def expected_outputs(model: SpellingModel, text: str) -> Tensor:
    """Outputs (T + 1, H) of the GRU: after the boundary and after every character."""
    with torch.no_grad():
        return model.network(model.recurrent_inputs([text])[0].transpose(0, 1), None)[0][0]


def expected_losses(model: SpellingModel, text: str) -> np.ndarray:
    with torch.no_grad():
        targets = torch.from_numpy(model.encode(text).astype(np.int64))
        return model.softmax.nll(expected_outputs(model, text)[:-1], targets).numpy()


def test_trace_is_that_of_the_network(model: SpellingModel) -> None:
    traced = trace(model, TEXT)
    np.testing.assert_allclose(traced.states["h"][0], expected_outputs(model, TEXT)[1:], atol=1e-5)
    assert "".join(traced.symbols) == TEXT
    pieces = [piece.states["h"] for piece in iter_trace(model, TEXT, window=16)]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), traced.states["h"], atol=1e-5)
    several = trace(model, ["the cat", "mat"])
    np.testing.assert_allclose(several.states["h"][0, 7:], expected_outputs(model, "mat")[1:], atol=1e-5)


def test_ablation_changes_the_losses_of_the_network(model: SpellingModel) -> None:
    document = read(model, TEXT)
    units = [Unit("h", 0, u) for u in range(3)]
    ablation = ablate_units(model, document, {}, units)
    np.testing.assert_allclose(ablation.base[0], expected_losses(model, TEXT).mean() / np.log(2), rtol=1e-5)
    with intervene(model, 0, 2):
        changed = expected_losses(model, TEXT).mean() / np.log(2)
    np.testing.assert_allclose(ablation.delta(units[2], "all"), changed - ablation.base[0], rtol=1e-4)
    features = tracks(document, ["word_position", "depth"])
    report = find_cells(model, document, features, ablate="zero", among=2)
    assert {unit.feature for unit in report.best_units} == {"word_position", "depth"}


def test_gradients_and_truncation(model: SpellingModel) -> None:
    flow = gradient_flow(model, TEXT, lags=6, positions=4, warm_up=3)
    assert (flow.name, flow.cell) == ("spelling", "gru")
    assert flow.curve("h").median[0] == 1.0
    reach = connectivity(model, TEXT, position=9)
    assert "".join(reach.symbols) == TEXT[:10]
    assert -reach.log_p == pytest.approx(expected_losses(model, TEXT)[10], abs=1e-4)
    losses = truncation(model, TEXT, lengths=(1, 4), positions=50)
    assert losses.nats[1] != losses.nats[0]


def test_surprisal_is_the_sum_over_characters(model: SpellingModel) -> None:
    table = SurprisalTable.from_text(model, TEXT, SurprisalOptions(ends=True))
    assert table.total_bits == pytest.approx(expected_losses(model, TEXT).sum() / np.log(2), rel=1e-5)


def test_minimal_pairs(model: SpellingModel) -> None:
    pairs = [MinimalPair("noun", "the cat", "the mat"), MinimalPair("verb", "a cat sat", "a cat mat")]
    scores = [
        expected_losses(model, f"{pair.bad} ").sum() - expected_losses(model, f"{pair.good} ").sum() for pair in pairs
    ]
    assert agreement(model, pairs).of("all").model.share.value == np.mean(np.array(scores) > 0)
    assert len(sweep(model, pairs).units) == HIDDEN


def test_explorer(model: SpellingModel) -> None:
    session = Session(model, "mine")
    session.set_text("mine", TEXT)
    about = session.answer("about", {})
    assert (about["kind"], about["unit"], about.get("prompt", "")) == ("spelling", "char", "")
    bits = session.answer("expected", {"text": "given", "page": "0"})["bits"]
    np.testing.assert_allclose(bits, expected_losses(model, TEXT) / np.log(2), atol=0.01)
    step = session.answer("step", {"text": "given", "at": "5", "unit": "h0.1"})
    outputs = expected_outputs(model, TEXT)
    values = next(quantity["values"] for quantity in step["quantities"] if quantity["name"] == "h")
    np.testing.assert_allclose(values, outputs[6], atol=2e-3)
    assert all(quantity["equation"] for quantity in step["quantities"])
    likely = model.softmax.log_probs(outputs[6:7]).argmax()
    assert step["likely"][0][0] == model.vocabulary.symbols[int(likely)]
    assert session.answer("cell", {"text": "given", "unit": "h0.1"})["weights"]["from"]
    worker = Worker(session)
    for kind, body in (
        ("change", {"unit": "h0.1", "how": "zero"}),
        ("rank", {"unit": "h0.1"}),
        ("memory", {"lags": 5}),
    ):
        assert worker.run(kind, {"text": "given", **body}, lambda share: None)
