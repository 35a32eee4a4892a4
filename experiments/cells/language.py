"""Language models of one cell on a fixed budget, and the speed of its layers beside torch's fused LSTM."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import relmo
from experiments.cells.train import match_hidden
from experiments.tables import require_data
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.syntax.agreement import ALL, agreement
from relmo.errors import RelmoError
from relmo.nn.recurrence import make_cell
from relmo.nn.recurrence.stack import Recurrent, has_scan
from relmo.settings.fields import setting_fields
from relmo.settings.lm import LanguageModelSettings
from relmo.text.minimal_pairs import read_pairs

VALID_FRACTION = 0.1
MAX_SPEED_SECONDS, MAX_ROUNDS = 20.0, 10


@dataclass(frozen=True, kw_only=True)
class LanguageBudget:
    """Budget of the language models, the same for all cells."""

    hidden: int = 192  # of the LSTM with whose number of parameters the others agree
    lr: float = 2e-3
    seed: int = 1
    characters: int = 3_000_000  # of tiny Shakespeare, read in training
    words: int = 2_000_000  # of WikiText-2
    vocabulary: int = 10_000
    pairs: int = 50  # of each paradigm of BLiMP
    lags: int = 200  # of the gradients
    positions: int = 64


@dataclass(frozen=True, kw_only=True)
class SpeedBudget:
    """Sizes of the speed measurement."""

    hidden: int = 256  # of the LSTM
    batch: int = 32
    length: int = 128


def cell_settings(cell: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell and its options as keywords of `relmo.train`."""
    names = [name for name in options if name in setting_fields(LanguageModelSettings)]
    others = [f"{name}={str(value).lower()}" for name, value in options.items() if name not in names]
    keywords = {"cell": cell} | {name: options[name] for name in names}
    return keywords | ({"cell_options": others} if others else {})


def train_model(
    text: Path, out: Path, cell: str, options: Mapping[str, Any], budget: LanguageBudget, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Train a language model; return it, or None if it diverged, and what the records of both texts have in common."""
    hidden, parameters = match_hidden(cell, options, budget.hidden)
    record: dict[str, Any] = {"cell": cell, "options": dict(options), "hidden": hidden, "parameters": parameters}
    start, cpu_start = time.monotonic(), time.process_time()
    try:
        model = relmo.train(
            "lm",
            str(text),
            out=out,
            overwrite=True,
            progress=False,
            hidden=hidden,
            embedding=budget.hidden,
            lr=budget.lr,
            seed=budget.seed,
            **cell_settings(cell, options),
            **settings,
        )
    except RelmoError as error:
        if "nan" not in str(error) and "inf" not in str(error):
            raise
        return None, record | {"diverged": str(error)}
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
    return model, record | {
        "results": model.results,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def measure_shakespeare(
    out: Path, data: Path, cell: str, options: Mapping[str, Any], budget: LanguageBudget, device: str
) -> dict[str, Any]:
    """Return bits per character of tiny Shakespeare, and the lags at which the gradient falls below 1%."""
    text = require_data(data, "lm/tinyshakespeare/input.txt", "tiny Shakespeare")
    characters = (1 - VALID_FRACTION) * text.stat().st_size
    model, record = train_model(
        text, out, cell, options, budget, valid_fraction=VALID_FRACTION, epochs=budget.characters / characters,
        batch=32, unroll=100, device=device,
    )  # fmt: skip
    if model is None:
        return record
    held_out = text.read_text(encoding="utf-8")[int(characters) :]
    flow = gradient_flow(model, held_out, lags=budget.lags, positions=budget.positions)
    reach = {curve.of: curve.memory for curve in flow.curves}
    return record | {"bits_per_character": model.results["valid_bits_per_character"], "reach": reach}


def measure_wikitext(
    out: Path, data: Path, cell: str, options: Mapping[str, Any], budget: LanguageBudget, device: str
) -> dict[str, Any]:
    """Return the perplexity of WikiText-2's validation part, and the accuracy of the same model on BLiMP."""
    text = require_data(data, "lm/wikitext-2/wiki.train.tokens", "WikiText-2")
    valid = require_data(data, "lm/wikitext-2/wiki.valid.tokens", "WikiText-2")
    num_words = len(text.read_bytes().split()) + text.read_bytes().count(b"\n")
    model, record = train_model(
        text, out, cell, options, budget, valid=str(valid), unit="word", tokenizer="whitespace", batch=32, unroll=35,
        vocabulary_size=budget.vocabulary, softmax="adaptive", dropout=0.2, epochs=budget.words / num_words,
        device=device,
    )  # fmt: skip
    if model is None:
        return record
    paradigms = sorted(require_data(data, "tasks/agreement/blimp", "BLiMP").glob("*.jsonl"))
    pairs = [pair for path in paradigms for pair in read_pairs(path)[: budget.pairs]]
    report = agreement(model, pairs, control=False)
    shares = [condition.model.share.value for condition in report.conditions if condition.name != ALL]
    return record | {"perplexity": model.results["valid_perplexity"], "blimp": float(np.mean(shares))}


def measure_speed(cell: str, options: Mapping[str, Any], budget: SpeedBudget, device: str) -> dict[str, Any]:
    """Return training tokens per second of one layer, and their ratio to the fused LSTM, measured in turn."""
    hidden, parameters = match_hidden(cell, options, budget.hidden)
    reference = Recurrent(make_cell("lstm", budget.hidden), input_size=budget.hidden).to(device)
    stack = Recurrent(make_cell(cell, hidden, **options), input_size=budget.hidden).to(device)
    x = torch.randn(budget.batch, budget.length, budget.hidden, device=device)
    for network in (reference, stack):
        _time_step(network, x)
    pairs: list[tuple[float, float]] = []
    start = time.monotonic()
    while len(pairs) < 3 or (len(pairs) < MAX_ROUNDS and time.monotonic() - start < MAX_SPEED_SECONDS):
        pairs.append((_time_step(reference, x), _time_step(stack, x)))
    first_cell, tokens = stack.cells[0][0], budget.batch * budget.length
    return {
        "cell": cell,
        "options": dict(options),
        "hidden": hidden,
        "parameters": parameters,
        "backend": "fused" if first_cell.fused else "scan" if has_scan(first_cell) else "steps",
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "tokens_per_second": round(tokens / median(seconds for _, seconds in pairs)),
        "lstm_tokens_per_second": round(tokens / median(seconds for seconds, _ in pairs)),
        "ratio": median(lstm / other for lstm, other in pairs),
    }


def _time_step(network: Recurrent, x: torch.Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    network(x).output.sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
