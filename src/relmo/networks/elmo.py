"""ELMo as a module to put into any network: ids of words in, mixed vectors and a mask out.

    elmo = relmo.Elmo(relmo.load("models/mine"), mixes=2)
    first, second = elmo(elmo.ids([["A", "bank", "lends", "money", "."]])).representations

Choices:
- Sentences come without <S> and </S>. Both are added here, and their vectors are dropped again unless
  `keep_boundaries` is set.
- Each distinct word of a batch is encoded once, wherever it stands.
- A frozen biLM runs without gradients and without dropout, whatever the mode of the network around it. With `trainable`
  it learns with that network, and its own dropout is on in training.
- Vectors past a sentence's end are zero, with a layer norm, too.
- The biLM's output layer is not needed. It is neither in the state dict nor among the parameters.

    Peters et al. 2018, Deep contextualized word representations
"""

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from relmo.errors import SettingError
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder, DictionaryEncoder
from relmo.nn.cells import State
from relmo.nn.locks import fork_safe_lock
from relmo.nn.scalar_mix import ScalarMix
from relmo.settings.arguments import check_words, typed
from relmo.text.characters import BOS, CHARACTERS, EOS, Spellings, character_ids

_END_WORD, _PADDING = CHARACTERS - 1, CHARACTERS  # the ids of a word's end mark and of the columns behind it


class HasNetwork(Protocol):
    """Any object that holds a network, as `relmo.BiLM` does."""

    network: BiLMNetwork
    vocabulary: Any


class ElmoOutput(NamedTuple):
    """The mixtures of the layers, each (B, T, 2P), and the mask (B, T), true where there is a word."""

    representations: list[Tensor]
    mask: Tensor


