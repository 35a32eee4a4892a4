"""AllenNLP's API for ELMo: old scripts run with only their imports changed.

    from relmo.compat.allennlp import Elmo, batch_to_ids                   # was: allennlp.modules.elmo
    from relmo.compat.allennlp import ElmoTokenEmbedder                    # was: allennlp.modules.token_embedders
    from relmo.compat.allennlp import ElmoEmbedder                         # was: allennlp.commands.elmo
    from relmo.compat.allennlp import ScalarMix                            # was: allennlp.modules.scalar_mix
    from relmo.compat.allennlp import remove_sentence_boundaries           # was: allennlp.nn.util

As in AllenNLP: signatures, shapes, numbers, and state dicts with names such as
`_elmo_lstm._token_embedder.char_conv_0.weight` and `scalar_mix_0.scalar_parameters.0`. LSTM states of each row are
carried from batch to batch until `reset_states` (`relmo.Elmo` starts each batch from zero), or until
`elmo._elmo_lstm._elmo_lstm.stateful = False`. Layer norm includes the sentence boundaries.

In addition: options with 261 characters, with widths other than 50, without skip connections or without highway layers
are supported; a cached vocabulary follows changes of the weights; nothing is downloaded. `Elmo.from_archive` extracts
the ELMo from a `model.tar.gz`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn

import relmo.nn.pooling as mixture
from relmo.compat.allennlp.bilm import FilePath, load_files
from relmo.compat.allennlp.bilm import _ElmoBiLm as _ElmoBiLm
from relmo.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from relmo.compat.allennlp.bilm import batch_to_ids as batch_to_ids
from relmo.compat.allennlp.bilm import remove_sentence_boundaries as remove_sentence_boundaries
from relmo.disk.outputs import create_hdf5
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.fields import check_sentences
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
        options_file: FilePath,
        weight_file: FilePath,
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
    def from_archive(cls, archive: str | Path, *, name: str | None = None, options_file: FilePath = None) -> "Elmo":
        """Load the ELMo of a model saved by AllenNLP (`model.tar.gz`, a folder, or a `.th` file) with its mixes, in
        evaluation mode. `name` selects one of several; `options_file` is needed if the model does not contain the
        options and they differ from the published ones."""
        return cls._from_saved(read_allennlp(archive, name=name, options=options_file))

    @classmethod
    def _from_saved(cls, saved: SavedElmo) -> "Elmo":
        num_mixes, num_layers = len({key.split(".")[0] for key in saved.mixes}), saved.network.layer_count
        if not num_mixes:
            raise ModelError(f"{saved.name}: has no mix of its layers; relmo.load gives the layers themselves")
        elmo = cls(
            None,
            None,
            num_mixes,
            scalar_mix_parameters=[0.0] * num_layers if saved.has_fixed_mixes else None,  # the values are loaded below
            module=_ElmoBiLm(None, None, saved.requires_grad, model=saved.network),
            **saved.options,
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
        options_file: FilePath = None,
        weight_file: FilePath = None,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
    ):
        super().__init__()
        fixed: Any = {"scalar_mix_parameters": scalar_mix_parameters, "vocab_to_cache": vocab_to_cache}
        bilm = load_files(options_file, weight_file, required=False)
        self._elmo = Elmo(None, None, 1, requires_grad, do_layer_norm, dropout, module=bilm, **fixed)
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None

    @classmethod
    def from_archive(
        cls, archive: str | Path, *, name: str | None = None, options_file: FilePath = None
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


class ElmoEmbedder:
    """Vectors of all layers, (layers, words, size), of tokenised sentences. Batches keep their order; the
    state of each row is carried from batch to batch and from call to call. Without files the bundled model is used."""

    def __init__(self, options_file: FilePath = None, weight_file: FilePath = None, cuda_device: int = -1):
        self.cuda_device = cuda_device
        self.elmo_bilm = _ElmoBiLm(None, None, model=load_files(options_file, weight_file, required=False)).eval()
        self.elmo_bilm.to("cpu" if cuda_device < 0 else f"cuda:{cuda_device}")

    def reset_states(self) -> None:
        """Start the next batch from zero."""
        self.elmo_bilm.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return vectors (B, layers, T, size), zero for padding, and the mask (B, T)."""
        output = self.elmo_bilm(self.elmo_bilm.ids(batch))
        layers = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([vectors for vectors, _ in layers], dim=1), layers[0][1]

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """Embed one sentence as a batch."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Embed sentences in one batch."""
        if isinstance(batch, Sized) and not len(batch):
            return []
        vectors = self.batch_to_embeddings(batch)[0].cpu().numpy()
        return [vectors[i, :, : len(sentence)].copy() for i, sentence in enumerate(batch)]

    def embed_sentences(self, sentences: Iterable[Sequence[str]], batch_size: int = 64) -> Iterator[np.ndarray]:
        """Embed any number of sentences, `batch_size` at a time."""
        if batch_size < 1:
            raise SettingError(f"batch_size must be 1 or more, not {batch_size}")
        sentences = check_sentences(sentences, "embed_sentences")
        while batch := list(islice(sentences, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | Path,
        output_format: str = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed whitespace-separated lines to an HDF5 file: one dataset per line, named by its number from "0", and
        `sentence_to_index`, JSON from the line to its number. output_format is all (layers, words, size), top or
        average (words, size). With `use_sentence_keys` a dataset is named by its line, once for repeated lines."""
        shapes: dict[str, Callable[[np.ndarray], np.ndarray]]
        shapes = {"all": np.asarray, "top": lambda v: v[-1], "average": lambda v: v.mean(axis=0)}
        if output_format not in shapes:
            raise SettingError(f"output_format must be all, top or average, not '{output_format}'")
        lines = [line.strip() for line in input_file]
        name, advice = getattr(input_file, "name", "line"), "leave out use_sentence_keys"
        with create_hdf5(Path(output_file_path)) as out:
            for i, vectors in enumerate(self.embed_sentences((line.split() for line in lines), batch_size)):
                key = lines[i] if use_sentence_keys else str(i)
                if use_sentence_keys and (not key or key in out.file):
                    if key and isinstance(out.file[key], h5py.Group):
                        raise CorpusError(f"{name}:{i + 1}: an earlier line begins with this one and '/'; {advice}")
                    continue
                parents = ["/".join(key.split("/")[:n]) for n in range(1, key.count("/") + 1)]  # of a line as a key
                is_taken = any(isinstance(out.file.get(p), h5py.Dataset) for p in parents if p.strip("/"))
                if key == "sentence_to_index" or is_taken:
                    raise CorpusError(f"{name}:{i + 1}: {key!r} cannot name a dataset; {advice}")
                out.add(key, data=shapes[output_format](vectors).astype(np.float32))
            if not forget_sentences:
                index = {line: str(i) for i, line in enumerate(lines)}
                out.add("sentence_to_index", data=[json.dumps(index)], dtype=h5py.string_dtype())
