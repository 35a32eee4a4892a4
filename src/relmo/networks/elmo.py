"""ELMo as a module for any network: word ids in, mixed vectors and a mask out.

    elmo = relmo.Elmo(relmo.load("models/mine"), mixes=2)
    first, second = elmo(elmo.ids([["A", "bank", "lends", "money", "."]])).representations

Choices:
- Sentences come without <S> and </S>, which are added here; their vectors are removed unless `keep_boundaries` is set.
- Each distinct word of a batch is encoded once.
- A frozen biLM runs without gradients and without dropout, whatever the mode of the network around it. With `trainable`
  it is fine-tuned with that network, and its dropout is on in training.
- Vectors in the padding are zero, also with layer norm.
- The output layer of the biLM is not needed: it is neither in the state dict nor among the parameters.

    Peters et al. 2018, Deep contextualized word representations
"""

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from relmo.errors import SettingError
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder, DictionaryEncoder
from relmo.nn import fork_safe_lock
from relmo.nn.pooling import ScalarMix
from relmo.nn.recurrence import State
from relmo.settings.fields import check_words, describe_value
from relmo.text.characters import BOS, CHARACTERS, EOS, Spellings, character_ids

_END_WORD, _PADDING = CHARACTERS - 1, CHARACTERS  # ids of the end-of-word mark and of the columns after it


class HasNetwork(Protocol):
    """Object with a network, such as `relmo.BiLM`."""

    network: BiLMNetwork
    vocabulary: Any


class ElmoOutput(NamedTuple):
    """Mixtures of the layers, each (B, T, 2P), and the mask (B, T), true for words."""

    representations: list[Tensor]
    mask: Tensor


