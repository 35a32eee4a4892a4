"""sentence-transformers: ELMo as the first module of a model, to be pooled, trained and saved.

    elmo = ElmoEncoder("small")
    model = SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension(), "mean")])
    model.encode(["The bank of the river.", "A bank lends money."])

Training updates the scalar mix of the biLM's layers and, with `trainable`, the biLM. A saved model contains the biLM's
folder; load it with `SentenceTransformer(path, trust_remote_code=True)`, as all modules from other packages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from relmo.errors import ModelError, optional_import
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.elmo import Elmo
from relmo.store.folder import COPY_OF_BILM, read_tensors, write_tensors

NEED = "relmo.compat.sentence_transformers needs sentence-transformers, version 6"
with optional_import(NEED, "sentence-transformers", ImportError):
    from sentence_transformers.base.modules import InputModule

MIX = "mix.safetensors"
HUB_ARGUMENTS = ("subfolder", "token", "cache_folder", "revision", "local_files_only")


class ElmoEncoder(InputModule):
    """Module from texts to the vectors of their words.

    model       anything that `relmo.load` accepts, or a loaded biLM; its weights are shared
    trainable   train the biLM too; otherwise it is frozen
    dropout     on the mixed vectors, in training
    layer_norm  normalise each layer before the mix
    """

    config_file_name = "elmo_config.json"
    config_keys = ["trainable", "dropout", "layer_norm"]  # noqa: RUF012  (as in the library)
    save_in_root = False

    def __init__(
        self,
        model: str | Path | BiLM = "small",
        *,
        trainable: bool = False,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ):
        super().__init__()
        self.trainable, self.dropout, self.layer_norm = trainable, dropout, layer_norm
        self.bilm = model if isinstance(model, BiLM) else load(model, kinds="bilm", device="cpu")
        tokenizer: Any = self.bilm.tokens
        self.tokenizer = tokenizer
        self.elmo = Elmo(self.bilm, dropout=dropout, layer_norm=layer_norm, trainable=trainable)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Return the biLM's input ids of texts, and a mask with 1 for words."""
        sentences = [self.bilm.tokens((prompt or "") + text) for text in inputs]
        mask = torch.zeros(len(sentences), max(1, *map(len, sentences), 1), dtype=torch.long)
        for row, words in zip(mask, sentences, strict=True):
            row[: len(words)] = 1
        all_words = [word for words in sentences for word in words]
        if self.elmo.by_characters:
            ids = mask.new_zeros(*mask.shape, self.elmo.max_characters)
            word_ids = self.elmo.ids([all_words])[0].cpu()
        else:
            assert self.bilm.vocabulary is not None
            ids, word_ids = torch.zeros_like(mask), torch.from_numpy(self.bilm.vocabulary.ids(all_words)) + 1
        ids[mask.bool()] = word_ids
        return {"input_ids": ids, "attention_mask": mask}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `token_embeddings` (B, T, D)."""
        return features | {"token_embeddings": self.elmo(features["input_ids"]).representations[0]}

    def get_embedding_dimension(self) -> int:
        """Return the size of a word vector."""
        return self.elmo.size

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the biLM's folder, the scalar mix, and the settings."""
        self.save_config(output_path)
        self.bilm.save_pretrained(Path(output_path) / COPY_OF_BILM)
        write_tensors(Path(output_path) / MIX, dict(self.elmo.scalar_mixes[0].state_dict()))

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        """Load a saved encoder from a folder or from the hub, to which the library's other arguments apply."""
        arguments = dict(zip(HUB_ARGUMENTS, args, strict=False)) | kwargs
        arguments = {name: arguments[name] for name in HUB_ARGUMENTS if name in arguments}
        folder = cls.load_dir_path(model_name_or_path, **arguments)
        if folder is None:
            raise ModelError(f"{model_name_or_path}: has no folder of an ElmoEncoder")
        encoder = cls(Path(folder) / COPY_OF_BILM, **cls.load_config(model_name_or_path, **arguments))
        encoder.elmo.scalar_mixes[0].load_state_dict(read_tensors(Path(folder) / MIX)[0])
        return encoder
