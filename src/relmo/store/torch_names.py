"""The biLM's tensors as AllenNLP and ELMoForManyLangs name and store them.

The names are data: `ALLENNLP` and `MANY_LANGS` are the two tables. Two things are written otherwise there for the same
numbers. The forget gate's bias holds the constant 1 that ours adds. The gate of a highway layer keeps the input where
ours keeps the transform, so its sign is turned.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.disk.state_dict import StoredTensor
from relmo.errors import ModelError
from relmo.networks.bilm import BiLMNetwork, DictionaryEncoder, WordEncoder
from relmo.nn.elmo_lstm import FORGET_BIAS


class Names(NamedTuple):
    """What a tool calls its tensors, `.weight` and `.bias` left out. {} is a number, {d} forward or backward."""

    characters: str
    words: str
    convolution: str
    highway: str
    projection: str
    lstm: str
    padding: int
    """How many rows of zeros stand before the first character's vector."""


ALLENNLP = Names(
    characters="_token_embedder._char_embedding_weights",
    words="",
    convolution="_token_embedder.char_conv_{}",
    highway="_token_embedder._highways._layers.{}",
    projection="_token_embedder._projection",
    lstm="_elmo_lstm.{d}_layer_{}",
    padding=1,
)
MANY_LANGS = Names(
    characters="char_emb_layer.embedding.weight",
    words="word_emb_layer.embedding.weight",
    convolution="convolutions.{}",
    highway="highways._layers.{}",
    projection="projection",
    lstm="{d}_layer_{}",
    padding=0,
)
DIRECTIONS = ("forward", "backward")


class Part(NamedTuple):
    """A tensor as a tool stores it: its name and shape, and our tensors that it fills, in its order of rows. Ours are
    `signs` times what is stored; `padding` rows have no place in ours; `forget` is where a bias holds the constant."""

    name: str
    shape: tuple[int, ...]
    views: list[Tensor]
    signs: tuple[int, ...] = (1,)
    padding: int = 0
    forget: slice | None = None


def layout(network: BiLMNetwork, names: Names) -> Iterator[Part]:
    """Every tensor that such a tool stores of this network."""

    def part(name: str, *views: Tensor, signs: tuple[int, ...] = (1,), padding: int = 0) -> Part:
        return Part(name, (padding + sum(map(len, views)), *views[0].shape[1:]), list(views), signs, padding)

    encoder = network.encoder
    assert not isinstance(encoder, WordEncoder)
    yield part(names.characters, encoder.cnn.embedding, padding=names.padding)
    if isinstance(encoder, DictionaryEncoder) and encoder.words is not None:
        yield part(names.words, encoder.words.weight)
    for i, (weight, bias) in enumerate(zip(encoder.cnn.weights, encoder.cnn.biases, strict=True)):
        yield part(f"{names.convolution.format(i)}.weight", weight)
        yield part(f"{names.convolution.format(i)}.bias", bias)
    for i, highway in enumerate(encoder.highways):
        name, transform, carry = names.highway.format(i), highway.transform, highway.carry
        yield part(f"{name}.weight", transform.weight, carry.weight, signs=(1, -1))  # type: ignore[arg-type,union-attr]
        yield part(f"{name}.bias", transform.bias, carry.bias, signs=(1, -1))  # type: ignore[arg-type,union-attr]
    if encoder.projection is not None:
        yield part(f"{names.projection}.weight", encoder.projection.weight)
        yield part(f"{names.projection}.bias", encoder.projection.bias)
    for depth, layer in enumerate(network.lstm.stack):
        forget = slice(layer.hidden_size, 2 * layer.hidden_size)
        for d, direction in enumerate(DIRECTIONS):
            name = names.lstm.format(depth, d=direction)
            yield part(f"{name}.input_linearity.weight", layer.weight_ih[d])
            yield part(f"{name}.state_linearity.weight", layer.weight_hh[d])
            yield part(f"{name}.state_linearity.bias", layer.bias[d])._replace(forget=forget)
            if layer.weight_hr is not None:
                yield part(f"{name}.state_projection.weight", layer.weight_hr[d])


@torch.no_grad()
def fill(part: Part, stored: Tensor) -> None:
    """Puts a stored tensor, which has the part's shape, into ours."""
    rows = stored[part.padding :].split([len(view) for view in part.views])
    for view, own, sign in zip(part.views, rows, part.signs, strict=True):
        view.copy_(sign * own)
    if part.forget is not None:
        part.views[0][part.forget] -= FORGET_BIAS


def read_network(
    network: BiLMNetwork, names: Names, tensors: Mapping[str, StoredTensor], where: Mapping[str, str], settings: str
) -> BiLMNetwork:
    """The network, which has no memory yet, with the stored tensors. `where` says in which file a tensor is or should
    be, `settings` where the network's sizes come from; messages name both."""
    for part in layout(network, names):
        found = tensors.get(part.name)
        if found is None or found.shape != part.shape:
            what = "missing" if found is None else " x ".join(map(str, found.shape))
            expected = " x ".join(map(str, part.shape))
            raise ModelError(f"{where[part.name]}: '{part.name}' is {what}; by {settings} it is {expected}")
    network = network.to_empty(device="cpu")
    for part in layout(network, names):
        values = np.array(tensors[part.name].read(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{where[part.name]}: '{part.name}' has values that are not finite numbers")
        fill(part, torch.from_numpy(values))
    return network.eval()
