"""Tests of `experiments/cells`: targets of the formal tasks, training of several seeds at once, records and tables."""

import ast
import json
import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.cells import jobs as jobs_module
from experiments.cells.jobs import Plan, default_cells, read_results, run_jobs
from experiments.cells.table import draw_heat_map, make_tables, scale
from experiments.cells.tasks import GENERATORS, IGNORED, PERMUTATIONS, TASKS, Batch, measure_chance
from experiments.cells.train import Protocol, match_hidden, train_task
from relmo.registry import cell_names

COMMAND = "cells"
TINY = Protocol(hidden=16, seeds=2, steps=3, batch=4, test_sequences=8)
Run = Callable[..., tuple[int, str, str]]


def draw(name: str, count: int = 40, *, long: bool = False) -> Batch:
    task = TASKS[name]
    return task.draw(np.random.default_rng(3), count, *(task.long if long else task.short))


def evaluate(text: str) -> int:
    """Return the value of an expression of digits, +, -, * and brackets."""
    operations = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def visit(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return operations[type(node.op)](visit(node.left), visit(node.right))
        assert isinstance(node, ast.Constant)
        return int(node.value)  # type: ignore[arg-type]

    return visit(ast.parse(text, mode="eval").body)


def expected_target(name: str, prefix: list[int]) -> int:
    """Return the target after a prefix by an independent definition."""
    if name in ("parity", "addition"):
        return sum(prefix) % (2 if name == "parity" else 5)
    if name == "arithmetic":
        return evaluate("".join("01234+-*"[symbol] for symbol in prefix)) % 5 if len(prefix) % 2 else IGNORED
    if name == "s5":
        items = list(range(5))
        for symbol in prefix:
            items = [items[i] for i in GENERATORS[symbol]]
        return PERMUTATIONS.tolist().index(items)
    stack: list[int] = []
    for symbol in prefix:
        if symbol < 2:
            stack.append(symbol)
        else:
            assert stack.pop() == symbol - 2
    return stack[-1] if stack else 2


@pytest.mark.parametrize("name", ["parity", "addition", "arithmetic", "s5", "dyck"])
def test_targets_of_prefixes_are_right(name: str) -> None:
    batch = draw(name, 12)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        assert targets == [expected_target(name, inputs[: t + 1]) for t in range(len(inputs))]


@pytest.mark.parametrize("name", ["parity", "s5", "dyck"])
def test_long_sequences_are_scored_beyond_the_training_lengths(name: str) -> None:
    scored = draw(name, long=True).scored
    assert not scored[:, :40].any()
    assert scored[:, 40:].any(axis=0).all()


def test_expressions_have_the_values_of_their_brackets() -> None:
    batch = draw("brackets", long=True)
    for inputs, targets, scored in zip(*batch, strict=True):
        end = int(scored.argmax()) + 1
        text = "".join("01234+-*()"[symbol] for symbol in inputs[:end])
        assert evaluate(text) % 5 == targets[end - 1]
        opened: list[int] = []
        for t, symbol in enumerate(text):
            if symbol == "(":
                opened.append(t)
            elif symbol == ")":
                assert evaluate(text[opened.pop() : t + 1]) % 5 == targets[t]
            else:
                assert targets[t] == IGNORED
        assert (targets[end:] == IGNORED).all()
        assert 11 <= sum(symbol.isdigit() for symbol in text) <= 64


@pytest.mark.parametrize("name", ["anbn", "anbncn"])
def test_counting_compares_neighbouring_letters(name: str) -> None:
    batch, letters = draw(name), TASKS[name].symbols
    for inputs, targets, scored in zip(*(array.tolist() for array in batch), strict=True):
        sizes = [inputs.count(0)] * (letters - 1)
        word = [letter for letter in range(letters - 1) for _ in range(sizes[0])] + [letters - 1] * (sizes[0] + 1)
        assert inputs[: len(word)] == word
        counts = [0] * letters
        for t, letter in enumerate(word):
            counts[letter] += 1
            before = counts[letter - 1]
            assert targets[t] == (IGNORED if letter == 0 else 1 + (counts[letter] > before) - (counts[letter] < before))
        assert set(targets[len(word) :]) <= {IGNORED}
        assert [targets[t] for t, counts_here in enumerate(scored) if counts_here] == [0, 1, 2]
    assert measure_chance(batch) == pytest.approx(1 / 3)


def test_copies_are_the_words() -> None:
    for inputs, targets, _ in zip(*(array.tolist() for array in draw("copy")), strict=True):
        size = inputs.index(8)
        assert targets[:size] == [IGNORED] * size
        assert targets[size : 2 * size] == inputs[:size]
        assert set(targets[2 * size :]) <= {IGNORED}
        assert set(inputs[size + 1 :]) <= {9}


def test_queries_have_the_values_of_their_keys() -> None:
    for inputs, targets in zip(*(array.tolist() for array in draw("recall")[:2]), strict=True):
        num_pairs = sum(target != IGNORED for target in targets)
        values = dict(zip(inputs[: 2 * num_pairs : 2], inputs[1 : 2 * num_pairs : 2], strict=True))
        assert len(values) == num_pairs
        queries = inputs[2 * num_pairs : 3 * num_pairs]
        assert sorted(queries) == sorted(values)
        assert targets[2 * num_pairs : 3 * num_pairs] == [values[key] - 16 for key in queries]


@pytest.mark.parametrize("name", TASKS)
def test_symbols_and_classes_are_in_range(name: str) -> None:
    task = TASKS[name]
    for batch in (draw(name), draw(name, long=True)):
        assert 0 <= batch.inputs.min() <= batch.inputs.max() < task.symbols
        assert batch.targets.max() == task.classes - 1 or name == "s5"
        assert (batch.targets[batch.scored] != IGNORED).all()


@pytest.mark.parametrize("cell", cell_names())
def test_seeds_at_once_are_trained_like_one_alone(cell: str) -> None:
    together = train_task(TASKS["dyck"], cell, {}, TINY)
    alone = train_task(TASKS["dyck"], cell, {}, replace(TINY, seeds=1), first_seed=1)
    assert together["loss"][1] == pytest.approx(alone["loss"][0], rel=1e-4)
    assert together["long"][1] == pytest.approx(alone["long"][0], abs=0.02)
    assert together["loss"][0] != pytest.approx(together["loss"][1], rel=1e-4)


@pytest.mark.parametrize("cell", cell_names())
def test_numbers_of_weights_agree(cell: str) -> None:
    sizes = [match_hidden(cell, {}, reference) for reference in (64, 192)]
    assert all(hidden % 8 == 0 for hidden, _ in sizes)
    for reference, (_, parameters) in zip((64, 192), sizes, strict=True):
        assert parameters == pytest.approx(match_hidden("lstm", {}, reference)[1], rel=0.12)


def test_diverged_networks_do_not_disturb_the_others() -> None:
    from experiments.cells.train import clip_each

    weight = torch.zeros(2, 3, requires_grad=True)
    weight.grad = torch.tensor([[float("nan"), 1.0, 1.0], [3.0, 0.0, 4.0]])
    clip_each([weight], 1.0)
    assert weight.grad[0].tolist() == [0, 0, 0]
    assert weight.grad[1].tolist() == pytest.approx([0.6, 0.0, 0.8])


def test_finished_measurements_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(["lstm", "irnn"], ["parity", "anbn"], TINY)
    assert run_jobs(plan, tmp_path, tmp_path) == {}
    results = read_results(tmp_path)
    path = tmp_path / "irnn/parity.json"
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")  # damaged
    calls = []

    def count(task: object, cell: str, *arguments: object, **keywords: object) -> dict[str, object]:
        calls.append(cell)
        return dict(results["irnn"]["parity"])

    monkeypatch.setattr(jobs_module, "train_task", count)
    run_jobs(plan, tmp_path, tmp_path)
    assert calls == ["elman"]
    assert read_results(tmp_path) == results
    run_jobs(replace(plan, protocol=replace(TINY, steps=4)), tmp_path, tmp_path)
    assert len(calls) == 5


def test_failures_leave_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(jobs_module, "train_task", fail)
    failures = run_jobs(Plan(["lstm"], ["parity"], TINY), tmp_path, tmp_path)
    assert "no memory" in failures["lstm parity"]
    assert read_results(tmp_path) == {}


def test_tables_show_records(tmp_path: Path) -> None:
    record = {
        "hidden": 64, "parameters": 33280, "short": [1.0, 1.0], "short_chance": 0.5,
        "long": [1.0, 0.75], "long_chance": 0.5, "solved": 1,
    }  # fmt: skip
    language = {"hidden": 192, "parameters": 296448, "bits_per_character": 2.1, "reach": {"h": 12, "c": None}}
    results = {"gru": {"parity": record}, "elman": {"parity": record, "shakespeare": language}, "mine": {}}
    accuracy, published, words = make_tables(results)
    assert [row[0] for row in accuracy.rows] == ["chance", "elman", "gru"]
    assert accuracy.rows[1][-1] == "100 → 87.5 (75-100), 1/2"
    assert published.rows[0][2] == "0.750 (1.000)"
    assert words.rows[0][3] == "2.100"
    assert "h 12, c never" in words.rows[0]
    assert all(len(row) == len(table.columns) for table in (accuracy, published, words) for row in table.rows)
    assert all(len(published.columns) == 2 + len(row[2:]) for row, _ in pairwise(published.rows))
    draw_heat_map(results, tmp_path / "cells.png")
    assert (tmp_path / "cells.png").stat().st_size > 1000
    assert scale(0.2, 0.2) == 0


def test_the_command_trains_and_reports(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    shared = ("--cells", "gru", "--tasks", "copy", "--seeds", 1, "--steps", 2, "--batch", 2, "--data", tmp_path)
    status, output, _ = run(*shared, "--out", out)
    assert status == 0
    assert "| gru | gated |" in output
    status, output, _ = run("--report", out, "--json", "--plot", tmp_path / "map.svg")
    assert status == 0
    assert list(json.loads(output)["results"]["gru"]) == ["copy"]
    assert (tmp_path / "map.svg").exists()
    status, _, error = run("--cells", "gruu", "--out", out)
    assert status == 2
    assert "gruu" in error
    assert "irnn" in default_cells()
