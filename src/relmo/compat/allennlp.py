"""AllenNLP's names for ELMo: an old script runs with its import changed.

    from relmo.compat.allennlp import Elmo, batch_to_ids                   # was: allennlp.modules.elmo
    from relmo.compat.allennlp import ElmoEmbedder                         # was: allennlp.commands.elmo
    from relmo.compat.allennlp import ScalarMix                            # was: allennlp.modules.scalar_mix

The same as there: signatures, shapes, the names in state dicts (`scalar_mix_0.gamma`,
`scalar_mix_0.scalar_parameters.0`), and the numbers. So each row's LSTM states go on from batch to batch until
`reset_states` (`relmo.Elmo` starts each batch from zero), and the layer norm includes the sentence boundaries.

Better than there: options with 261 characters, with other widths than 50, without skip connections or without highway
layers are read; a cached vocabulary follows weights that change; nothing is downloaded.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import torch
from torch import Tensor

import relmo.networks.elmo as core
import relmo.nn.scalar_mix as mixture
from relmo.disk.hdf5 import new_hdf5
from relmo.errors import CorpusError, SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork, CharacterEncoder
from relmo.settings.arguments import check_sentences

COLUMNS = 50
"""How many character ids AllenNLP gives a word; they are laid out anew for a model with another number."""
EPSILON = 1e-13
NO_WORD = 0  # the place of padding in a cached vocabulary


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """The character ids of sentences of words: (sentences, words, 50), zero past a sentence's end."""
    return core.sentence_ids(batch, COLUMNS)


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
        """The weights before the softmax, each by itself."""
        return list(self.weights.split(1))

    def forward(self, tensors: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Layers, each (…, D), and where they hold a token (…), needed by the layer norm alone -> (…, D)."""
        if self.layer_norm and mask is None:
            raise SettingError("a mix with do_layer_norm needs the mask")
        if len(tensors) != len(self.weights):
            raise SettingError(f"{len(tensors)} tensors were given to mix; the mix has {len(self.weights)} weights")
        layers = tensors if isinstance(tensors, Tensor) else torch.stack(list(tensors))
        return super().forward(layers, None if mask is None else mask.bool())


class Elmo(core.Elmo):
    """ELMo vectors for character ids, several mixes at once.

    `vocab_to_cache` lists words, the first standing for padding; their token vectors are computed once, and `forward`
    takes their places in the list as `word_inputs`. With `requires_grad` the list saves spelling them, but their
    vectors are computed anew in each batch, so that gradients are right. `module` is a loaded `relmo.BiLM` in place of
    the two files.
    """

    cached_ids: Tensor | None
    cached_vectors: Tensor | None

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
        module: BiLM | BiLMNetwork | None = None,
    ):
        super().__init__(
            _model(options_file, weight_file, module),
            mixes=num_output_representations,
            dropout=dropout,
            layer_norm=do_layer_norm,
            norm_boundaries=do_layer_norm,
            fixed=scalar_mix_parameters,
            trainable=requires_grad,
            keep_boundaries=keep_sentence_boundaries,
            state="carry",
        )
        trained = scalar_mix_parameters is None
        for k in range(num_output_representations):
            mix = ScalarMix(self.network.layer_count, do_layer_norm, scalar_mix_parameters, trainable=trained)
            setattr(self, f"scalar_mix_{k}", mix)
        spelled = None if vocab_to_cache is None else core.sentence_ids([list(vocab_to_cache)], self.max_characters)[0]
        self.register_buffer("cached_ids", spelled, persistent=False)
        self.register_buffer("cached_vectors", None, persistent=False)
        self.register_load_state_dict_post_hook(_forget_vectors)
        self.train()

    def train(self, mode: bool = True) -> "Elmo":
        """Sets the mode, as in any module; the biLM has no dropout of its own, fine-tuned or not."""
        super().train(mode)
        self.network.eval()
        return self

    def get_output_dim(self) -> int:
        """The size of a vector."""
        return self.size

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Character ids (B, T, 50), or (B, N, T, 50), zero where there is no word. With a cached vocabulary also the
        words' places in it (B, T); if one is not in it, the whole batch is read by its characters."""
        words = self.cached_ids
        if words is None or word_inputs is None or ((word_inputs < 0) | (word_inputs >= len(words))).any():
            output = super().forward(inputs)
        else:
            output = self._from_cache(words, word_inputs)
        return {"elmo_representations": output.representations, "mask": output.mask}

    def _from_cache(self, words: Tensor, places: Tensor) -> core.ElmoOutput:
        """As the core's `forward`, for places in the cached vocabulary (B, T) or (B, N, T)."""
        flat = places.flatten(0, -2)
        mask = flat != NO_WORD
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            if self.trainable:
                tokens, ends = self.encode(words[flat] * mask.unsqueeze(2), mask)
            else:
                vectors = self._vectors(words)
                tokens, ends = vectors[flat + 2], vectors[:2]
            layers, mask_full = self.read(tokens, ends, mask)
        return self.mix(layers, mask_full, mask, places.shape[:-1])

    def _vectors(self, words: Tensor) -> Tensor:
        """Token vectors of the boundaries and of the cached vocabulary (2 + V, P), computed when first needed."""
        if self.cached_vectors is None:
            parts = words.split(4096)
            chunks = [
                self.encode(part.unsqueeze(0), torch.ones(1, len(part), dtype=torch.bool, device=part.device))
                for part in parts
            ]
            self.cached_vectors = torch.cat([chunks[0][1], *(tokens[0] for tokens, _ in chunks)])
        return self.cached_vectors


def _forget_vectors(module: Any, _: Any) -> None:
    module.cached_vectors = None


def _model(options: str | Path | None, weights: str | Path | None, module: BiLM | BiLMNetwork | None) -> Any:
    """The biLM of two files, or the one that is given."""
    if module is not None:
        if options is not None or weights is not None:
            raise SettingError("give either options_file and weight_file, or module, not both")
        network = module.network if isinstance(module, BiLM) else module
        if not isinstance(network.encoder, CharacterEncoder):
            raise SettingError("these names are for models that read characters; relmo.Elmo takes this one")
        return module
    if options is None or weights is None:
        raise SettingError("give options_file and weight_file: the paths of an original model's two files")
    return load((options, weights), kinds="bilm", device="cpu")


class ElmoEmbedder:
    """Vectors of all layers, (layers, words, size), for sentences of words. Batches are taken in the order they are
    given, and each row's state goes on from batch to batch and from call to call."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        cuda_device: int = -1,
    ):
        self.cuda_device = cuda_device
        self.elmo = core.Elmo(_model(options_file, weight_file, None), mixes=0, state="carry").eval()
        self.elmo.to("cpu" if cuda_device < 0 else f"cuda:{cuda_device}")

    def reset_states(self) -> None:
        """The next batch starts from zero again."""
        self.elmo.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences -> vectors (B, layers, T, size), zero past a sentence's end, and the mask (B, T)."""
        ids = self.elmo.ids(batch)
        mask = (ids > 0).any(dim=2)
        layers, _ = self.elmo.read(*self.elmo.encode(ids, mask), mask)
        return (layers[:, :, 1:-1] * mask.unsqueeze(2)).transpose(0, 1), mask

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """One sentence, as a batch of its own."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Sentences, all in one batch."""
        if isinstance(batch, Sized) and not len(batch):
            return []
        vectors = self.batch_to_embeddings(batch)[0].cpu().numpy()
        return [vectors[i, :, : len(sentence)].copy() for i, sentence in enumerate(batch)]

    def embed_sentences(self, sentences: Iterable[Sequence[str]], batch_size: int = 64) -> Iterator[np.ndarray]:
        """Any number of sentences, `batch_size` at a time, one after the other."""
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
        """Lines of words with white space between them to an HDF5 file: a dataset per line, named by its number from
        "0", and `sentence_to_index`, JSON from the line to its number. An empty line has no words.

        output_format is all (layers, words, size), top or average (words, size). With `use_sentence_keys` a dataset is
        named by its line, and a line that comes again is not written again.
        """
        shapes: dict[str, Callable[[np.ndarray], np.ndarray]]
        shapes = {"all": np.asarray, "top": lambda v: v[-1], "average": lambda v: v.mean(axis=0)}
        if output_format not in shapes:
            raise SettingError(f"output_format must be all, top or average, not '{output_format}'")
        lines = [line.strip() for line in input_file]
        path = Path(output_file_path)
        with new_hdf5(path) as out:
            for i, vectors in enumerate(self.embed_sentences((line.split() for line in lines), batch_size)):
                key = lines[i] if use_sentence_keys else str(i)
                if use_sentence_keys and not _usable(out.file, key, f"{getattr(input_file, 'name', 'line')}:{i + 1}"):
                    continue
                out.add(key, data=shapes[output_format](vectors).astype(np.float32))
            if not forget_sentences:
                index = {line: str(i) for i, line in enumerate(lines)}
                out.add("sentence_to_index", data=[json.dumps(index)], dtype=h5py.string_dtype())


def _usable(file: h5py.File, key: str, place: str) -> bool:
    """Whether a line is to name a new dataset; an error where it cannot."""
    if not key or key in file:
        if key and isinstance(file[key], h5py.Group):
            raise CorpusError(f"{place}: a line with '/' before it begins with this one; leave out use_sentence_keys")
        return False
    parents = ["/".join(key.split("/")[:n]) for n in range(1, key.count("/") + 1)]
    if key == "sentence_to_index" or any(isinstance(file.get(p), h5py.Dataset) for p in parents if p.strip("/")):
        raise CorpusError(f"{place}: {key!r} cannot name a dataset; leave out use_sentence_keys")
    return True
