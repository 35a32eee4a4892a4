"""Every analysis and every view of the explorer, on a trained language model of every registered cell.

Nothing here knows a cell: what is expected follows from its declarations.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relmo
from relmo import registry
from relmo.analysis.core import features
from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import Unit
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.connectivity import connectivity
from relmo.analysis.memory.counting import counting
from relmo.analysis.memory.gradients import Fresh, flow_tables, fresh_flows, gradient_flow
from relmo.analysis.memory.truncation import truncation
from relmo.analysis.syntax.agreement import agreement, sweep
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.analysis.units.cells import find_cells
from relmo.explorer.session import Session
from relmo.explorer.work import Worker
from relmo.models.lm import LanguageModel
from relmo.nn.recurrence import Cell
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_lm import train_lm
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTrainSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.options import CountingOptions
from relmo.settings.sections import TrainSettings
from relmo.text.minimal_pairs import MinimalPair

QUICK = ("gru", "mlstm", "sru")
"""A vector that is the output too, a matrix with gates per head, and a memory whose output is not carried."""
BIDIRECTIONAL = ("mingru", "mlstm", "slstm", "rum", "mogrifier")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {name: (name, ()) for name in registry.cell_names()}
VARIANTS |= {"rum with a matrix": ("rum", ("rotations=1",))}
ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
HIDDEN, EMBEDDING, LAYERS = 12, 8, 2
PAIRS = [
    MinimalPair(f"{number} {kind}", f"{context} {good}", f"{context} {bad}")
    for number, good, bad in (("S", "was", "were"), ("P", "were", "was"))
    for kind, context in (("near", "the door"), ("far", "the door she said"))
    for _ in range(3)
]


@pytest.fixture(scope="module", params=[p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in VARIANTS])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A model of characters, trained for some seconds at most."""
    return train(request.param, "char", tmp_path_factory.mktemp("model"))


def train(variant: str, unit: Any, folder: Path) -> LanguageModel:
    cell, options = VARIANTS[variant]
    network: dict[str, Any] = {"hidden": HIDDEN, "embedding": EMBEDDING, "layers": LAYERS}
    settings = LMSettings(
        text=TextSettings(unit=unit),
        model=LanguageModelSettings(cell=cell, cell_options=options, **network),
        train=TrainSettings(epochs=1, batch=16, unroll=32, lr=0.01, device="cpu"),
    )
    (folder / "text.txt").write_text(ALICE.read_text(encoding="utf-8")[2000:8000], encoding="utf-8")
    train_lm([str(folder / "text.txt")], settings, folder / "model")
    return relmo.load(folder / "model", kinds="lm", device="cpu")


@pytest.fixture(scope="module")
def text() -> str:
    return ALICE.read_text(encoding="utf-8")[8000:8600]


def cells_of(model: Any) -> list[Cell]:
    return [layer.cell for layer in build_stack(model.network).layers]


def test_every_quantity_is_traced_and_within_its_range(model: LanguageModel, text: str) -> None:
    cells = cells_of(model)
    traced = trace(model, text, keep=tuple(cells[0].words))
    for name, array in traced.states.items():
        assert array.shape == (LAYERS, len(text), max(cell.sizes[name] for cell in cells))
        for values, cell in zip(array, cells, strict=True):
            quantity = cell.specs[name]
            assert np.isfinite(values).all()
            assert values.min() >= quantity.low - 1e-6, name
            assert values.max() <= quantity.high + 1e-6, name
            assert not values[:, cell.sizes[name] :].any()
    assert {*trace(model, text).states} == {*cells[0].vectors}
    assert traced.gates == {name: (cells[0].specs[name].low, cells[0].specs[name].high) for name in cells[0].gate_names}
    for gate in cells[0].gate_names:
        low, high = traced.saturation(gate)
        assert ((low >= 0) & (high >= 0) & (low + high <= 1)).all()


