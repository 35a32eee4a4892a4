"""Adding a cell is one file and one line: a cell unlike the others is added to a copy of the package, and everything
that trains, traces, changes, measures or shows cells takes it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import relmo

PACKAGE = Path(relmo.__file__).parent
LINE = '    "sru": ("forget_bias",),\n'

FILE = '''"""The simple recurrent unit: its gates read the input and the memory of their own unit, never the output.

Lei et al. 2018, Simple recurrent units for highly parallelizable recurrence
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import Cell, Intervene, State, Weights, unchanged


class SRUGates(NamedTuple):
    """All quantities of a step, (B, H): candidate, forget gate, reset gate, new memory, output."""

    n: Tensor
    f: Tensor
    r: Tensor
    c: Tensor
    h: Tensor


class SRUCell(Cell):
    """n  = W_n x
    f  = sigmoid(W_f x + v_f * c + b_f)
    r  = sigmoid(W_r x + v_r * c + b_r)
    c' = f * c + (1 - f) * n
    h' = r * tanh(c')
    """

    states = ("h", "c")
    blocks: ClassVar = {"n": "candidate", "f": "forget gate", "r": "reset gate"}
    memory, keeps = "c", "f"
    recurrent = ("weight_c",)

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0):
        super().__init__(input_size, hidden_size)
        self.forget_bias = forget_bias
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_c = nn.Parameter(torch.empty(2 * hidden_size))
        self.bias = nn.Parameter(torch.empty(2 * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.bias[: self.hidden_size], self.forget_bias)

    def raise_forget_bias(self, by: float) -> None:
        self.bias.data[: self.hidden_size] += by

    def from_input(self, x: Tensor, weights: Weights) -> Tensor:
        W, _, _ = weights
        return linear(x, W)

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> SRUGates:
        _, v, b = weights
        _, c = state
        n, f, r = from_x.chunk(3, dim=-1)
        f, r = torch.sigmoid(torch.cat([f, r], dim=-1) + v * torch.cat([c, c], dim=-1) + b).chunk(2, dim=-1)
        c = intervene("c", f * c + (1 - f) * n)
        return SRUGates(n, f, r, c, intervene("h", r * torch.tanh(c)))
'''

SCRIPT = """
import contextlib, io, json
from pathlib import Path

import numpy as np
import torch

import relmo
from relmo.analysis.core.ablate import intervene
from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.gradients import fresh_flows, Fresh
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.syntax.gate_traces import connections
from relmo.analysis.units.cells import find_cells
from relmo.cli import run
from relmo.errors import SettingError
from relmo.explorer.session import Session

torch.set_num_threads(1)


def command(*given):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        run([*map(str, given)])
    return out.getvalue()


data = Path(relmo.__file__).parent / "data"
text = (data / "alice.txt").read_text(encoding="utf-8")[:4000]
Path("few.txt").write_text(text)
Path("names.iob2").write_text("\\n\\n".join((data / "names.iob2").read_text().split("\\n\\n")[:8]) + "\\n")
assert "sru" in command("train", "lm", "--help")
common = ["--threads", 1, "--quiet", "--out"]
command("train", "lm", "few.txt", "--cell", "sru", "--layers", 2, "--hidden", 8, "--forget-bias", 2,
        "--weight-drop", 0.1, "--batch", 4, "--unroll", 20, "--epochs", 1, *common, "lm")

model = relmo.load("lm")
assert model.encoder.recurrent.cells[0][0].describe() == "sru"
assert len(model.generate("Alice", limit=10)) > 5
short = text[:120]

traced = trace(model, short)
assert {name: array.shape for name, array in traced.states.items()} == dict.fromkeys("hcfrn", (2, 120, 8))
state = model.network.step(torch.tensor([model.vocabulary.end]), model.network.initial_state(1))[1]
with torch.no_grad():
    output = model.encoder(torch.from_numpy(model.vocabulary.ids(short))[None], state).output[0]
np.testing.assert_allclose(traced.states["h"][1], output.numpy(), atol=1e-6)
f, n, c = (traced.states[name][0] for name in "fnc")
np.testing.assert_allclose(c[1:], f[1:] * c[:-1] + (1 - f[1:]) * n[1:], atol=1e-6)

before = model.perplexity(short)
with intervene(model, 0, 3, "hold", 2.0, state="c"):
    assert (trace(model, short).unit("c", 0, 3) == 2.0).all()
    assert model.perplexity(short) != before
assert model.perplexity(short) == before

flow = gradient_flow(model, text, lags=6, positions=4, warm_up=5, jacobian_positions=2)
assert {curve.of for curve in flow.curves} == {"h", "c", "path"}
assert {curve.part for curve in flow.jacobians} == {"h", "c", "state"}
assert flow.curve("path").median[1] > 0 and set(flow.gate_mean[0]) == {"f", "r"}
assert "through f alone" in str(flow.table().rows)
fresh = fresh_flows(text, [Fresh(cell="sru", hidden=8, forget_bias=3.0, spectral_radius=0.5)], lags=4, positions=2)
assert fresh[0].gate_mean[0]["f"] > 0.8

document = read(model, text[:600])
report = find_cells(model, document, tracks(document, ["column"]), ablate="zero", ablate_symbols=200, among=4)
assert {unit.state for unit in report.units} == {"c", "h"} and report.ablations
with contextlib.suppress(SettingError):
    connections(model, [Unit("c", 0, 1)], [Unit("c", 0, 2)])
    raise AssertionError("its gates read no units of h")

session = Session.open("lm")
session.set_text("few", text[:500])
about = session.answer("about", {})
assert (about["cell"], about["memory"], about["gates"], about["opened"]) == ("sru", "c", ["f", "r"], "c0.0")
assert about["words"]["r"] == "reset gate" and about["cells"]["sru"] == "forget_bias"
assert len(session.answer("page", {"text": "given", "page": "0"})["symbols"]) == 500
strip = session.answer("strip", {"text": "given", "page": "0", "unit": "c1.2"})["states"]
assert list(strip) == ["h", "c", "f", "r", "n"]
cell = session.answer("cell", {"text": "given", "unit": "c0.2"})
assert set(cell["saturation"]) == {"f", "r"} and set(cell["weights"]["symbols"]) == {"n", "f", "r"}
json.dumps([about, cell])

command("train", "tagger", "names.iob2", "--task", "ner", "--cell", "sru", "--hidden", 8, "--word-dim", 8,
        "--char-dim", 0, "--epochs", 1, *common, "tagger")
assert len(relmo.load("tagger").predict([["Anna", "lives", "in", "Oslo"]])[0].tags) == 4
print("all of it")
"""


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


@pytest.mark.slow
def test_adding_a_cell_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = tmp_path / "source" / "relmo"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, copy, copy_function=_link, ignore=ignored)
    (copy / "nn" / "cells" / "sru.py").write_text(FILE)
    table = copy / "settings" / "kinds.py"
    lines = table.read_text()
    table.unlink()  # of the copy: it is a link
    table.write_text(lines.replace('    "gru": (),\n', '    "gru": (),\n' + LINE))
    environment = os.environ | {"PYTHONPATH": str(copy.parent), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.endswith("all of it\n"), done.stdout[-2000:] + done.stderr[-4000:]
    assert '"sru"' not in (PACKAGE / "settings" / "kinds.py").read_text()
