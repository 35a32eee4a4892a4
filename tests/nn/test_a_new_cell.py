"""Cells of the user: files outside the package, registered, work with every command; invalid ones are clear errors."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import relmo
from relmo.errors import ModelError
from relmo.nn.recurrence import (
    Cell,
    Quantity,
    Record,
    State,
    check_cell,
    gate,
    make_cell,
    register_cell,
    state,
    unchanged,
)
from relmo.registry import CELLS, GROUP, PLUGINS
from relmo.store.references import find_installed

LEAKY = '''"""Cells that are no part of relmo.

Somebody 2026, A unit whose gates read its own memory
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import relmo
from relmo.errors import ModelError
from relmo.nn.recurrence import Quantity, Record, State, gate, state, unchanged


@relmo.register_cell("leaky")
class LeakyCell(relmo.Cell):
    """A unit whose gates read the input and its own memory, never the output.

    gain         factor of the output
    forget_bias  initial bias of f
    """

    keeps = "f"
    recurrent = ("weight_c",)

    def __init__(self, input_size: int, hidden_size: int, *, gain: float = 1.0, forget_bias: float = 1.0):
        super().__init__(input_size, hidden_size)
        self.gain, self.forget_bias = gain, forget_bias
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_c = nn.Parameter(torch.empty(2 * hidden_size))
        self.bias = nn.Parameter(torch.empty(2 * hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", H, role="output"),
            state("c", H),
            gate("f", H, description="forget gate"),
            gate("r", H, description="reset gate"),
            Quantity("n", (H,), "candidate", "candidate"),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "n": "W_n x",
            "f": "sigmoid(W_f x + v_f * c + b_f)",
            "r": "sigmoid(W_r x + v_r * c + b_r)",
            "c": "f * c + (1 - f) * n",
            "h": f"{self.gain} * r * tanh(c')",
        }

    def named_weights(self) -> dict[str, Tensor]:
        named = {f"W_{k}": W for k, W in self.input_matrices().items()}
        for letter, vector in (("v", self.weight_c), ("b", self.bias)):
            named |= {f"{letter}_{k}": part for k, part in zip("fr", vector.chunk(2), strict=True)}
        return named

    def input_matrices(self) -> dict[str, Tensor]:
        return dict(zip("nfr", self.weight_ih.chunk(3), strict=True))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias[: self.hidden_size], self.forget_bias)

    @torch.no_grad()
    def raise_forget_bias(self, by: float) -> None:
        self.bias[: self.hidden_size] += by

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        _, c = state
        n, f, r = x.chunk(3, dim=-1)
        (v_f, v_r), (b_f, b_r) = self.weight_c.chunk(2), self.bias.chunk(2)
        n, f, r = record("n", n), torch.sigmoid(f + v_f * c + b_f), torch.sigmoid(r + v_r * c + b_r)
        f, r = record("f", f), record("r", r)
        c = record("c", f * c + (1 - f) * n)
        h = record("h", self.gain * r * torch.tanh(c))
        return h, (h, c)
'''

MATRIX = '''

@relmo.register_cell("associative")
class AssociativeCell(relmo.Cell):
    """A matrix memory of keys and values, with an output that is not carried and a learned initial memory."""

    keeps = None
    recurrent = ("start",)

    def __init__(self, input_size: int, hidden_size: int, *, decay: float = 0.9):
        super().__init__(input_size, hidden_size)
        self.decay = decay
        self.weight = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.start = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        vectors = [Quantity(k, (H,), "candidate", name) for k, name in zip("qkv", ("query", "key", "value"))]
        return [
            Quantity("h", (H,), "output", "output", -1.0, 1.0),
            state("M", H, H, initial="start", description="associations"),
            *vectors,
        ]

    def equations(self) -> dict[str, str]:
        vectors = {k: f"W_{k} x" for k in "qkv"}
        return vectors | {"M": f"{self.decay} * M + outer(v, k)", "h": "tanh(M' q)"}

    def named_weights(self) -> dict[str, Tensor]:
        return {f"W_{k}": W for k, W in self.input_matrices().items()}

    def input_matrices(self) -> dict[str, Tensor]:
        return dict(zip("qkv", self.weight.chunk(3), strict=True))

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        q, k, v = (record(name, part) for name, part in zip("qkv", x.chunk(3, dim=-1), strict=True))
        M = record("M", self.decay * state[0] + v.unsqueeze(-1) * k.unsqueeze(-2))
        h = record("h", torch.tanh((M @ q.unsqueeze(-1)).squeeze(-1)))
        return h, (M,)
