"""AllenNLP's `ElmoEmbedder`: vectors of sentences and files, as in `allennlp elmo`."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import IO

import h5py
import numpy as np
import torch
from torch import Tensor

from relmo.compat.allennlp.bilm import _ElmoBiLm, load_either, remove_sentence_boundaries
from relmo.disk.hdf5 import create_hdf5
from relmo.errors import CorpusError, SettingError
from relmo.settings.arguments import check_sentences


class ElmoEmbedder:
    """Vectors of all layers, (layers, words, size), of tokenised sentences. Batches keep their order; the
    state of each row is carried from batch to batch and from call to call. Without files the bundled model is used."""

    def __init__(
        self, options_file: str | Path | None = None, weight_file: str | Path | None = None, cuda_device: int = -1
    ):
        self.cuda_device = cuda_device
        self.elmo_bilm = _ElmoBiLm(None, None, model=load_either(options_file, weight_file)).eval()
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
        `sentence_to_index`, JSON from the line to its number. An empty line has no words.

        output_format is all (layers, words, size), top or average (words, size). With `use_sentence_keys` a dataset is
        named by its line, and a repeated line is written once.
        """
        shapes: dict[str, Callable[[np.ndarray], np.ndarray]]
        shapes = {"all": np.asarray, "top": lambda v: v[-1], "average": lambda v: v.mean(axis=0)}
        if output_format not in shapes:
            raise SettingError(f"output_format must be all, top or average, not '{output_format}'")
        lines = [line.strip() for line in input_file]
        path = Path(output_file_path)
        with create_hdf5(path) as out:
            for i, vectors in enumerate(self.embed_sentences((line.split() for line in lines), batch_size)):
                key = lines[i] if use_sentence_keys else str(i)
                if use_sentence_keys and not _is_new_key(
                    out.file, key, f"{getattr(input_file, 'name', 'line')}:{i + 1}"
                ):
                    continue
                out.add(key, data=shapes[output_format](vectors).astype(np.float32))
            if not forget_sentences:
                index = {line: str(i) for i, line in enumerate(lines)}
                out.add("sentence_to_index", data=[json.dumps(index)], dtype=h5py.string_dtype())


def _is_new_key(file: h5py.File, key: str, location: str) -> bool:
    """Return whether a line names a new dataset; raise CorpusError if it cannot name one."""
    if not key or key in file:
        if key and isinstance(file[key], h5py.Group):
            raise CorpusError(f"{location}: an earlier line begins with this one and '/'; leave out use_sentence_keys")
        return False
    parents = ["/".join(key.split("/")[:n]) for n in range(1, key.count("/") + 1)]
    if key == "sentence_to_index" or any(isinstance(file.get(p), h5py.Dataset) for p in parents if p.strip("/")):
        raise CorpusError(f"{location}: {key!r} cannot name a dataset; leave out use_sentence_keys")
    return True