def test_every_state_can_be_held_and_the_predictions_follow(model: LanguageModel, text: str) -> None:
    before = [row.surprisal for row in model.surprisal(text).rows]
    changed = {}
    for state in dict.fromkeys(["h", *cells_of(model)[0].states]):
        with intervene(model, 0, 0, "hold", 0.5, state=state):
            assert (trace(model, text, keep=(state,)).unit(state, 0, 0) == 0.5).all()
            bits = np.array([row.surprisal for row in model.surprisal(text).rows])
        assert np.isfinite(bits).all()
        changed[state] = not np.allclose(bits, before, atol=1e-4)
    specs = cells_of(model)[0].specs
    assert all(changed[state] for state in changed if specs[state].role in ("output", "memory"))
    assert [row.surprisal for row in model.surprisal(text).rows] == before


def test_gradients_and_jacobians_have_a_curve_for_each_memory(model: LanguageModel, text: str) -> None:
    cell = cells_of(model)[0]
    flow = gradient_flow(model, text, lags=20, positions=6, warm_up=10, jacobian_positions=2)
    states = [name for name in cell.states if cell.specs[name].role in ("output", "memory")]
    path = [] if cell.keeps is None else ["path"]
    assert [(curve.layer, curve.of) for curve in flow.curves] == [(n, of) for n in (0, 1) for of in [*states, *path]]
    for curve in flow.curves:
        assert curve.median[0] == pytest.approx(1.0)
        assert np.isfinite(curve.median).all()
    parts = states if len(cell.states) == 1 else [*states, "state"]
    assert [(curve.layer, curve.part) for curve in flow.jacobians] == [(n, part) for n in (0, 1) for part in parts]
    for jacobian in flow.jacobians:
        assert np.isfinite(jacobian.median).all()
    assert {*flow.gate_mean[0]} == {*cell.gate_names}
    assert {*flow.spectral_radius[0]} == {*cell.recurrent_matrices()}
    for table in flow_tables([flow]):
        assert all(len(row) == len(table.columns) and all(row) for row in table.rows if row[0])


def test_connectivity_and_truncation(model: LanguageModel, text: str) -> None:
    connected = connectivity(model, text[:80])
    assert len(connected.values) == 80
    assert connected.values[-1] > 0
    shortened = truncation(model, text, lengths=(1, 8), positions=50)
    assert np.isfinite(shortened.nats).all()
    assert shortened.whole == pytest.approx(model.symbol_losses([list(text)]).mean(), rel=0.25)


def test_units_are_scored_and_ablated(model: LanguageModel, text: str) -> None:
    cell = cells_of(model)[0]
    document = features.read(model, text)
    tracks = features.tracks(document, ["word_position", "quotes"])
    tracks = {name: track for name, track in tracks.items() if np.ptp(track)}
    report = find_cells(model, document, tracks, ablate="zero", among=3)
    assert {unit.state for unit in report.units} == {*cell.unit_states}
    assert len(report.units) == LAYERS * HIDDEN * len(cell.unit_states)
    assert all(np.isfinite(ablation.deltas).all() for ablation in report.ablations)
    assert any(ablation.deltas.any() for ablation in report.ablations)


def test_text_is_generated_as_it_is_scored(model: LanguageModel) -> None:
    sample = model.generate("Alice ", limit=20, temperature=0.0)
    assert sample == model.generate("Alice ", limit=20, temperature=0.0, seed=1)
    with intervene(model, 1, [0, 1, 2], "hold", 1.0):
        assert model.generate("Alice ", limit=20, seed=3) is not None