class Elmo(nn.Module):
    """A biLM and `mixes` learned mixtures of its layers, `scalar_mix_0` and so on. The biLM's weights and mode are
    shared with the model it is made from.

    dropout          on the mixed vectors, while training
    layer_norm       normalise each layer before the mix, by the batch's mean and variance
    norm_boundaries  with layer_norm: take <S> and </S> into the mean and variance, as AllenNLP does; the original does
                     not
    fixed            weights of the layers (before the softmax) that are not to be learned
    trainable        let gradients reach the biLM
    keep_boundaries  give the vectors of <S> and </S> too: T + 2 positions instead of T
    state            reset: each sentence starts from zero. carry: row r starts from the state in which row r of the
                     batch before ended, whichever thread's it was, until `reset_states`
    boundaries       word input only: the ids of <S> and </S> in the vocabulary, where the model does not come with it
    """

    ends: Tensor
    """The ids of <S> and </S> as `forward` takes ids."""

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
            raise SettingError("a model of ELMoForManyLangs cannot be part of a network; compute vectors with `embed`")
        if state not in ("reset", "carry"):
            raise SettingError(f"state must be reset or carry, not '{state}'")
        if fixed is not None and len(fixed) != network.layer_count:
            raise SettingError(f"fixed has {len(fixed)} weights; the model has {network.layer_count} layers")
        if norm_boundaries and not layer_norm:
            raise SettingError("norm_boundaries has a meaning with layer_norm only; leave it out")
        self.network = without_output(network).requires_grad_(trainable)
        self.trainable = trainable
        self.keep_boundaries = keep_boundaries
        self.norm_boundaries = norm_boundaries
        self.state = state
        self.mixes = mixes
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
        """Held by the one thread whose batch goes on from the carried state."""
        self.train()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: all but the lock."""
        return {name: value for name, value in vars(self).items() if name != "carrying"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.carrying = fork_safe_lock()

    @property
    def size(self) -> int:
        """The size of a vector."""
        return self.network.size

    @property
    def scalar_mixes(self) -> list[ScalarMix]:
        """The learned mixtures of the layers."""
        return [getattr(self, f"scalar_mix_{k}") for k in range(self.mixes)]

    def train(self, mode: bool = True) -> "Elmo":
        """Sets the mode, as in any module; a frozen biLM stays in evaluation mode."""
        super().train(mode)
        if not self.trainable:
            self.network.eval()
        return self

    def reset_states(self) -> None:
        """With state "carry": the next batch starts from zero again."""
        with self.carrying:
            self.carried = None

    def l2(self) -> Tensor:
        """The squared length of all mixtures' weights, for the lambda penalty."""
        return torch.stack([mix.l2() for mix in self.scalar_mixes]).sum()

    def ids(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The character ids (B, T, C) of sentences of words, for a model that reads characters."""
        if not self.by_characters:
            raise SettingError("this model reads words by their numbers: give vocabulary.ids(words) + 1, 0 for no word")
        return sentence_ids(sentences, self.max_characters).to(self.ends.device)

    def forward(self, ids: Tensor) -> ElmoOutput:
        """Character ids (B, T, C), all zero where there is no word; or word ids + 1 (B, T), 0 where there is none. With
        one more dimension, (B, N, T, C) or (B, N, T), the vectors have it too."""
        inner = 2 if self.by_characters else 1  # the dimensions of one sentence
        if ids.dim() not in (inner + 1, inner + 2):
            expected = "(B, T, C) or (B, N, T, C)" if self.by_characters else "(B, T) or (B, N, T)"
            raise SettingError(f"ids are {expected}, not of shape {tuple(ids.shape)}")
        outer = ids.shape[:-inner]
        flat = ids.flatten(0, -inner - 1)
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            mask = (flat > 0).any(dim=2) if self.by_characters else flat > 0
            layers, mask_full = self.read(*self.encode(flat, mask), mask)
        return self.mix(layers, mask_full, mask, outer)

    def encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """ids of words (B, T, …) -> their vectors (B, T, P), zero where there is none; those of the boundaries (2, P).
        Each distinct word is encoded once."""
        words, ends = ids[mask], self.ends.to(ids.device)
        if self.by_characters:
            words = fit_columns(words, self.max_characters)
        distinct, which = torch.unique(torch.cat([ends, words]), dim=0, return_inverse=True)
        self._check(distinct)
        if isinstance(self.network.encoder, CharacterEncoder):
            encoded = self.network.encoder(_trim_columns(distinct, self.network.encoder.cnn.widest))
        else:
            encoded = self.network.encoder(distinct - 1)
        vectors = encoded[which]
        tokens = vectors.new_zeros(*mask.shape, vectors.shape[1])
        return tokens.index_put((mask,), vectors[2:]), vectors[:2]

    def _check(self, distinct: Tensor) -> None:
        """An impossible id is an error here; otherwise it would be a crash far away."""
        most = CHARACTERS if self.by_characters else self.network.vocab_size
        low, high = (int(bound) for bound in distinct.aminmax())
        if low < 1 or high > (most or 0):
            what = "character ids go from 1" if self.by_characters else "word ids + 1 go from 1"
            raise SettingError(f"{what} to {most} in a word, and are all 0 where there is none; found {low} to {high}")

    def read(self, tokens: Tensor, ends: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Word vectors (B, T, P), boundary vectors (2, P), mask (B, T) -> every layer (K, B, T + 2, 2P), and the mask
        with the boundaries (B, T + 2)."""
        sentence, mask_full = self.enclose(tokens, ends, mask)
        lengths = mask_full.sum(dim=1)
        if self.state == "carry":
            with self.carrying:
                run = self.network(sentence, lengths, self._state_for(len(mask)))
                self._keep(run.state)
        else:
            run = self.network(sentence, lengths)
        return run.layers, mask_full

    def enclose(self, tokens: Tensor, ends: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Word vectors (B, T, P), boundary vectors (2, P), mask (B, T) -> both with the boundaries: (B, T + 2, P) and
        (B, T + 2)."""
        batch, steps = mask.shape
        lengths = mask.sum(dim=1)
        if not torch.equal(mask, torch.arange(steps, device=mask.device) < lengths.unsqueeze(1)):
            raise SettingError("a position without a word stands before a word; padding must come at the end of a row")
        sentence = tokens.new_zeros(batch, steps + 2, tokens.shape[2])
        sentence[:, 0] = ends[0]
        sentence[:, 1:-1] = tokens
        sentence[torch.arange(batch, device=mask.device), lengths + 1] = ends[1]
        return sentence, torch.arange(steps + 2, device=mask.device) < (lengths + 2).unsqueeze(1)

    def mix(self, layers: Tensor, mask_full: Tensor, mask: Tensor, outer: Sequence[int]) -> ElmoOutput:
        """The mixtures of layers (K, B, T + 2, 2P), with or without the boundaries; B is laid out as `outer` says."""
        if not self.keep_boundaries and not self.norm_boundaries:
            layers, mask_full = layers[:, :, 1:-1], mask
        mixed = [mix(layers, mask_full) for mix in self.scalar_mixes]
        if self.norm_boundaries and not self.keep_boundaries:
            mixed, mask_full = [vectors[:, 1:-1] for vectors in mixed], mask
        mixed = [self.dropout(vectors * mask_full.unsqueeze(2)) for vectors in mixed]
        shape = (*outer, mask_full.shape[1])
        return ElmoOutput([vectors.view(*shape, vectors.shape[2]) for vectors in mixed], mask_full.view(shape))

    def _state_for(self, batch: int) -> State | None:
        """The carried state of the first `batch` rows, zeros for rows that are new."""
        if self.carried is None:
            return None
        fresh = self.network.initial_state(max(batch - len(self.carried[0]), 0))
        carried = (tensor.to(new) for tensor, new in zip(self.carried, fresh, strict=True))
        return tuple(torch.cat([old, new])[:batch] for old, new in zip(carried, fresh, strict=True))

    def _keep(self, state: State) -> None:
        """Keeps the state for the next batch; rows beyond this one keep theirs."""
        state = tuple(tensor.detach() for tensor in state)
        if self.carried is not None:
            rows = len(state[0])
            state = tuple(torch.cat([new, old[rows:].to(new)]) for new, old in zip(state, self.carried, strict=True))
        self.carried = state


def without_output(network: BiLMNetwork) -> BiLMNetwork:
    """The same layers, shared, as a network that has no output layer."""
    body = copy.copy(network)
    body._modules = dict(network._modules)
    body.softmax = None
    return body


def sentence_ids(sentences: Sequence[Sequence[str]], max_characters: int) -> Tensor:
    """The character ids of sentences (B, T, C), all zero past a sentence's end."""
    if not hasattr(sentences, "__len__") or isinstance(sentences, str):
        raise SettingError(f"expected a list of sentences, each a list of words, not {typed(sentences)}")
    for number, sentence in enumerate(sentences, start=1):
        check_words(sentence, f"sentence {number} is {typed(sentence)}; give it as a list of words")
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    ids = torch.zeros(len(sentences), int(lengths.max()) if len(lengths) else 0, max_characters, dtype=torch.long)
    spelled = Spellings([word for sentence in sentences for word in sentence], max_characters).ids()
    ids[torch.arange(ids.shape[1]) < lengths.unsqueeze(1)] = torch.from_numpy(spelled)
    return ids


def fit_columns(ids: Tensor, columns: int) -> Tensor:
    """Words spelled for another number of columns (N, C) as if spelled for this one: a word that is too long is cut and
    ended, a shorter row gets more padding."""
    if ids.shape[1] <= columns:
        return nn.functional.pad(ids, (0, columns - ids.shape[1]), value=_PADDING)
    ids = ids[:, :columns].clone()
    ids[ids[:, -1] != _PADDING, -1] = _END_WORD
    return ids


def _trim_columns(ids: Tensor, widest: int) -> Tensor:
    """Drops the columns that are padding in every word, except as many as the widest filter sees at once; the maximum
    over a word stays the same."""
    used = (ids != _PADDING).any(dim=0).sum()
    return ids[:, : int(used) + widest]
