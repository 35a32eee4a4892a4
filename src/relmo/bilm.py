"""Bidirectional language models as a user has them: a network with its vocabulary and its way of reading text.

elmo = relmo.load("models/mine")
vectors = elmo.embed(["The bank of the river .", "A bank lends money ."])
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from relmo.config import to_toml
from relmo.errors import ModelError
from relmo.folder import (
    CARD,
    SETTINGS,
    VOCABULARY,
    atomic,
    load_weights,
    pick_device,
    read_config,
    read_settings,
    save_config,
    save_weights,
)
from relmo.models.bilm import BiLMNetwork
from relmo.settings import BiLMSettings, check_bilm
from relmo.text.encode import TOKENIZERS
from relmo.text.vocabulary import SentenceVocabulary


class BiLM:
    """A network, its settings and, where it can predict words, its vocabulary; one method per verb of the command line.

    `vocabulary` is None for original ELMo files, which hold no output layer.
    """

    def __init__(
        self,
        network: BiLMNetwork,
        settings: BiLMSettings,
        vocabulary: SentenceVocabulary | None = None,
        device: torch.device | str = "cpu",
    ):
        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.settings = settings
        self.vocabulary = vocabulary

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> "BiLM":
        """A model from the folder that `save_pretrained`, `relmo train bilm` or `relmo convert` wrote."""
        folder = Path(folder)
        config = read_config(folder)
        if config["kind"] != "bilm":
            raise ModelError(f"{folder}: is a {config['kind']} model, not a bidirectional language model (bilm)")
        settings = read_settings(folder, config, BiLMSettings, check_bilm)
        size = config.get("vocab_size")
        vocabulary = None if size is None else SentenceVocabulary.load(folder / VOCABULARY)
        if vocabulary is not None and len(vocabulary) != size:
            raise ModelError(f"{folder}: {VOCABULARY} has {len(vocabulary)} words, config.json says {size}")
        if vocabulary is None and settings.model.input == "word":
            raise ModelError(f"{folder}: config.json is damaged: a model with word input needs a vocab_size")
        network = load_weights(folder, lambda: BiLMNetwork(settings.model, vocab_size=size))
        return cls(network, settings, vocabulary, pick_device(device))

    def save_pretrained(self, folder: str | Path, *, results: dict[str, Any] | None = None) -> None:
        """Writes the model as a folder; `results` go into its config and its card."""
        folder = Path(folder)
        if self.vocabulary is not None:
            with atomic(folder / VOCABULARY) as temporary:
                self.vocabulary.save(temporary)
        save_weights(folder, self.network)
        self.save_description(folder, results or {})

    def save_description(self, folder: Path, results: dict[str, Any]) -> None:
        """The card and the settings as commented TOML, for people; then config.json."""
        with atomic(folder / CARD) as temporary:
            temporary.write_text(self.card(folder.name, results), encoding="utf-8")
        with atomic(folder / SETTINGS) as temporary:
            temporary.write_text(to_toml(self.settings), encoding="utf-8")
        size = None if self.vocabulary is None else len(self.vocabulary)
        values = {"vocab_size": size, "settings": dataclasses.asdict(self.settings)}
        save_config(folder, "bilm", values | {"results": results})

    def card(self, name: str, results: dict[str, Any]) -> str:
        """A model card: what this is, how it was made, how well it does."""
        model = self.settings.model
        count = sum(p.numel() for p in self.network.parameters())
        lines = [f"# {name}", "", "A bidirectional LSTM language model (ELMo), made with relmo.", ""]
        lines += [
            f"- reads words by their {'characters' if model.input == 'char' else 'numbers'}",
            f"- {model.layers} layers of {model.hidden} units each way, projected to {model.projection}",
            f"- parameters: {count:,}",
        ]
        lines += [] if self.vocabulary is None else [f"- predicts: {len(self.vocabulary):,} words"]
        lines += [
            f"- {key}: {value:,.4f}" if isinstance(value, float) else f"- {key}: {value}"
            for key, value in results.items()
        ]
        lines += ["", "```", f"relmo embed text.txt --model {name} --out vectors.h5", "```", ""]
        return "\n".join(lines)

    def tokens(self, text: str) -> list[str]:
        """How raw text is split into words."""
        text = text.lower() if self.settings.text.lowercase else text
        return TOKENIZERS[self.settings.text.tokenizer](text)