'''

SCRIPT = """
import contextlib, io, json, sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import relmo
from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.gradients import Fresh, fresh_flows, gradient_flow
from relmo.analysis.units.cells import find_cells
from relmo.cli import run
from relmo.explorer.session import Session
from relmo.runs.progress import Reporter
from relmo.runs.train_lm import train_lm

torch.set_num_threads(1)
CELL, OPTIONS = sys.argv[1:]


def command(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        run([*map(str, arguments)])
    return out.getvalue()


data = Path(relmo.__file__).parent / "data"
text = (data / "alice.txt").read_text(encoding="utf-8")[:4000]
Path("few.txt").write_text(text)
Path("names.iob2").write_text("\\n\\n".join((data / "names.iob2").read_text().split("\\n\\n")[:8]) + "\\n")

# the cell is listed, described and trained
assert CELL in command("cells") and "Somebody 2026" in command("cells", CELL)
assert CELL in command("train", "lm", "--help")
common = ["--threads", 1, "--quiet", "--out"]
settings = ["few.txt", "--cell", CELL, "--cell-options", OPTIONS, "--layers", 2, "--hidden", 8, "--weight-drop", 0.1,
            "--batch", 4, "--unroll", 20]
command("train", "lm", *settings, "--epochs", 2, *common, "lm")
model = relmo.load("lm")
cell = model.network.encoder.recurrent.cells[0][0]
name, value = OPTIONS.split("=")
assert cell.name == CELL and getattr(cell, name) == float(value)

# a stopped run, resumed, ends with the weights of one that was not stopped
class Stop(Reporter):
    def on_step(self, step, total):
        if step.number == 12:
            raise InterruptedError


often = replace(model.settings, train=replace(model.settings.train, checkpoint_every=0.0))
with contextlib.suppress(InterruptedError):
    train_lm(["few.txt"], often, Path("stopped"), reporter=Stop())
assert not Path("stopped/config.json").exists()
command("train", "lm", "--resume", *common, "stopped")
resumed = relmo.load("stopped").tensors()
assert all(torch.equal(tensor, resumed[name]) for name, tensor in model.tensors().items())

# evaluate, generate, surprisal
assert command("evaluate", "lm", "few.txt", "--json")
assert command("generate", "lm", "--limit", 20)
assert command("surprisal", "lm", "few.txt")
assert len(model.generate("Alice", limit=10)) > 5

# traces, interventions, gradients, cell search with ablation
short = text[:120]
traced = trace(model, short)
vectors = [q.name for q in cell.quantities() if len(q.shape) == 1]
assert set(traced.states) == set(vectors)
assert all(array.shape == (2, 120, 8) for array in traced.states.values())
assert command("analyse", "trace", "lm", "few.txt", "--unit", 3, "--json")
unit_state = cell.unit_states[-1]
before = model.perplexity(short)
with intervene(model, 0, 3, "hold", 0.5, state=unit_state):
    assert (trace(model, short).unit(unit_state, 0, 3) == 0.5).all()
    assert model.perplexity(short) != before
assert model.perplexity(short) == before
flow = gradient_flow(model, text, lags=6, positions=4, warm_up=5, jacobian_positions=2)
assert set(flow.gate_mean[0]) == set(cell.gate_names)
assert command("analyse", "gradients", "lm", "--text", "few.txt", "--lags", 6, "--positions", 4, "--json")
if CELL == "leaky":
    fresh = fresh_flows(text, [Fresh(cell=CELL, hidden=8, forget_bias=3.0)], lags=4, positions=2)
    assert fresh[0].gate_mean[0]["f"] > 0.8
document = read(model, text[:600])
report = find_cells(model, document, tracks(document, ["column"]), ablate="zero", ablate_symbols=200, among=4)
assert {unit.state for unit in report.units} == set(cell.unit_states) and report.ablations

# the explorer shows its equations in numbers
session = Session.open("lm")
session.set_text("few", text[:500])
about = session.answer("about", {})
assert (about["cell"], [*about["gates"]], set(about["words"])) == (CELL, cell.gate_names, set(cell.words))
assert len(session.answer("page", {"text": "given", "page": "0"})["symbols"]) == 500
unit = f"{unit_state}1.2"
step = session.answer("step", {"text": "given", "unit": unit, "at": "40"})
json.dumps([about, step, session.answer("cell", {"text": "given", "unit": unit})])
assert {row["name"] for row in step["quantities"]} == set(cell.words)
assert all(row["equation"] and row["lines"] for row in step["quantities"])

# a task
command("train", "tagger", "names.iob2", "--task", "ner", "--cell", CELL, "--cell-options", OPTIONS, "--hidden", 8,
        "--word-dim", 8, "--char-dim", 0, "--epochs", 1, *common, "tagger")
assert len(relmo.load("tagger").predict([["Anna", "lives", "in", "Oslo"]])[0].tags) == 4
print("all of it")
"""


def run_relmo(folder: Path, plugins: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the variable that names files of cells."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"PYTHONPATH": str(Path(relmo.__file__).parents[1])} | (
        {} if plugins is None else {PLUGINS: plugins}
    )
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("leaky", "gain=2.0"), ("associative", "decay=0.5")])
def test_a_cell_of_the_user_works_with_every_command(name: str, options: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LEAKY + MATRIX)
    done = run_relmo(tmp_path, str(tmp_path / "mine.py"), "-c", SCRIPT, name, options)
    assert done.stdout.endswith("all of it\n"), done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture
def plain_cells() -> Iterator[None]:
    """Remove the cells that a test registers."""
    before = dict(CELLS)
    yield
    CELLS.clear()
    CELLS.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a bundled model that names a cell which is a file of its folder and registered nowhere."""
    bundled = find_installed("hello")
    assert bundled is not None
    folder = tmp_path_factory.mktemp("models") / "mine"
    shutil.copytree(bundled, folder)
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["model"]["cell"] = "leaky"
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("leaky.py", "relmo_plugin_leaky.py", "plugins.py"):
        (folder / name).write_text("open('executed', 'w').close()\n" + LEAKY)
    return folder


def test_a_model_with_an_unknown_cell_says_how_to_register_it_and_executes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    monkeypatch.syspath_prepend(str(model))
    with pytest.raises(ModelError, match=rf"'leaky'.*{PLUGINS}"):
        relmo.load(str(model))
    assert not (model / "executed").exists()


@pytest.mark.parametrize(
    ("file", "token"),
    [(None, "No such file"), ("def f(", "never closed"), ("import no_such_module", "no_such_module")],
)
def test_a_plugin_that_cannot_be_imported_is_a_short_error(file: str | None, token: str, tmp_path: Path) -> None:
    if file is not None:
        (tmp_path / "mine.py").write_text(file)
    done = run_relmo(tmp_path, "mine.py", "-m", "relmo", "cells")
    assert done.returncode == 2
    assert token in done.stderr
    assert done.stderr.startswith(f"error: {PLUGINS}: mine.py")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_cell_of_an_installed_package_is_registered_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "some_cells.py").write_text(LEAKY.replace('@relmo.register_cell("leaky")\n', ""))
    metadata = tmp_path / "some_cells-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-cells\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nleaky = some_cells:LeakyCell\n")
    (tmp_path / "few.txt").write_text("Alice was beginning to get very tired. " * 40)
    options = "--cell leaky --cell-options gain=3.0 --forget-bias 2 --hidden 4 --epochs 1 --batch 2 --unroll 10 --quiet"
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from relmo.cli import main
try:
    main("train lm few.txt {options} --out lm".split())
except SystemExit:
    main(["info", "lm"])
"""
    done = run_relmo(tmp_path, None, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "leaky" in done.stdout


def test_importing_the_registry_imports_no_torch(tmp_path: Path) -> None:
    done = run_relmo(tmp_path, None, "-c", "import relmo, sys; relmo.register_cell; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
    assert relmo.Cell is Cell
    assert relmo.register_cell is register_cell


class Minimal(Cell):
    """A cell whose declarations tests replace."""

    declared: ClassVar[list[Quantity]] = [state("h", 3, role="output")]

    def __init__(self, input_size: int, hidden_size: int, *, scale: float = 1.0):
        super().__init__(input_size, hidden_size)
        self.weight = torch.nn.Parameter(torch.zeros(hidden_size, input_size))

    def quantities(self) -> list[Quantity]:
        return self.declared

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        return x, state


@pytest.mark.usefixtures("plain_cells")
def test_registering_replaces_the_cell_of_that_name_and_reads_the_options() -> None:
    assert register_cell("minimal")(Minimal) is Minimal
    assert CELLS["minimal"].options == {"scale": 1.0}
    assert make_cell("minimal", 3, scale=2.0)(2).name == "minimal"
    for name in ("two words", "a-b", "", "1st"):
        with pytest.raises(ValueError, match="name"):
            register_cell(name)


class NoStep(Cell):
    def quantities(self) -> list[Quantity]:
        return []


@pytest.mark.parametrize(("cell", "token"), [(int, "Cell"), (Cell, "quantities or step"), (NoStep, "step")])
def test_classes_that_are_no_cells_cannot_be_registered(cell: type, token: str) -> None:
    with pytest.raises(ValueError, match=token):
        register_cell("new")(cell)
    assert "new" not in CELLS


H = state("h", 3, role="output")


@pytest.mark.parametrize(
    ("attributes", "token"),
    [
        ({"declared": []}, "first quantity"),
        ({"declared": [state("c", 3), H]}, "first quantity"),
        ({"declared": [H, state("memory", 3)]}, "'memory'"),
        ({"declared": [H, state("x", 3)]}, "'x'"),
        ({"declared": [H, state("c", 3), gate("c", 3, description="")]}, "h c c"),
        ({"declared": [H, state("c")]}, "c has no shape"),
        ({"declared": [H, state("c", 3.0)]}, "c has no shape"),  # type: ignore[arg-type]
        ({"declared": [state("h", 5)]}, "output size"),
        ({"declared": [Quantity("h", (3,), "output", "output")]}, "initial"),
        ({"declared": [H, state("c", 3, initial="start")]}, "'start'"),
        ({"keeps": "f"}, "'f'"),
        ({"recurrent": ("weight_hh",)}, "weight_hh"),
        ({"equations": lambda self: {"z": "x"}}, "z"),
    ],
)
@pytest.mark.usefixtures("plain_cells")
def test_inconsistent_declarations_are_errors_when_a_cell_is_made(attributes: dict[str, Any], token: str) -> None:
    check_cell(Minimal(2, 3))
    register_cell("broken")(type("Broken", (Minimal,), attributes))
    with pytest.raises(ValueError, match=token):
        make_cell("broken", 3)(2)
