"""A tagger with ELMo as AllenNLP saves one, made from the numbers of an original ELMo file by what is known of its
format: names, shapes, the order of gates, the constant in the forget gate's bias, the sign of the highway's gate."""

import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support import original_elmo

NAME = "text_field_embedder.token_embedder_elmo._elmo"
MIX, GAMMA = (0.3, -0.2, 0.9), 1.7
OPTIONS = original_elmo.options_of(max_characters_per_token=50)


def bilm(options: dict[str, Any], weights: original_elmo.Weights) -> dict[str, Tensor]:
    """The tensors of the biLM, by AllenNLP's names."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    found = {"_token_embedder._char_embedding_weights": np.pad(weights["char_embed"], ((1, 0), (0, 0)))}
    for i in range(len(cnn["filters"])):
        found[f"_token_embedder.char_conv_{i}.weight"] = weights[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)
        found[f"_token_embedder.char_conv_{i}.bias"] = weights[f"CNN/b_cnn_{i}"]
    for k in range(cnn["n_highway"]):
        both = {kind: weights[f"CNN_high_{k}/{kind}_transform"] for kind in "Wb"}
        gate = {kind: -weights[f"CNN_high_{k}/{kind}_carry"] for kind in "Wb"}
        name = f"_token_embedder._highways._layers.{k}"
        found[f"{name}.weight"] = np.concatenate([both["W"].T, gate["W"].T])
        found[f"{name}.bias"] = np.concatenate([both["b"], gate["b"]])
    found["_token_embedder._projection.weight"] = weights["CNN_proj/W_proj"].T
    found["_token_embedder._projection.bias"] = weights["CNN_proj/b_proj"]
    for d, direction in enumerate(("forward", "backward")):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            i, j, f, o = np.split(weights[f"{cell}/W_0"].T, 4)
            rows = np.concatenate([i, f, j, o])
            i, j, f, o = np.split(weights[f"{cell}/B"], 4)
            name = f"_elmo_lstm.{direction}_layer_{layer}"
            found[f"{name}.input_linearity.weight"] = rows[:, : lstm["projection_dim"]]
            found[f"{name}.state_linearity.weight"] = rows[:, lstm["projection_dim"] :]
            found[f"{name}.state_linearity.bias"] = np.concatenate([i, f + 1, j, o])
            found[f"{name}.state_projection.weight"] = weights[f"{cell}/W_P_0"].T
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}


def tagger(options: dict[str, Any] = OPTIONS, *, projection: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """All tensors of the tagger: ELMo, its mix, and parts that are none of ours, integers among them."""
    weights = original_elmo.random_weights(options, seed=seed, scale=0.5)
    found = {f"{NAME}._elmo_lstm.{name}": tensor for name, tensor in bilm(options, weights).items()}
    found[f"{NAME}.scalar_mix_0.gamma"] = torch.tensor([GAMMA])
    found |= {f"{NAME}.scalar_mix_0.scalar_parameters.{k}": torch.tensor([w]) for k, w in enumerate(MIX)}
    if projection:
        found["text_field_embedder.token_embedder_elmo._projection.weight"] = torch.randn(4, 12)
        found["text_field_embedder.token_embedder_elmo._projection.bias"] = torch.randn(4)
    found["encoder._module.weight_ih_l0"] = torch.randn(8, 12)
    return found | {"count": torch.tensor(3), "mask": torch.tensor([True, False]), "small": torch.ones(2).int()}


def layers(words: list[str], options: dict[str, Any] = OPTIONS, state: Any = None) -> np.ndarray:
    """What the tagger's ELMo gives for a sentence: every layer, in float64."""
    return original_elmo.layers(words, options, original_elmo.random_weights(options, scale=0.5), state)


def mixed(words: list[str], options: dict[str, Any] = OPTIONS) -> np.ndarray:
    """What its mix makes of them."""
    shares = np.exp(MIX) / np.exp(MIX).sum()
    return GAMMA * np.tensordot(shares, layers(words, options), axes=1)


def config(**elmo: Any) -> dict[str, Any]:
    """The tagger's configuration."""
    embedder = {"type": "elmo_token_embedder", "options_file": "/gone/options.json", "weight_file": "/gone/w.hdf5"}
    embedders = {"tokens": {"type": "embedding", "embedding_dim": 4}, "elmo": embedder | elmo}
    return {"model": {"type": "simple_tagger", "text_field_embedder": {"token_embedders": embedders}}}


def th(tensors: dict[str, Any], *, old: bool = False) -> bytes:
    """What torch saves of these, in its old layout or its present one."""
    file = BytesIO()
    torch.save(tensors, file, _use_new_zipfile_serialization=not old)
    return file.getvalue()


def archive(path: Path, files: dict[str, bytes]) -> Path:
    """A .tar.gz with these files."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return path


def write(folder: Path) -> None:
    """The folder that a tagger was trained in."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "best.th").write_bytes(th(tagger()))
