"""What reaches the first source word: the gradient is that of the definition, the path is counted by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.memory.connectivity import fresh_source_gradients, path_length, source_gradients, source_table
from relmo.errors import SettingError
from relmo.networks.seq2seq import Seq2SeqNetwork
from relmo.settings.tasks import Seq2SeqModelSettings, Seq2SeqSettings
from relmo.tasks.seq2seq import Seq2Seq
from relmo.text.readers.parallel import TextToText

PAIRS = [TextToText("a b c d e f g", ["c b a"]), TextToText("b", ["b"]), TextToText("a c d", ["d c"])]


def small(**options: object) -> Seq2SeqNetwork:
    settings = Seq2SeqModelSettings(hidden=4, target_dim=3, **options)  # type: ignore[arg-type]
    return Seq2SeqNetwork(settings, input_size=3, vocab_size=5)


def test_paths_are_those_that_one_counts_on_paper() -> None:
    one_way = {"directions": 1, "attention": "none"}
    assert [path_length(small(**one_way), 7, 4, unit) for unit in ("first", "last", "all")] == [6, 9, 6]
    assert path_length(small(**one_way, context="every"), 7, 4, "last") == 6
    assert path_length(small(attention="none"), 7, 4, "last") == 3  # the backward direction ends at the first word
    assert path_length(small(), 7, 4, "last") == 0


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["all", "first", "last"])
def test_the_gradient_is_what_a_small_change_of_the_first_vector_makes(unit: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Seq2Seq.prepare(Seq2SeqSettings(), PAIRS, torch.device("cpu")).initialize()
    (tmp_path / "t.tsv").write_text("".join(f"{pair.source}\t{pair.targets[0]}\n" for pair in PAIRS))
    found = source_gradients(model, tmp_path / "t.tsv", unit=unit)  # type: ignore[arg-type]
    assert [(row.least, row.most, row.sources) for row in found.lengths] == [(1, 3, 2), (7, 7, 1)]
    model.network.double()
    batch = model.encode(PAIRS[:1], answers=True).batch(np.array([0]))
    (inputs, _, units), sentences = batch.targets, model.network.inputs(batch.texts[0])

    def loss(x: torch.Tensor) -> torch.Tensor:
        body: Seq2SeqNetwork = model.network.body
        decoded = body.decode(body(sentences._replace(x=x)), inputs)
        log_probs = torch.log_softmax(body.output.logits(decoded.readout), dim=2)[0]
        each = -log_probs[torch.arange(len(units)), units]
        return {"all": each.sum(), "first": each[0], "last": each[-1]}[unit]

    with torch.no_grad():
        x, size = sentences.x, 1e-5
        moves = torch.eye(x.shape[2], dtype=x.dtype) * size
        slopes = []
        for move in moves:
            up, down = x.clone(), x.clone()
            up[0, 0] += move
            down[0, 0] -= move
            slopes.append((loss(up) - loss(down)) / (2 * size))
    assert found.lengths[1].first == pytest.approx(torch.stack(slopes).norm().item(), rel=1e-3)


def test_from_one_vector_less_and_less_reaches_the_first_word_but_not_with_attention() -> None:
    fixed, attended = (fresh_source_gradients(kind, lengths=[4, 40]) for kind in ("none", "additive"))  # type: ignore[arg-type]
    assert fixed.lengths[1].first < 1e-2 * fixed.lengths[0].first
    assert attended.lengths[1].first > 1e-1 * attended.lengths[0].first
    assert [row.path for row in fixed.lengths] == [3, 39]
    assert len(source_table([fixed, attended]).rows) == 4
    with pytest.raises(SettingError, match="lengths"):
        fresh_source_gradients("none", lengths=[0])
