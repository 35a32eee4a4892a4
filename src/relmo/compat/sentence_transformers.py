"""sentence-transformers: ELMo as the first module of a model, to be pooled, trained with its losses, and saved.

    elmo = ElmoEncoder("small")
    model = SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension(), "mean")])
    model.encode(["The bank of the river.", "A bank lends money."])

What is learned is the mixture of the biLM's layers and, with `trainable`, the biLM. A saved model holds the biLM's
folder; it is loaded by `SentenceTransformer(path, trust_remote_code=True)`, as all modules that are not the library's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from relmo.errors import ModelError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.elmo import Elmo
from relmo.store.folder import COPY_OF_BILM, read_tensors, write_tensors

try:
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    hint = "try: pip install 'relmo[sentence-transformers]'"
    raise ImportError(f"relmo.compat.sentence_transformers needs sentence-transformers, version 6; {hint}") from error

MIX = "mix.safetensors"
WHERE = ("subfolder", "token", "cache_folder", "revision", "local_files_only")


class ElmoEncoder(InputModule):
    """Texts to the vectors of their words.

    model       what `relmo.load` takes, or a loaded biLM; its weights are shared
    trainable   train the biLM too; otherwise it stays as it is
    dropout     on the mixed vectors, in training
    layer_norm  normalise each layer before the mix
    """

    config_file_name = "elmo_config.json"
    config_keys = ["trainable", "dropout", "layer_norm"]  # noqa: RUF012  (as the library has it)
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
        """Texts as the ids that the biLM reads, and a mask, 1 where there is a word."""
        words = [self.bilm.tokens((prompt or "") + text) for text in inputs]
        mask = torch.zeros(len(words), max(1, *map(len, words), 1), dtype=torch.long)
        for row, sentence in zip(mask, words, strict=True):
            row[: len(sentence)] = 1
        return {"input_ids": self._ids(words, mask), "attention_mask": mask}

    def _ids(self, sentences: list[list[str]], mask: Tensor) -> Tensor:
        flat = [word for sentence in sentences for word in sentence]
        if self.elmo.by_characters:
            ids = mask.new_zeros(*mask.shape, self.elmo.max_characters)
            spelled = self.elmo.ids([flat])[0].cpu()
        else:
            assert self.bilm.vocabulary is not None
            ids, spelled = torch.zeros_like(mask), torch.from_numpy(self.bilm.vocabulary.ids(flat)) + 1
        ids[mask.bool()] = spelled
        return ids

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Adds `token_embeddings` (B, T, D)."""
        return features | {"token_embeddings": self.elmo(features["input_ids"]).representations[0]}

    def get_embedding_dimension(self) -> int:
        """The size of a word's vector."""
        return self.elmo.size

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """The biLM's folder, the mixture, and the settings."""
        self.save_config(output_path)
        self.bilm.save_pretrained(Path(output_path) / COPY_OF_BILM)
        write_tensors(Path(output_path) / MIX, dict(self.elmo.scalar_mixes[0].state_dict()))

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        """What `save` wrote, from a folder or from the hub: there, the others of the library's arguments say where."""
        given = dict(zip(WHERE, args, strict=False)) | kwargs
        where = {name: given[name] for name in WHERE if name in given}
        found = cls.load_dir_path(model_name_or_path, **where)
        if found is None:
            raise ModelError(f"{model_name_or_path}: has no folder of an ElmoEncoder")
        encoder = cls(Path(found) / COPY_OF_BILM, **cls.load_config(model_name_or_path, **where))
        encoder.elmo.scalar_mixes[0].load_state_dict(read_tensors(Path(found) / MIX)[0])
        return encoder
