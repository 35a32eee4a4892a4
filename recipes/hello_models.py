"""Trains three networks that are small enough to compute by hand: an Elman network, a GRU and an LSTM of three units
that write "hello". A minute of one CPU core.

    recipes/hello_models.py OUT [SEEDS]     writes OUT/hello, OUT/hello-gru, OUT/hello-lstm; of five seeds by default

So that a pencil will do: a symbol is a vector of one 1 and zeros, the end of a text a vector of zeros; the second bias
of each gate is 0; every weight is rounded to one decimal. Noise of that size is added in training, and of several seeds
the one is kept whose rounded network is surest of its worst symbol. It fails where none still writes "hello".
"""

import sys
from pathlib import Path

import torch

from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import END, UNKNOWN, Vocabulary

TEXT = "hello"
SYMBOLS = (UNKNOWN, END, "h", "e", "l", "o")
NAMES = {"elman": "hello", "gru": "hello-gru", "lstm": "hello-lstm"}
UNITS, STEPS, SEEDS = 3, 1500, 5
NOISE = 0.05  # half of what rounding to one decimal can do
NEVER = -9.0  # the score of a symbol that does not occur


def made(cell: str) -> LanguageModel:
    """An untrained network whose symbols are vectors of one 1."""
    model = LanguageModelSettings(cell=cell, hidden=UNITS, embedding=len(TEXT) - 1)
    settings = LMSettings(text=TextSettings(unit="char"), model=model)
    network = RecurrentLM(settings.model, vocab_size=len(SYMBOLS))
    with torch.no_grad():
        network.encoder.embedding.weight.zero_()
        network.encoder.embedding.weight[2:] = torch.eye(len(SYMBOLS) - 2)
        network.softmax.weight[0].zero_()
        network.softmax.bias[0] = NEVER
        for name, weight in network.named_parameters():
            if name.endswith("bias_hh"):
                weight.zero_()
    return LanguageModel(network, Vocabulary(SYMBOLS), settings)


def trained(cell: str, seed: int) -> LanguageModel:
    """A network that has learned the text, with rounded weights."""
    torch.manual_seed(seed)
    model = made(cell)
    network = model.network
    assert isinstance(network, RecurrentLM)
    learnt = [w for name, w in network.named_parameters() if not name.endswith(("bias_hh", "embedding.weight"))]
    ids = torch.tensor([model.vocabulary.index[symbol] for symbol in (END, *TEXT, END)])
    optimizer = torch.optim.AdamW(learnt, lr=0.03, weight_decay=0.02)
    for _ in range(STEPS):
        kept = [weight.detach().clone() for weight in learnt]
        with torch.no_grad():
            for weight in learnt:
                weight += NOISE * (2 * torch.rand_like(weight) - 1)
        x, _ = network.features(ids[None, :-1], network.initial_state(1))
        loss = torch.nn.functional.cross_entropy(network.softmax.logits(x[0]), ids[1:])
        gradients = torch.autograd.grad(loss, learnt)
        with torch.no_grad():
            for weight, before, gradient in zip(learnt, kept, gradients, strict=True):
                weight.copy_(before)
                weight.grad = gradient
            network.softmax.weight.grad[0] = 0.0  # type: ignore[index]
            network.softmax.bias.grad[0] = 0.0  # type: ignore[index]
        optimizer.step()
    with torch.no_grad():
        for weight in learnt:
            weight.copy_((weight * 10).round() / 10 + 0.0)  # without -0
    return model


@torch.no_grad()
def worst(model: LanguageModel) -> float:
    """The least probability of a symbol of the text, or of its end."""
    end = model.vocabulary.end
    ids = torch.tensor([[end, *model.encode(TEXT).tolist(), end]])
    nll, _ = model.network.nll(ids[:, :-1], ids[:, 1:], model.network.initial_state(1))
    return float((-nll).exp().min())


def main(out: Path, seeds: int = SEEDS) -> int:
    """Trains and saves all three."""
    for cell, name in NAMES.items():
        models = [trained(cell, seed) for seed in range(seeds)]
        best = max(models, key=worst)
        if best.generate(temperature=0.0, limit=20) != TEXT:
            print(f"{name}: none of {seeds} seeds writes {TEXT!r} with rounded weights", file=sys.stderr)
            return 1
        best.save_pretrained(out / name, results={"least probability of a symbol": round(worst(best), 4)})
        print(f"{name}: least probability of a symbol {worst(best):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