class Elmo(nn.Module):
    """A biLM and `mixes` learned mixtures of its layers, `scalar_mix_0` and so on.

    The weights and the mode of the biLM are shared with the model that is passed.

    dropout          on the mixed vectors, in training
    layer_norm       normalise each layer before the mix, by the mean and variance of the batch
    norm_boundaries  with layer_norm: include <S> and </S> in mean and variance, as AllenNLP does; the original does not
    fixed            fixed weights of the layers (before the softmax) instead of learned ones
    trainable        let gradients reach the biLM
    keep_boundaries  return the vectors of <S> and </S> too: T + 2 positions instead of T
    state            reset: each sentence starts from zero. carry: row r starts from the final state of row r of the
                     previous batch, of any thread, until `reset_states`
    boundaries       word input only: ids of <S> and </S> in the vocabulary, if the model comes without one
    """

    ends: Tensor
    """Ids of <S> and </S>, as `forward` takes ids."""

    def __init__(
        self,
        model: BiLMNetwork | HasNetwork,
        *,
        mixes: int = 1,
        dropout: float = 0.5,
        layer_norm: bool = False,
        norm_boundaries: bool = False,
        fixed: Sequence[float] | None = None,
        trainable: bool = False,
        keep_boundaries: bool = False,
        state: Literal["reset", "carry"] = "reset",
        boundaries: tuple[int, int] = (0, 1),
    ):
        super().__init__()
        network = model if isinstance(model, BiLMNetwork) else model.network
        if not isinstance(model, BiLMNetwork) and model.vocabulary is not None:
            boundaries = model.vocabulary.index[BOS], model.vocabulary.index[EOS]
        if isinstance(network.encoder, DictionaryEncoder):
            raise SettingError("a model of ELMoForManyLangs cannot be part of a network; use `embed`")
        if state not in ("reset", "carry"):
            raise SettingError(f"state must be reset or carry, not {state!r}")
        if fixed is not None and len(fixed) != network.layer_count:
            raise SettingError(f"fixed must have {network.layer_count} weights, one per layer, not {len(fixed)}")
        if norm_boundaries and not layer_norm:
            raise SettingError("norm_boundaries has no effect without layer_norm; leave it out")
        self.network = without_output(network).requires_grad_(trainable)
        self.size = network.size
        self.trainable, self.state, self.mixes = trainable, state, mixes
        self.keep_boundaries, self.norm_boundaries = keep_boundaries, norm_boundaries
        for k in range(mixes):
            self.add_module(
                f"scalar_mix_{k}", ScalarMix(network.layer_count, layer_norm=layer_norm, fixed=fixed, epsilon=1e-12)
            )
        self.dropout = nn.Dropout(dropout)
        self.max_characters = network.encoder.cnn.max_characters if isinstance(network.encoder, CharacterEncoder) else 0
        self.by_characters = self.max_characters > 0
        ends = character_ids([BOS, EOS], self.max_characters) if self.by_characters else [b + 1 for b in boundaries]
        self.register_buffer("ends", torch.as_tensor(ends), persistent=False)
        self.carried: State | None = None
        self.carrying = fork_safe_lock()
        """Held by the thread whose batch continues from the carried state."""
        self.train()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "carrying"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.carrying = fork_safe_lock()

    @property
    def scalar_mixes(self) -> list[ScalarMix]:
        """Learned mixtures of the layers."""
        return [getattr(self, f"scalar_mix_{k}") for k in range(self.mixes)]

    def train(self, mode: bool = True) -> "Elmo":
        """Set the mode, as in any module; a frozen biLM stays in evaluation mode."""
        super().train(mode)
        if not self.trainable:
            self.network.eval()
        return self

    def reset_states(self) -> None:
        """Start the next batch from zero, with state "carry"."""
        with self.carrying:
            self.carried = None

    def l2(self) -> Tensor:
        """Return the squared norm of the weights of all mixtures, for the lambda penalty."""
        return torch.stack([mix.l2() for mix in self.scalar_mixes]).sum()

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Return the character ids (B, T, C) of sentences of words, for a model with character input."""
        if not self.by_characters:
            raise SettingError("this model has word input: use vocabulary.ids(words) + 1, and 0 for padding")
        return sentence_ids(sentences, self.max_characters).to(self.ends.device)

    def forward(self, ids: Tensor) -> ElmoOutput:
        """Embed character ids (B, T, C) or (B, N, T, C), or word ids + 1 (B, T) or (B, N, T), zero in the padding."""
        inner = 2 if self.by_characters else 1  # the dimensions of one sentence
        if ids.dim() not in (inner + 1, inner + 2):
            expected = "(B, T, C) or (B, N, T, C)" if self.by_characters else "(B, T) or (B, N, T)"
            raise SettingError(f"ids must have the shape {expected}, not {tuple(ids.shape)}")
        outer = ids.shape[:-inner]
        flat = ids.flatten(0, -inner - 1)
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            mask = (flat > 0).any(dim=2) if self.by_characters else flat > 0
            layers, mask_full = self.read(*self.encode(flat, mask), mask)
        if not self.keep_boundaries and not self.norm_boundaries:
            layers, mask_full = layers[:, :, 1:-1], mask
        mixed = [mix(layers, mask_full) for mix in self.scalar_mixes]
        if self.norm_boundaries and not self.keep_boundaries:
            mixed, mask_full = [vectors[:, 1:-1] for vectors in mixed], mask
        mixed = [self.dropout(vectors * mask_full.unsqueeze(2)) for vectors in mixed]
        shape = (*outer, mask_full.shape[1])
        return ElmoOutput([vectors.view(*shape, vectors.shape[2]) for vectors in mixed], mask_full.view(shape))

    def encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return token vectors (B, T, P) for ids (B, T, …), zero in the padding, and those of the boundaries (2, P)."""
        words, ends = ids[mask], self.ends.to(ids.device)
        if self.by_characters:
            words = fit_columns(words, self.max_characters)
        distinct, inverse = torch.unique(torch.cat([ends, words]), dim=0, return_inverse=True)
        # An impossible id would be a crash far away.
        max_id = CHARACTERS if self.by_characters else self.network.vocab_size
        low, high = (int(bound) for bound in distinct.aminmax())
        if low < 1 or high > (max_id or 0):
            what = "character ids" if self.by_characters else "word ids + 1"
            raise SettingError(f"{what} must be from 1 to {max_id}, or all 0 in the padding, not from {low} to {high}")
        if isinstance(self.network.encoder, CharacterEncoder):
            # columns that are padding in every word are removed, except as many as the widest filter covers, so that
            # the maximum over a word stays the same
            used = int((distinct != _PADDING).any(dim=0).sum())
            encoded = self.network.encoder(distinct[:, : used + self.network.encoder.cnn.widest])
        else:
            encoded = self.network.encoder(distinct - 1)
        vectors = encoded[inverse]
        tokens = vectors.new_zeros(*mask.shape, vectors.shape[1])
        return tokens.index_put((mask,), vectors[2:]), vectors[:2]

    def read(self, tokens: Tensor, ends: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return all layers (K, B, T + 2, 2P) and the mask (B, T + 2); the arguments are those of `enclose`."""
        sentence, mask_full = self.enclose(tokens, ends, mask)
        lengths = mask_full.sum(dim=1)
        if self.state == "reset":
            return self.network(sentence, lengths).layers, mask_full
        batch = len(mask)
        with self.carrying:
            carried, state = self.carried, None
            if carried is not None:  # new rows start from zero
                zeros = self.network.initial_state(max(batch - len(carried[0]), 0))
                state = tuple(torch.cat([old.to(new), new])[:batch] for old, new in zip(carried, zeros, strict=True))
            run = self.network(sentence, lengths, state)
            self.carried = tuple(tensor.detach() for tensor in run.state)
            if carried is not None:  # rows beyond this batch keep theirs
                pairs = zip(self.carried, carried, strict=True)
                self.carried = tuple(torch.cat([new, old[batch:].to(new)]) for new, old in pairs)
        return run.layers, mask_full

    def enclose(self, tokens: Tensor, ends: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Add boundary vectors (2, P) to token vectors (B, T, P) and their mask (B, T); (B, T + 2, P), (B, T + 2)."""
        batch, steps = mask.shape
        lengths = mask.sum(dim=1)
        if not torch.equal(mask, torch.arange(steps, device=mask.device) < lengths.unsqueeze(1)):
            raise SettingError("there is padding before a word; padding must be at the end of a row")
        sentence = tokens.new_zeros(batch, steps + 2, tokens.shape[2])
        sentence[:, 0] = ends[0]
        sentence[:, 1:-1] = tokens
        sentence[torch.arange(batch, device=mask.device), lengths + 1] = ends[1]
        return sentence, torch.arange(steps + 2, device=mask.device) < (lengths + 2).unsqueeze(1)


def without_output(network: BiLMNetwork) -> BiLMNetwork:
    """Return a network with the same layers, shared, but no output layer."""
    body = copy.copy(network)
    body._modules = dict(network._modules)
    body.softmax = None
    return body


def sentence_ids(sentences: Sequence[Sequence[str]], max_characters: int) -> Tensor:
    """Return the character ids of sentences (B, T, C), zero in the padding."""
    if not hasattr(sentences, "__len__") or isinstance(sentences, str):
        raise SettingError(f"expected a list of sentences, each a list of words, not {describe_value(sentences)}")
    for number, sentence in enumerate(sentences, start=1):
        check_words(sentence, f"sentence {number} is {describe_value(sentence)}; give it as a list of words")
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    ids = torch.zeros(len(sentences), int(lengths.max()) if len(lengths) else 0, max_characters, dtype=torch.long)
    words = Spellings([word for sentence in sentences for word in sentence], max_characters).ids()
    ids[torch.arange(ids.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(words)
    return ids


def fit_columns(ids: Tensor, columns: int) -> Tensor:
    """Fit character ids (N, C) to another number of columns: long words are truncated and ended, short ones padded."""
    if ids.shape[1] <= columns:
        return nn.functional.pad(ids, (0, columns - ids.shape[1]), value=_PADDING)
    ids = ids[:, :columns].clone()
    ids[ids[:, -1] != _PADDING, -1] = _END_WORD
    return ids
