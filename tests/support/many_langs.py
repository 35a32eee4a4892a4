"""A folder in the layout of ELMoForManyLangs, and its vectors by the published equations: in plain torch, a word and a
step at a time, with nothing of relmo."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 0.5, "proj_clip": 0.2, "dim": 10, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 4], [2, 3], [3, 5]],
        "n_highway": 2,
        "word_dim": 5,
        "char_dim": 4,
        "max_characters_per_token": 9,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8192},
    "dropout": 0.1,
}
CHARACTERS = ["<bos>", "<eos>", "<bow>", "<eow>", "<oov>", "<pad>", *"abcdeхлоп水銀行"]
WORDS = ["<bos>", "<eos>", "<oov>", "<pad>", "bad", "cab", "хлоп", "水", "deadbea"]


def state_dicts(settings: dict[str, Any], seed: int = 0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random weights by their published names."""
    random = torch.Generator().manual_seed(seed)
    tokens, encoder = settings["token_embedder"], settings["encoder"]
    filters, size = tokens["filters"], sum(count for _, count in tokens["filters"])
    shapes = {"char_emb_layer.embedding.weight": (len(CHARACTERS), tokens["char_dim"])}
    if tokens["word_dim"]:
        shapes["word_emb_layer.embedding.weight"] = (len(WORDS), tokens["word_dim"])
    for i, (width, count) in enumerate(filters):
        shapes |= {f"convolutions.{i}.weight": (count, tokens["char_dim"], width), f"convolutions.{i}.bias": (count,)}
    for i in range(tokens["n_highway"]):
        shapes |= {f"highways._layers.{i}.weight": (2 * size, size), f"highways._layers.{i}.bias": (2 * size,)}
    width = encoder["projection_dim"]
    shapes |= {"projection.weight": (width, size + tokens["word_dim"]), "projection.bias": (width,)}
    recurrent: dict[str, tuple[int, ...]] = {}
    for layer in range(encoder["n_layers"]):
        for way in ("forward", "backward"):
            name, cells = f"{way}_layer_{layer}", encoder["dim"]
            recurrent |= {
                f"{name}.input_linearity.weight": (4 * cells, width),
                f"{name}.state_linearity.weight": (4 * cells, width),
                f"{name}.state_linearity.bias": (4 * cells,),
                f"{name}.state_projection.weight": (width, cells),
            }
    return tuple(  # type: ignore[return-value]
        {name: torch.randn(shape, generator=random) * 0.6 for name, shape in part.items()}
        for part in (shapes, recurrent)
    )


def write(folder: Path, settings: dict[str, Any] = SETTINGS, *, old: bool = True, seed: int = 0) -> None:
    """The folder, its tensors in torch's old layout or in its present one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"seed": 1, "config_path": "/users4/somebody/configs/sample.json"}))
    (folder / "sample.json").write_text(json.dumps(settings))
    for name, symbols in (("char.dic", CHARACTERS), ("word.dic", WORDS)):
        (folder / name).write_text("".join(f"{s}\t{i}\n" for i, s in enumerate(symbols)), encoding="utf-8")
    for name, tensors in zip(("token_embedder.pkl", "encoder.pkl"), state_dicts(settings, seed), strict=True):
        torch.save(tensors, folder / name, _use_new_zipfile_serialization=not old)


def token(word: str, weights: dict[str, Tensor], settings: dict[str, Any]) -> Tensor:
    """The vector of a word by itself; a boundary is <bos> or <eos>."""
    options = settings["token_embedder"]
    room = options["max_characters_per_token"]
    word = word[: room - 2]
    number = {symbol: i for i, symbol in enumerate(CHARACTERS)}
    inner = [word] if word in ("<bos>", "<eos>") else list(word)
    row = ["<eow>", *inner, "<bow>"]
    ids = [number.get(c, number["<oov>"]) for c in row + ["<pad>"] * (room - len(row))]
    x = weights["char_emb_layer.embedding.weight"][ids].T.unsqueeze(0)  # (1, E, C)
    parts = []
    for i in range(len(options["filters"])):
        y = torch.nn.functional.conv1d(x, weights[f"convolutions.{i}.weight"], weights[f"convolutions.{i}.bias"])
        parts.append(torch.relu(y.max(dim=-1).values[0]))
    y = torch.cat(parts)
    for i in range(options["n_highway"]):
        z = weights[f"highways._layers.{i}.weight"] @ y + weights[f"highways._layers.{i}.bias"]
        made, gate = torch.relu(z[: len(y)]), torch.sigmoid(z[len(y) :])
        y = gate * y + (1 - gate) * made
    if options["word_dim"]:
        table, words = weights["word_emb_layer.embedding.weight"], {w: i for i, w in enumerate(WORDS)}
        y = torch.cat([table[words.get(word, words["<oov>"])], y])
    return weights["projection.weight"] @ y + weights["projection.bias"]


def lstm(inputs: Tensor, name: str, weights: dict[str, Tensor], settings: dict[str, Any]) -> Tensor:
    """One layer in one direction over a sequence (T, P), from zero."""
    options = settings["encoder"]
    h, c = torch.zeros(options["projection_dim"]), torch.zeros(options["dim"])
    outputs = []
    for x in inputs:
        z = weights[f"{name}.input_linearity.weight"] @ x + weights[f"{name}.state_linearity.weight"] @ h
        i, f, g, o = (z + weights[f"{name}.state_linearity.bias"]).chunk(4)
        c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c
        c = c.clamp(-options["cell_clip"], options["cell_clip"])
        h = weights[f"{name}.state_projection.weight"] @ (torch.sigmoid(o) * torch.tanh(c))
        h = h.clamp(-options["proj_clip"], options["proj_clip"])
        outputs.append(h)
    return torch.stack(outputs)


def vectors(words: list[str], settings: dict[str, Any] = SETTINGS, seed: int = 0) -> Tensor:
    """Every layer of a sentence, (layers, words, 2P)."""
    tokens, recurrent = state_dicts(settings, seed)
    x = torch.stack([token(word, tokens, settings) for word in ["<bos>", *words, "<eos>"]])
    layers = [torch.cat([x, x], dim=1)]
    forward, backward = x, x.flip(0)
    for depth in range(settings["encoder"]["n_layers"]):
        ahead = lstm(forward, f"forward_layer_{depth}", recurrent, settings)
        behind = lstm(backward, f"backward_layer_{depth}", recurrent, settings)
        forward, backward = (ahead, behind) if depth == 0 else (ahead + forward, behind + backward)
        layers.append(torch.cat([forward, backward.flip(0)], dim=1))
    return torch.stack(layers)[:, 1:-1]
