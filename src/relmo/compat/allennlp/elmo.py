"""AllenNLP's modules: `Elmo`, with several mixes, `ElmoTokenEmbedder` and `ScalarMix`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import relmo.nn.scalar_mix as mixture
from relmo.compat.allennlp.bilm import _ElmoBiLm, load_either, remove_sentence_boundaries
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.store.allennlp import SavedElmo, read_allennlp

EPSILON = 1e-13


class ScalarMix(mixture.ScalarMix):
    """A learned mixture of layers, called as `mix([layer, …], mask)`."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ):
        if initial_scalar_parameters is not None and len(initial_scalar_parameters) != mixture_size:
            raise SettingError(f"{len(initial_scalar_parameters)} initial_scalar_parameters for {mixture_size} layers")
        super().__init__(mixture_size, layer_norm=do_layer_norm, fixed=initial_scalar_parameters, epsilon=EPSILON)
        self.requires_grad_(trainable)

    @property
    def scalar_parameters(self) -> list[Tensor]:
        """The weights before the softmax, one by one."""
        return list(self.weights.split(1))

    def forward(self, tensors: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Return the mixture (…, D) of layers (…, D). The mask of tokens (…) is needed for layer norm only."""
        if self.layer_norm and mask is None:
            raise SettingError("a mix with do_layer_norm needs the mask")
        if len(tensors) != len(self.weights):
            raise SettingError(f"{len(tensors)} tensors for a mix of {len(self.weights)} weights")
        layers = tensors if isinstance(tensors, Tensor) else torch.stack(list(tensors))
        return super().forward(layers, None if mask is None else mask.bool())


class Elmo(nn.Module):
    """ELMo vectors for character ids, with several mixes.

    `module` replaces the two files: a loaded `relmo.BiLM`; an `_ElmoBiLm`, which is shared and whose `requires_grad`
    and `vocab_to_cache` apply; or any module with `num_layers` and `get_output_dim()` whose `forward` returns
    `activations` and `mask`.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: BiLM | BiLMNetwork | nn.Module | None = None,
    ):
        super().__init__()
        if module is not None and (options_file is not None or weight_file is not None):
            raise SettingError("options_file and weight_file cannot be used together with module")
        if module is None or isinstance(module, BiLM | BiLMNetwork):
            module = _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache, model=module)
        bilm: Any = module
        self._elmo_lstm = bilm
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        trainable = scalar_mix_parameters is None
        for k in range(num_output_representations):
            mix = ScalarMix(bilm.num_layers, do_layer_norm, scalar_mix_parameters, trainable=trainable)
            self.add_module(f"scalar_mix_{k}", mix)
        self._mixes = num_output_representations

    @classmethod
    def from_archive(
        cls, archive: str | Path, *, name: str | None = None, options_file: str | Path | None = None
    ) -> "Elmo":
        """Load the ELMo of a model saved by AllenNLP (`model.tar.gz`, a folder, or a `.th` file) with its mixes, in
        evaluation mode. `name` selects one of several; `options_file` is needed if the model does not contain the
        options and they differ from the published ones."""
        return cls._from_saved(read_allennlp(archive, name=name, options=options_file))

    @classmethod
    def _from_saved(cls, saved: SavedElmo) -> "Elmo":
        num_mixes, num_layers = len({key.split(".")[0] for key in saved.mixes}), saved.network.layer_count
        config = saved.config
        if not num_mixes:
            raise ModelError(f"{saved.name}: has no mix of its layers; relmo.load gives the layers themselves")
        elmo = cls(
            None,
            None,
            num_mixes,
            do_layer_norm=config.do_layer_norm,
            dropout=config.dropout,
            keep_sentence_boundaries=config.keep_sentence_boundaries,
            scalar_mix_parameters=[0.0] * num_layers if config.fixed else None,  # the values are loaded below
            module=_ElmoBiLm(None, None, config.requires_grad, model=saved.network),
        )
        for k, mix in enumerate(elmo.scalar_mixes):
            prefix = f"scalar_mix_{k}."
            state = {key.removeprefix(prefix): value for key, value in saved.mixes.items() if key.startswith(prefix)}
            try:
                mix.load_state_dict(state)
            except RuntimeError as error:
                raise ModelError(f"{saved.name}: scalar_mix_{k} is not a mix of {num_layers} layers") from error
        return elmo.eval()

    @property
    def scalar_mixes(self) -> list[ScalarMix]:
        """The learned mixtures of the layers."""
        return [getattr(self, f"scalar_mix_{k}") for k in range(self._mixes)]

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return self._elmo_lstm.get_output_dim()

    def reset_states(self) -> None:
        """Start the next batch from zero."""
        self._elmo_lstm.reset_states()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Return `elmo_representations`, one tensor (B, T, D) per mix, and `mask`.

        inputs         character ids (B, T, 50), or (B, N, T, 50), zero for padding
        word_inputs    with a cached vocabulary, the words' indices (B, T) or (B, N, T)
        """
        has_cache = getattr(self._elmo_lstm, "cached_ids", None) is not None
        indices = word_inputs if has_cache or not isinstance(self._elmo_lstm, _ElmoBiLm) else None
        if inputs.dim() < 3:
            raise SettingError(f"character ids must have the shape (sentences, words, 50), not {tuple(inputs.shape)}")
        batch_shape = inputs.shape[:-2] if indices is None else indices.shape[:-1]
        output = self._elmo_lstm(inputs.flatten(0, -3), None if indices is None else indices.flatten(0, -2))
        mask, mixed = output["mask"], [mix(output["activations"], output["mask"]) for mix in self.scalar_mixes]
        if self._keep_sentence_boundaries:
            mixed = [vectors * mask.unsqueeze(2) for vectors in mixed]
        else:
            mixed = [remove_sentence_boundaries(vectors, mask)[0] for vectors in mixed]
            _, mask = remove_sentence_boundaries(mask.unsqueeze(2), mask)
        shape = (*batch_shape, mask.shape[1])
        representations = [self._dropout(vectors).view(*shape, -1) for vectors in mixed]
        return {"elmo_representations": representations, "mask": mask.view(shape)}


class ElmoTokenEmbedder(nn.Module):
    """One mix of ELMo's layers, followed by a projection if `projection_dim` is given. Without files the bundled model
    is used."""

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
    ):
        super().__init__()
        self._elmo = Elmo(
            None,
            None,
            1,
            do_layer_norm=do_layer_norm,
            dropout=dropout,
            requires_grad=requires_grad,
            vocab_to_cache=vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            module=load_either(options_file, weight_file),
        )
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None

    @classmethod
    def from_archive(
        cls, archive: str | Path, *, name: str | None = None, options_file: str | Path | None = None
    ) -> "ElmoTokenEmbedder":
        """Load as `Elmo.from_archive`, with the model's projection if it has one."""
        saved = read_allennlp(archive, name=name, options=options_file)
        embedder = cls.__new__(cls)
        nn.Module.__init__(embedder)
        embedder._elmo, embedder._projection = Elmo._from_saved(saved), None
        if (weight := saved.projection.get("_projection.weight")) is not None:
            embedder._projection = nn.Linear(weight.shape[1], weight.shape[0])
            embedder._projection.load_state_dict({key.split(".")[1]: value for key, value in saved.projection.items()})
        return embedder.eval()

    def get_output_dim(self) -> int:
        """Return the size of a vector."""
        return self._elmo.get_output_dim() if self._projection is None else self._projection.out_features

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        """Return vectors (B, T, D) of character ids (B, T, 50) or (B, N, T, 50), with `word_inputs` as in `Elmo`."""
        vectors = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)
