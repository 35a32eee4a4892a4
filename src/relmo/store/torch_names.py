"""Tensors of a biLM as AllenNLP and ELMoForManyLangs name and store them.

`ALLENNLP` and `MANY_LANGS` are the tables of names. Two conventions differ from relmo's: the bias of the forget gate
includes the constant 1 that relmo adds, and the gate of a highway layer multiplies the input, not the transform, so
that its sign is reversed.
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
    """Names of tensors in a tool, without `.weight` and `.bias`. {} is an index, {d} forward or backward."""

    characters: str
    words: str
    convolution: str
    highway: str
    projection: str
    lstm: str
    padding: int
    """Number of zero rows before the vector of the first character."""


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
    """Stored tensor: its name and shape, and the tensors of the network that it fills, in the order of its rows.

    The network's tensors are `signs` times the stored ones, without the `padding` rows; `forget` are the rows of a bias
    that include the constant."""

    name: str
    shape: tuple[int, ...]
    views: list[Tensor]
    signs: tuple[int, ...] = (1,)
    padding: int = 0
    forget: slice | None = None


def layout(network: BiLMNetwork, names: Names) -> Iterator[Part]:
    """Yield the tensors that a tool stores for this network."""

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
    """Copy a stored tensor, which has the shape of the part, to the network."""
    rows = stored[part.padding :].split([len(view) for view in part.views])
    for view, view_rows, sign in zip(part.views, rows, part.signs, strict=True):
        view.copy_(sign * view_rows)
    if part.forget is not None:
        part.views[0][part.forget] -= FORGET_BIAS


def read_network(
    network: BiLMNetwork, names: Names, tensors: Mapping[str, StoredTensor], where: Mapping[str, str], settings: str
) -> BiLMNetwork:
    """Fill a network that has no memory yet with the stored tensors.

    Messages name the file of a tensor, `where`, and the source of the network's sizes, `settings`."""
    for part in layout(network, names):
        tensor = tensors.get(part.name)
        if tensor is None or tensor.shape != part.shape:
            shape = "missing" if tensor is None else " x ".join(map(str, tensor.shape))
            expected = " x ".join(map(str, part.shape))
            raise ModelError(f"{where[part.name]}: '{part.name}' is {shape}; by {settings} it is {expected}")
    network = network.to_empty(device="cpu")
    for part in layout(network, names):
        values = np.array(tensors[part.name].read(), dtype=np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{where[part.name]}: '{part.name}' has values that are not finite numbers")
        fill(part, torch.from_numpy(values))
    return network.eval()
