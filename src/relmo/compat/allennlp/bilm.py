"""The biLM under AllenNLP's names: character ids in, every layer out, with the vectors of the boundaries.

`_token_embedder` and `_elmo_lstm` are views of its two halves, made when they are asked for. Scripts freeze one of
them, reset its states, or tell it not to keep any.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import relmo.networks.elmo as core
from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder
from relmo.store.torch_names import ALLENNLP, fill, layout
from relmo.text.characters import CHARACTERS, END_OF_WORD

COLUMNS = 50
"""How many character ids AllenNLP gives a word; they are laid out anew for a model with another number."""
NO_WORD = 0  # the place of padding in a cached vocabulary
PADDING = CHARACTERS  # the id of the columns behind a word's end


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """The character ids of sentences of words: (sentences, words, 50), zero past a sentence's end."""
    return core.sentence_ids(batch, COLUMNS)


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (B, T + 2, D) and mask (B, T + 2) with the boundaries -> both without, zero past a sentence's end."""
    lengths = mask.sum(dim=1) - 2
    words = torch.arange(mask.shape[1] - 2, device=mask.device) < lengths.unsqueeze(1)
    return tensor[:, 1:-1] * words.unsqueeze(2), words.to(mask.dtype)


class _ElmoBiLm(core.Elmo):
    """The biLM of two files, or a loaded one (`model`), and the states that it carries from batch to batch.

    `vocab_to_cache` lists words, the first standing for padding; their token vectors are computed once, and `forward`
    takes their places in the list as `word_inputs`. With `requires_grad` the list saves spelling them, but their
    vectors are computed anew in each batch, so that gradients are right.
    """

    cached_ids: Tensor | None
    cached_vectors: Tensor | None

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        model: BiLM | BiLMNetwork | None = None,
    ):
        super().__init__(_load(options_file, weight_file, model), mixes=0, trainable=requires_grad, state="carry")
        spelled = None if vocab_to_cache is None else core.sentence_ids([list(vocab_to_cache)], self.max_characters)[0]
        self.register_buffer("cached_ids", spelled, persistent=False)
        self.register_buffer("cached_vectors", None, persistent=False)
        self.register_load_state_dict_pre_hook(_rename)
        self.register_load_state_dict_post_hook(_forget_vectors)
        self.train()

    @property
    def num_layers(self) -> int:
        """How many layers a sentence's vectors have: the token layer and the LSTMs."""
        return self.network.layer_count

    @property
    def _token_embedder(self) -> "_ElmoCharacterEncoder":
        return _ElmoCharacterEncoder(None, None, bilm=self)

    @property
    def _elmo_lstm(self) -> "_ElmoLstm":
        return _ElmoLstm(self)

    def get_output_dim(self) -> int:
        """The size of a vector."""
        return self.size

    def train(self, mode: bool = True) -> "_ElmoBiLm":
        """Sets the mode, as in any module; the biLM has no dropout of its own, fine-tuned or not."""
        super().train(mode)
        self.network.eval()
        return self

    @property
    def learns(self) -> bool:
        """Whether any of its weights wants a gradient."""
        return any(parameter.requires_grad for parameter in self.network.parameters())

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Character ids (B, T, 50), zero where there is no word. With a cached vocabulary also the words' places in it
        (B, T); if one is not in it, the whole batch is read by its characters. -> `activations`, every layer
        (B, T + 2, D), and `mask` (B, T + 2), true where there is a word or a boundary"""
        words = self.cached_ids
        with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
            if words is None or word_inputs is None or ((word_inputs < 0) | (word_inputs >= len(words))).any():
                mask = _mask(inputs)
                tokens, ends = self.encode(inputs, mask)
            else:
                mask = word_inputs != NO_WORD
                tokens, ends = self._cached(words, word_inputs, mask)
            layers, mask = self.read(tokens, ends, mask)
        return {"activations": list(layers), "mask": mask}

    def encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """As the core does. Besides, a word may be any row of ids, as in AllenNLP: 0 is a character without a
        vector."""
        words = ids[mask]
        if bool(_spelled(words).all()):
            return super().encode(ids, mask)
        words = torch.cat([self.ends.to(ids.device), core.fit_columns(words, self.max_characters)])
        low, high = (int(bound) for bound in words.aminmax())
        if low < 0 or high > CHARACTERS:
            raise SettingError(f"character ids go from 0 to {CHARACTERS}; found {low} to {high}")
        assert isinstance(self.network.encoder, CharacterEncoder)
        vectors = _for_any_ids(self.network.encoder)(words + 1)
        tokens = vectors.new_zeros(*mask.shape, vectors.shape[1])
        return tokens.index_put((mask,), vectors[2:]), vectors[:2]

    def _cached(self, words: Tensor, places: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Token vectors of places in the cached vocabulary (B, T), and those of the boundaries."""
        if self.learns:
            return self.encode(words[places] * mask.unsqueeze(2), mask)
        if self.cached_vectors is None:
            there = [torch.ones(1, len(part), dtype=torch.bool, device=part.device) for part in words.split(4096)]
            chunks = [self.encode(part.unsqueeze(0), all_) for part, all_ in zip(words.split(4096), there, strict=True)]
            self.cached_vectors = torch.cat([chunks[0][1], *(tokens[0] for tokens, _ in chunks)])
        return self.cached_vectors[places + 2], self.cached_vectors[:2]


