"""AllenNLP's `_ElmoBiLm`: character ids to all layers, including the vectors of sentence boundaries.

`_token_embedder` and `_elmo_lstm` are views of its two halves, created on access. Scripts freeze one of them, reset its
states, or make it stateless.
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
from relmo.nn.recurrence.stack import expand_mask
from relmo.store.allennlp import ALLENNLP, layout
from relmo.text.characters import CHARACTERS, END_OF_WORD

COLUMNS = 50
"""Character ids of a word in AllenNLP; they are converted for models with another number."""
PADDING_INDEX = 0  # of a cached vocabulary
PADDING = CHARACTERS  # character id after the end of a word
FilePath = str | Path | None
CACHE_BATCH = 4096  # words of a cached vocabulary that are encoded together


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Return the character ids of tokenised sentences: (sentences, words, 50), zero for padding."""
    return core.sentence_ids(batch, COLUMNS)


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors (B, T, D) and mask (B, T), zero for padding, from vectors and mask of T + 2 with boundaries."""
    lengths = mask.sum(dim=1) - 2
    words = torch.arange(mask.shape[1] - 2, device=mask.device) < lengths.unsqueeze(1)
    return tensor[:, 1:-1] * words.unsqueeze(2), words.to(mask.dtype)


class _ElmoBiLm(core.Elmo):
    """The biLM of two files, or a loaded one (`model`), with states that are carried from batch to batch.

    `vocab_to_cache` lists words, the first of which stands for padding; their token vectors are computed once, and
    `forward` takes their indices as `word_inputs`. With `requires_grad` only their spelling is cached and the vectors
    are computed in each batch, so that gradients are right.
    """

    cached_ids: Tensor | None
    cached_vectors: Tensor | None

    def __init__(
        self,
        options_file: FilePath,
        weight_file: FilePath,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        model: BiLM | BiLMNetwork | None = None,
    ):
        model = load_files(options_file, weight_file) if model is None else model
        network = model.network if isinstance(model, BiLM) else model
        if not isinstance(network.encoder, CharacterEncoder):
            raise SettingError("AllenNLP's classes need a model that reads characters; use relmo.Elmo for this one")
        super().__init__(model, mixes=0, trainable=requires_grad, state="carry")
        self.num_layers = network.layer_count  # the token layer and the LSTMs
        ids = None if vocab_to_cache is None else core.sentence_ids([list(vocab_to_cache)], self.max_characters)[0]
        self.register_buffer("cached_ids", ids, persistent=False)
        self.register_buffer("cached_vectors", None, persistent=False)
        self.register_load_state_dict_pre_hook(_convert_state_dict)
        self.train()

    @property
    def _token_embedder(self) -> "_ElmoCharacterEncoder":
        return _ElmoCharacterEncoder(None, None, bilm=self)

    @property
    def _elmo_lstm(self) -> "_ElmoLstm":
        return _ElmoLstm(self)

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return self.size

    def train(self, mode: bool = True) -> "_ElmoBiLm":
        """Set the mode; the biLM itself never applies dropout, even when fine-tuned."""
        super().train(mode)
        self.network.eval()
        return self

    @property
    def learns(self) -> bool:
        """Whether any of its weights requires a gradient."""
        return any(parameter.requires_grad for parameter in self.network.parameters())

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Return `activations`, every layer (B, T + 2, D), and `mask` (B, T + 2), true for words and boundaries.

        inputs         character ids (B, T, 50), zero for padding
        word_inputs    with a cached vocabulary, the words' indices (B, T); if one is out of range, the batch is read by
                       characters
        """
        vocabulary, indices = self.cached_ids, word_inputs
        if vocabulary is None or indices is None or bool(((indices < 0) | (indices >= len(vocabulary))).any()):
            vocabulary = indices = None
        with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
            if vocabulary is None or indices is None:
                mask = _word_mask(inputs)
                tokens, ends = self.encode(inputs, mask)
            elif self.learns:
                mask = indices != PADDING_INDEX
                tokens, ends = self.encode(vocabulary[indices] * mask.unsqueeze(2), mask)
            else:
                mask = indices != PADDING_INDEX
                if self.cached_vectors is None:
                    chunks = []
                    for ids in vocabulary.split(CACHE_BATCH):
                        all_words = torch.ones(1, len(ids), dtype=torch.bool, device=ids.device)
                        chunks.append(self.encode(ids.unsqueeze(0), all_words))
                    self.cached_vectors = torch.cat([chunks[0][1], *(words[0] for words, _ in chunks)])
                tokens, ends = self.cached_vectors[indices + 2], self.cached_vectors[:2]
            layers, mask = self.read(tokens, ends, mask)
        return {"activations": list(layers), "mask": mask}

    def encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode words as the core does, but accept any row of ids, as AllenNLP: 0 is a character without a vector."""
        words = ids[mask]
        # Words of `batch_to_ids` have one end mark, and padding after it.
        inside, end = words != PADDING, words == END_OF_WORD
        length = inside.sum(dim=1, keepdim=True)
        prefix = torch.arange(words.shape[1], device=words.device) < length
        has_end = end.gather(1, (length - 1).clamp(min=0)).squeeze(1) & (end.sum(dim=1) == 1)
        if bool((has_end & (inside == prefix).all(dim=1) & (words > 0).all(dim=1)).all()):
            return super().encode(ids, mask)
        words = torch.cat([self.ends.to(ids.device), core.fit_columns(words, self.max_characters)])
        low, high = (int(bound) for bound in words.aminmax())
        if low < 0 or high > CHARACTERS:
            raise SettingError(f"character ids must be from 0 to {CHARACTERS}, not from {low} to {high}")
        # An encoder for ids that are greater by one, with a zero vector for 1; it assumes no order of the characters.
        encoder: Any = self.network.encoder
        shifted, cnn = copy.copy(encoder), copy.copy(encoder.cnn)
        cnn._parameters, cnn.fast = {}, False
        cnn.embedding = nn.functional.pad(encoder.cnn.embedding, (0, 0, 1, 0))
        shifted._modules = encoder._modules | {"cnn": cnn}
        vectors = shifted(words + 1)
        tokens = vectors.new_zeros(*mask.shape, vectors.shape[1])
        return tokens.index_put((mask,), vectors[2:]), vectors[:2]


class _ElmoCharacterEncoder(nn.Module):
    """The half of a biLM that encodes words by their characters, without context."""

    def __init__(
        self,
        options_file: FilePath,
        weight_file: FilePath,
        requires_grad: bool = False,
        *,
        bilm: _ElmoBiLm | None = None,
    ):
        super().__init__()
        bilm = _ElmoBiLm(options_file, weight_file, requires_grad) if bilm is None else bilm
        self.encoder = bilm.network.encoder
        self.bilm = (bilm,)  # a tuple, so that it is not a submodule

    def get_output_dim(self) -> int:
        """Return the size of a word vector."""
        return self.bilm[0].size // 2

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return `token_embedding` (B, T + 2, P), including boundaries, and `mask` (B, T + 2) of character ids
        (B, T, 50)."""
        (bilm,) = self.bilm
        with torch.set_grad_enabled(bilm.learns and torch.is_grad_enabled()):
            mask = _word_mask(inputs)
            tokens, mask = bilm.enclose(*bilm.encode(inputs, mask), mask)
        return {"mask": mask, "token_embedding": tokens}


