"""Every kind of task trains, saves, loads and predicts with any cell."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import relmo
from relmo import registry
from relmo.networks.srl import SRLNetwork
from relmo.nn.recurrence import Cell, make_cell
from relmo.nn.recurrence.highway_lstm import AlternatingLayers, AlternatingLSTM
from relmo.runs.train_task import train_task
from relmo.settings.kinds import TASKS, model_class
from relmo.settings.sections import InputSettings, TaskTrainSettings
from relmo.settings.tasks import (
    CorefModelSettings,
    CorefSettings,
    CorefTrainSettings,
    Seq2SeqInputSettings,
    Seq2SeqModelSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
    Seq2SeqTrainSettings,
    SRLModelSettings,
)
from support.cells import MatrixCell
from support.reading import questions, reader_settings
from support.roles import roles
from support.roles import settings as srl_settings
from support.sentence_tasks import classifier_settings, pairs_settings, reviews, same_words
from support.tagging import StopAfter, conllu
from support.tagging import settings as tagger_settings

PEOPLE = Path(relmo.__file__).parent / "data" / "people.conll"
CELLS = (*registry.cell_names(), "matrix")
QUICK = ("gru", "matrix")


@pytest.fixture(autouse=True)
def _matrix_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CELLS, "matrix", registry.CellEntry(MatrixCell, {}))


def coref_settings(**sections: Any) -> CorefSettings:
    return CorefSettings(
        input=InputSettings(word_dim=6, char_dim=0),
        model=CorefModelSettings(hidden=6, mlp=(6,), max_width=2, feature_dim=2, **sections["model"]),
        train=CorefTrainSettings(epochs=1, batch=2, device="cpu", patience=None),
    )


def seq2seq_settings(**sections: Any) -> Seq2SeqSettings:
    return Seq2SeqSettings(
        text=Seq2SeqTextSettings(source_unit="char", target_unit="char", metric="exact"),
        input=Seq2SeqInputSettings(word_dim=6),
        model=Seq2SeqModelSettings(hidden=6, target_dim=5, **sections["model"]),
        train=Seq2SeqTrainSettings(epochs=1, batch=8, device="cpu"),
    )


def reversals(path: Path) -> Path:
    path.write_text("".join(f"{text}\t{text[::-1]}\n" for text in ("ab", "abc", "ba", "cab", "bca", "acb") * 4))
    return path


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Path], Path], Any]] = {
    "classifier": (classifier_settings, lambda folder: reviews(folder / "train.tsv", 30), "good"),
    "pairs": (pairs_settings, lambda folder: same_words(folder / "train.tsv", 30), ("good film", "bad film")),
    "tagger": (tagger_settings, lambda folder: conllu(folder / "train.conllu", 30), ["The", "dog"]),
    "reader": (reader_settings, lambda folder: questions(folder / "train.json", 12), ("Anna is here.", "Who?")),
    "srl": (srl_settings, lambda folder: roles(folder / "train.jsonl", 20), "Anna sees Bob today ."),
    "coref": (coref_settings, lambda folder: PEOPLE, "Anna saw Bob. She waved."),
    "seq2seq": (seq2seq_settings, lambda folder: reversals(folder / "train.tsv"), "abc"),
}


def one_epoch(make: Callable[..., Any], cell: str) -> Any:
    settings = make(model={"cell": cell})
    return dataclasses.replace(settings, train=dataclasses.replace(settings.train, epochs=1.0))


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[] if cell in QUICK else pytest.mark.slow) for cell in CELLS]
)
@pytest.mark.parametrize("kind", TASKS)
def test_a_task_has_layers_of_any_cell(kind: str, cell: str, tmp_path: Path) -> None:
    make, write, example = KINDS[kind]
    train_task(model_class(kind), [str(write(tmp_path))], one_epoch(make, cell), tmp_path / "model")
    model = relmo.load(tmp_path / "model", device="cpu")
    cells = [module for module in model.network.modules() if isinstance(module, Cell)]
    assert any(module.name == cell for module in cells)
    assert len(model.predict([example])) == 1


def make_srl(**options: Any) -> SRLNetwork:
    torch.manual_seed(0)
    settings = SRLModelSettings(**{"hidden": 8, "layers": 3, "mark_dim": 2, "detector": 0} | options)
    return SRLNetwork(settings, input_size=5, legal=torch.ones(6, 6, dtype=torch.bool), verb=1)


def test_the_highway_lstm_is_the_default_of_semantic_roles() -> None:
    assert isinstance(make_srl().encoder, AlternatingLSTM)
    assert isinstance(make_srl(cell="gru").encoder, AlternatingLayers)


@pytest.mark.parametrize("cell", CELLS)
def test_alternating_layers_read_in_turns_and_sentences_stand_alone(cell: str) -> None:
    torch.manual_seed(0)
    stack = AlternatingLayers(make_cell(cell, 6), input_size=4, layers=2)
    one = AlternatingLayers(make_cell(cell, 6), input_size=4, layers=1)
    lengths = torch.tensor([5, 2, 4])
    x = torch.randn(3, 5, 4)
    x[1, 2:] = torch.nan  # nothing may look there
    y = stack(x, lengths)
    assert not y[1, 2:].any()
    for row, length in enumerate(lengths.tolist()):
        alone = stack(x[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(y[row, :length], alone[0], rtol=1e-5, atol=1e-6)
    changed = x[:1].clone()
    changed[0, 3] += 1
    for layers, expected in ((one, [False] * 3 + [True] * 2), (stack, [True] * 5)):
        difference = (layers(x[:1], lengths[:1]) - layers(changed, lengths[:1])).abs().sum(dim=2)[0]
        assert difference.gt(0).tolist() == expected
    assert stack(x[:0], lengths[:0]).shape == (0, 5, 6)


def test_the_highway_begins_almost_closed_and_can_be_closed() -> None:
    torch.manual_seed(0)
    stack = AlternatingLayers(make_cell("gru", 6), input_size=4, layers=1)
    (layer,) = stack.layers
    assert layer.bias_r.eq(-2).all()  # type: ignore[union-attr, operator]
    torch.nn.init.constant_(layer.bias_r, -1e4)  # type: ignore[arg-type]
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(stack(x, torch.tensor([3, 3])), x @ layer.weight_xh.T)  # type: ignore[union-attr, operator]


def test_a_resumed_labeller_of_another_cell_ends_with_the_same_weights(tmp_path: Path) -> None:
    train = [str(roles(tmp_path / "train.jsonl", 30))]
    options = TaskTrainSettings(epochs=2, batch=4, device="cpu", threads=1, checkpoint_every=0.0)
    settings = dataclasses.replace(srl_settings(model={"cell": "gru", "dropout": 0.2}), train=options)
    train_task(model_class("srl"), train, settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_task(model_class("srl"), train, settings, tmp_path / "broken", reporter=StopAfter(9))
    train_task(model_class("srl"), train, settings, tmp_path / "broken", resume=True)
    whole, resumed = (tmp_path / folder / "model.safetensors" for folder in ("whole", "broken"))
    assert whole.read_bytes() == resumed.read_bytes()


@pytest.mark.parametrize("cell_options", [(), ("projection=5",)])
def test_a_decoder_may_have_an_lstm_with_a_projection(cell_options: tuple[str, ...], tmp_path: Path) -> None:
    settings = seq2seq_settings(model={"cell": "lstm", "cell_options": cell_options})
    train_task(model_class("seq2seq"), [str(reversals(tmp_path / "train.tsv"))], settings, tmp_path / "model")
    assert len(relmo.load(tmp_path / "model", device="cpu").predict(["abc"])) == 1