def test_a_session_answers_with_equations_that_agree_in_every_quantity(model: LanguageModel, text: str) -> None:
    session = Session(model, "model")
    session.texts.set_text("text", text)
    about = session.answer("about", {"opening": "1"})
    cell = cells_of(model)[0]
    assert set(about["states"]) == {*cell.vectors}
    assert about["carried"] == [*cell.unit_states]
    assert about["gates"] == {name: [cell.specs[name].low, cell.specs[name].high] for name in cell.gate_names}
    assert about["cell"] in about["cells"]
    page: dict[str, str] = {"text": "given", "page": "0"}
    assert "".join(session.answer("page", page)["symbols"]) == text
    bits = model.symbol_losses([list(text)]) / math.log(2)
    np.testing.assert_allclose(session.answer("expected", page)["bits"], bits, atol=0.02)
    for name in about["states"]:
        assert len(session.answer("values", page | {"unit": f"{name}0.0"})["values"]) == len(text)
        assert session.answer("units", page | {"state": name, "layer": "1"})["symbols"] == len(text)
    for name in cell.unit_states:
        unit = {"text": "given", "unit": f"{name}1.{HIDDEN - 1}"}
        strip = session.answer("strip", page | unit)["states"]
        corresponding = {other: cell.corresponding_unit(name, HIDDEN - 1, other) for other in cell.vectors}
        assert {*strip} == {other for other, number in corresponding.items() if number is not None}
        answer = session.answer("cell", unit | {"event": "e"})
        assert {*answer["saturation"]} == {*cell.gate_names} & {*strip}
        assert {*answer["weights"]["from"]} == {*cell.recurrent_matrices()}
        assert session.answer("overview", unit)["total"] == len(text)
    weights = session.answer("cell", {"text": "given", "unit": "h0.0"})["weights"]
    assert {*weights["symbols"]} == {*cell.input_matrices()}
    for at in ("0", "300"):
        for layer in (0, 1):
            check_step(session, {"text": "given", "at": at, "unit": f"h{layer}.{HIDDEN - 1}"}, cells_of(model)[layer])
    assert len(session.answer("gradient", {"text": "given", "at": "50"})["values"]) == 51


def check_step(session: Session, query: dict[str, str], cell: Cell) -> None:
    """Check that the equation of every quantity is written out and ends with the number that the network computes."""
    step = session.answer("step", query)
    assert [*step["before"]] == [*cell.states]
    assert {quantity["name"] for quantity in step["quantities"]} == {*cell.words}
    for quantity in step["quantities"]:
        name = quantity["name"]
        assert len(quantity["values"]) == cell.sizes[name] == math.prod(quantity["shape"])
        assert quantity["equation"] == cell.equations()[name]
        if quantity["unit"] is not None:
            assert quantity["lines"], f"the equation of {name} disagrees with the network"
            last = float(quantity["lines"][-1].replace("\N{MINUS SIGN}", "-"))
            assert last == pytest.approx(quantity["values"][quantity["unit"]], abs=2e-3)
        elif name in cell.vectors:  # its units are of another kind
            own = session.answer("step", query | {"unit": f"{name}{query['unit'][1]}.0"})["quantities"]
            assert next(other for other in own if other["name"] == name)["lines"]


