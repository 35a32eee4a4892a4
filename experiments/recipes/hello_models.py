"""Train three networks that are small enough to compute by hand: an Elman network, a GRU and an LSTM of three units
that write "hello". One minute on one CPU core.

    python -m experiments.recipes.hello_models OUT [SEEDS]     writes OUT/hello, OUT/hello-gru, OUT/hello-lstm; default:
    5

For computation by hand, symbols are one-hot vectors and the end of a text is the zero vector; the second bias of each
gate is 0; every weight is rounded to one decimal. Noise of that size is added in training, and of several seeds the
best rounded network is chosen, by the probability of its worst symbol. The script fails if none writes "hello".
"""

import sys
from pathlib import Path
from typing import Any

import torch

from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import END, UNKNOWN, Vocabulary

TEXT = "hello"
SYMBOLS = (UNKNOWN, END, "h", "e", "l", "o")
NAMES = {"elman": "hello", "gru": "hello-gru", "lstm": "hello-lstm"}
NUM_UNITS, NUM_STEPS, NUM_SEEDS = 3, 1500, 5
NOISE = 0.05  # the largest rounding error
UNKNOWN_BIAS = -9.0  # the unknown symbol never occurs


def make_model(cell: str) -> LanguageModel:
    """Return an untrained network with one-hot embeddings."""
    model = LanguageModelSettings(cell=cell, hidden=NUM_UNITS, embedding=len(TEXT) - 1)
    settings = LMSettings(text=TextSettings(unit="char"), model=model)
    network = RecurrentLM(settings.model, vocab_size=len(SYMBOLS))
    softmax: Any = network.softmax
    with torch.no_grad():
        network.encoder.embedding.weight.zero_()
        network.encoder.embedding.weight[2:] = torch.eye(len(SYMBOLS) - 2)
        softmax.weight[0].zero_()
        softmax.bias[0] = UNKNOWN_BIAS
        for name, weight in network.named_parameters():
            if name.endswith("bias_hh"):
                weight.zero_()
    return LanguageModel(network, Vocabulary(SYMBOLS), settings)


def train_model(cell: str, seed: int) -> LanguageModel:
    """Return a network trained on the text, with rounded weights."""
    torch.manual_seed(seed)
    model = make_model(cell)
    network: Any = model.network
    weights = [w for name, w in network.named_parameters() if not name.endswith(("bias_hh", "embedding.weight"))]
    ids = torch.tensor([model.vocabulary.index[symbol] for symbol in (END, *TEXT, END)])
    optimizer = torch.optim.AdamW(weights, lr=0.03, weight_decay=0.02)
    for _ in range(NUM_STEPS):
        originals = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                weight += NOISE * (2 * torch.rand_like(weight) - 1)
        x, _ = network.features(ids[None, :-1], network.initial_state(1))
        loss = torch.nn.functional.cross_entropy(network.softmax.logits(x[0]), ids[1:])
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, original, gradient in zip(weights, originals, gradients, strict=True):
                weight.copy_(original)
                weight.grad = gradient
            network.softmax.weight.grad[0] = 0.0
            network.softmax.bias.grad[0] = 0.0
        optimizer.step()
    with torch.no_grad():
        for weight in weights:
            weight.copy_((weight * 10).round() / 10 + 0.0)  # without -0
    return model


@torch.no_grad()
def min_probability(model: LanguageModel) -> float:
    """Return the smallest probability of a symbol of the text or of its end."""
    end = model.vocabulary.end
    ids = torch.tensor([[end, *model.encode(TEXT).tolist(), end]])
    nll, _ = model.network.nll(ids[:, :-1], ids[:, 1:], model.network.initial_state(1))
    return float((-nll).exp().min())


def main(out: Path, seeds: int = NUM_SEEDS) -> int:
    """Train and save all three models."""
    for cell, name in NAMES.items():
        models = [train_model(cell, seed) for seed in range(seeds)]
        best = max(models, key=min_probability)
        if best.generate(temperature=0.0, limit=20) != TEXT:
            print(f"{name}: none of {seeds} seeds writes {TEXT!r} with rounded weights", file=sys.stderr)
            return 1
        best.save_pretrained(out / name, results={"least probability of a symbol": round(min_probability(best), 4)})
        print(f"{name}: least probability of a symbol {min_probability(best):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