class _ElmoCharacterEncoder(nn.Module):
    """The half of a biLM that reads words by their characters, with no look at their neighbours."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        *,
        bilm: _ElmoBiLm | None = None,
    ):
        super().__init__()
        whole = _ElmoBiLm(options_file, weight_file, requires_grad) if bilm is None else bilm
        self.encoder = whole.network.encoder
        self.bilm = (whole,)  # in a tuple it is no part of this module

    def get_output_dim(self) -> int:
        """The size of a word's vector."""
        return self.bilm[0].size // 2

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Character ids (B, T, 50) -> `token_embedding` (B, T + 2, P), the boundaries' vectors among them, and `mask`
        (B, T + 2)."""
        (bilm,) = self.bilm
        with torch.set_grad_enabled(bilm.learns and torch.is_grad_enabled()):
            mask = _mask(inputs)
            tokens, mask = bilm.enclose(*bilm.encode(inputs, mask), mask)
        return {"mask": mask, "token_embedding": tokens}


class _ElmoLstm(nn.Module):
    """The LSTMs of a biLM, and the states that they carry."""

    def __init__(self, bilm: _ElmoBiLm):
        super().__init__()
        self.lstm = bilm.network.lstm
        self.bilm = (bilm,)

    @property
    def stateful(self) -> bool:
        """Whether a batch starts from the states in which the one before ended."""
        return self.bilm[0].state == "carry"

    @stateful.setter
    def stateful(self, value: bool) -> None:
        self.bilm[0].state = "carry" if value else "reset"

    @property
    def _states(self) -> Any:
        return self.bilm[0].carried

    @_states.setter
    def _states(self, value: Any) -> None:
        with self.bilm[0].carrying:
            self.bilm[0].carried = value

    def reset_states(self, mask: Tensor | None = None) -> None:
        """The next batch starts from zero again; with a mask (B,), these rows of it."""
        if mask is None:
            self.bilm[0].reset_states()
        elif (states := self._states) is not None:
            rows = torch.zeros(len(states[0]), dtype=torch.bool, device=states[0].device)
            rows[: len(mask)] = mask.to(rows)[: len(rows)]
            self._states = tuple(tensor.masked_fill(rows[:, None, None], 0) for tensor in states)


def _mask(ids: Tensor) -> Tensor:
    """Where there is a word (B, T), of character ids (B, T, C)."""
    if ids.dim() != 3:
        raise SettingError(f"character ids are (sentences, words, {COLUMNS}), not of shape {tuple(ids.shape)}")
    return (ids > 0).any(dim=2)


def _spelled(words: Tensor) -> Tensor:
    """Which words (N, C) are spelled as `batch_to_ids` does: to one end mark, and padding behind it."""
    inside, end = words != PADDING, words == END_OF_WORD
    length = inside.sum(dim=1, keepdim=True)
    first = torch.arange(words.shape[1], device=words.device) < length
    ended = end.gather(1, (length - 1).clamp(min=0)).squeeze(1) & (end.sum(dim=1) == 1)
    return ended & (inside == first).all(dim=1) & (words > 0).all(dim=1)


def _for_any_ids(encoder: CharacterEncoder) -> CharacterEncoder:
    """The same encoder for ids that are greater by one: 1 is a character without a vector. It takes nothing for granted
    about what follows what in a word."""
    cnn = copy.copy(encoder.cnn)
    cnn._parameters = {}
    cnn.fast = False
    cnn.embedding = nn.functional.pad(encoder.cnn.embedding, (0, 0, 1, 0))  # type: ignore[assignment]
    whole = copy.copy(encoder)
    whole._modules = encoder._modules | {"cnn": cnn}
    return whole


def _rename(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Takes a biLM by AllenNLP's names out of a state dict and into the module."""
    _, _, missing, _, errors = rest
    if not any(name.startswith((f"{prefix}_token_embedder.", f"{prefix}_elmo_lstm.")) for name in state):
        return
    state.pop(f"{prefix}_word_embedding.weight", None)  # a cached vocabulary, which is computed anew
    for part in layout(module.network, ALLENNLP):
        name, stored = prefix + part.name, state.pop(prefix + part.name, None)
        if stored is None:
            missing.append(name)
        elif tuple(stored.shape) != part.shape:
            errors.append(f"{name} is of shape {tuple(stored.shape)}; the model's is {part.shape}")
        else:
            fill(part, stored)
    state |= {f"{prefix}network.{name}": tensor for name, tensor in module.network.state_dict().items()}


def _forget_vectors(module: Any, _: Any) -> None:
    module.cached_vectors = None


def _load(options: str | Path | None, weights: str | Path | None, model: BiLM | BiLMNetwork | None) -> Any:
    """The biLM of two files, or the one that is given."""
    if model is not None:
        network = model.network if isinstance(model, BiLM) else model
        if not isinstance(network.encoder, CharacterEncoder):
            raise SettingError("these names are for models that read characters; relmo.Elmo takes this one")
        return model
    if options is None or weights is None:
        raise SettingError("give options_file and weight_file: the paths of an original model's two files")
    return load((options, weights), kinds="bilm", device="cpu")


def load_either(options: str | Path | None, weights: str | Path | None) -> BiLM:
    """The biLM of two files, or the one that ships where none are given."""
    if options is None and weights is None:
        return load(kinds="bilm", device="cpu")
    return _load(options, weights, None)