def test_jobs_of_the_explorer(model: LanguageModel, text: str) -> None:
    session = Session(model, "model")
    session.texts.set_text("text", text)
    worker, cell = Worker(session), cells_of(model)[0]
    body: dict[str, Any] = {"model": "model", "text": "given"}

    def run(job: str, **options: Any) -> dict[str, Any]:
        return worker.run(job, body | options, lambda share: None)

    state = cell.unit_states[-1]
    for how in ("zero", "mean", "hold", "scale"):
        answer = run("change", unit=f"{state}1.3", how=how, symbols=100, length=5, prompt="A")
        assert len(answer["samples"]) == 2
        assert all(math.isfinite(row["delta"]) for row in answer["classes"])
    assert run("rank", unit=f"{state}0.2", symbols=60)["of"] == HIDDEN
    networks = run("memory", lags=10, positions=4, jacobians=1)["networks"]
    assert {curve["of"] for curve in networks[0]["curves"]} >= {networks[0]["memory_state"]}
    name = session.answer("about", {})["cell"]
    fresh = run("memory", networks=[{"cell": name, "hidden": 8}], lags=10, positions=4)["networks"]
    assert fresh[0]["name"] == f"{name}, fresh"
    assert run("find", features=["word_position"], ablate="zero", symbols=100)["units"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_agreement_of_a_model_of_words(variant: str, tmp_path: Path) -> None:
    model = train(variant, "word", tmp_path)
    cell = cells_of(model)[0]
    report = agreement(model, PAIRS)
    assert [condition.name for condition in report.conditions[1:]] == ["S near", "S far", "P near", "P far"]
    drops = sweep(model, PAIRS, units=[Unit("h", 0, 1), Unit("h", 1, 2)], per_condition=2).drops
    assert drops.shape == (2, 5)
    traced = gate_traces(model, PAIRS, Unit("h", 1, HIDDEN - 1))
    for means in traced.means.values():
        assert {*means} == {name for name in cell.vectors if cell.corresponding_unit("h", 0, name) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("cell", registry.cell_names())
def test_counting_and_untrained_networks_at_the_default_size(cell: str, text: str) -> None:
    result = counting("anbn", cell, CountingOptions(limit=4, tested=6, steps=5, batch=4, seeds=1, strings=20))
    assert {counter.state for counter in result.counters}
    assert 0 <= result.balanced <= 1
    (flow,) = fresh_flows(text, [Fresh(cell=cell, hidden=10)], lags=6, positions=4, warm_up=2)
    assert flow.name == f"{cell}, fresh"


@pytest.mark.slow
@pytest.mark.parametrize("cell", BIDIRECTIONAL)
def test_a_bidirectional_model(cell: str, tmp_path: Path) -> None:
    sentences = "\n".join(" ".join(line.split()) for line in ALICE.read_text(encoding="utf-8").splitlines()[60:220])
    (tmp_path / "text.txt").write_text(sentences, encoding="utf-8")
    network: dict[str, Any] = {"filters": ("1x4", "2x8"), "char_dim": 4, "hidden": HIDDEN, "projection": 8}
    settings = BiLMSettings(
        model=BiLMModelSettings(cell=cell, samples=50, **network),
        train=BiLMTrainSettings(epochs=1, batch=8, device="cpu"),
    )
    train_bilm([str(tmp_path / "text.txt")], settings, tmp_path / "model")
    model = relmo.load(tmp_path / "model", kinds="bilm", device="cpu")
    text = "\n".join(sentences.splitlines()[:40])
    flow = gradient_flow(model, text, lags=12, positions=4, warm_up=4, jacobian_positions=1, direction="backward")
    assert {curve.layer for curve in flow.curves} == {0, 1}
    unit = Unit(cells_of(model)[0].unit_states[-1], 1, 3)
    for direction in ("forward", "backward"):
        with intervene(model, 1, 3, "hold", 0.25, state=unit.state, direction=direction):  # type: ignore[arg-type]
            traced = getattr(trace(model, text), direction)
        assert (traced.unit(unit.state, 1, 3) == 0.25).all()
    session = Session(model, "model")
    session.texts.set_text("text", text)
    for direction in ("", "b"):
        for layer in (0, 1):
            side = build_stack(model.network).layers[layer].cells[direction == "b"]
            query = {"text": "given", "at": "12", "unit": f"h{layer}.{HIDDEN - 1}{direction}"}
            check_step(session, query, side)
    worker = Worker(session)
    answer = worker.run("change", {"text": "given", "unit": f"{unit}b", "symbols": 60}, lambda share: None)
    assert all(math.isfinite(row["delta"]) for row in answer["classes"])


def test_a_state_set_to_zero_gives_finite_numbers_or_one_clear_message(model: LanguageModel, text: str) -> None:
    for state in cells_of(model)[0].states:
        message = ""
        with intervene(model, 0, 0, "zero", state=state):
            try:
                losses = model.symbol_losses([list(text)])
            except relmo.errors.SettingError as error:
                message, losses = str(error), np.zeros(1)
        assert np.isfinite(losses).all()
        assert not message or (f"change of {state} " in message and "divisor" in message)