class _ElmoLstm(nn.Module):
    """The LSTMs of a biLM and their carried states."""

    def __init__(self, bilm: _ElmoBiLm):
        super().__init__()
        self.lstm = bilm.network.lstm
        self.bilm = (bilm,)

    @property
    def stateful(self) -> bool:
        """Whether a batch starts from the final states of the previous one."""
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
        """Start the next batch from zero; with a mask (B,), only these rows."""
        if mask is None:
            self.bilm[0].reset_states()
        elif (states := self._states) is not None:
            rows = torch.zeros(len(states[0]), dtype=torch.bool, device=states[0].device)
            rows[: len(mask)] = mask.to(rows)[: len(rows)]
            pairs = zip(states, self.lstm.initial_state(len(rows)), strict=True)
            self._states = tuple(torch.where(expand_mask(rows, old), new, old) for old, new in pairs)


def _word_mask(ids: Tensor) -> Tensor:
    if ids.dim() != 3:
        raise SettingError(f"character ids must have the shape (sentences, words, {COLUMNS}), not {tuple(ids.shape)}")
    return (ids > 0).any(dim=2)


def _convert_state_dict(module: Any, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
    """Move a biLM with AllenNLP's names from a state dict into the module, and drop its cached vectors."""
    _, _, missing, _, errors = arguments
    module.cached_vectors = None
    if not any(name.startswith((f"{prefix}_token_embedder.", f"{prefix}_elmo_lstm.")) for name in state):
        return
    state.pop(f"{prefix}_word_embedding.weight", None)  # a cached vocabulary, which is recomputed
    for part in layout(module.network, ALLENNLP):
        name, stored = prefix + part.name, state.pop(prefix + part.name, None)
        if stored is None:
            missing.append(name)
        elif tuple(stored.shape) != part.shape:
            errors.append(f"{name} has the shape {tuple(stored.shape)}; the model needs {part.shape}")
        else:
            part.fill(stored)
    state |= {f"{prefix}network.{name}": tensor for name, tensor in module.network.state_dict().items()}


def load_files(options: FilePath, weights: FilePath, *, required: bool = True) -> BiLM:
    """Load the biLM of two files; without files the bundled one, unless they are `required`."""
    if options is None and weights is None and not required:
        return load(kinds="bilm", device="cpu")
    if options is None or weights is None:
        raise SettingError("options_file and weight_file are missing: the paths of an original model's two files")
    return load((options, weights), kinds="bilm", device="cpu")
