"""A model as a folder, for every kind alike: saved, loaded, described.

    folder = config.json            the kind, its sizes, its settings, its results, the digests of the text files
             model.safetensors      the weights
             vocabulary.txt …       what `vocabulary_files` names
             settings.toml          the settings, for people; README.md a card, for people

A kind is a subclass. It says what goes into config.json (`config`), which text files it has (`vocabulary_files`), what
else it keeps (`save_others`), how it is made from all that (`restore`), what its card says (`about`), and what its
network is in a few words (`geometry`).
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from torch import Tensor, nn

from relmo.config import to_toml
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, SettingError, one_line, shown
from relmo.settings.kinds import KINDS, check_settings
from relmo.store.folder import (
    CARD,
    SETTINGS,
    VOCABULARY,
    known_text,
    own_tensors,
    read_config,
    read_settings,
    save_config,
)
from relmo.store.references import bundled
from relmo.store.weights import load_weights, save_weights
from relmo.text.vocabulary import Vocabulary

N = TypeVar("N", bound=nn.Module)
V = TypeVar("V", bound=Vocabulary)
NAMED = 3  # files that a model was trained on, of which a line names the first


class SavedFolder(NamedTuple):
    """The folder of a model that is being loaded, its config.json, and where the models are now that it is built on and
    that have moved, by their names in config.json."""

    path: Path
    config: dict[str, Any]
    moved: Mapping[str, str] = MappingProxyType({})

    def settings(self, kind: str, key: str = "settings") -> Any:
        """The settings of a model of this kind, under this key."""
        return read_settings(self.path, self.config.get(key), kind)

    def vocabulary(self, made: type[V], name: str = VOCABULARY, *, key: str = "vocab_size", what: str = "symbols") -> V:
        """A vocabulary, which must have as many symbols as config.json says."""
        found = made.load(known_text(self.path, self.config, name))
        if len(found) != self.config.get(key):
            raise ModelError(f"{self.path}: {name} has {len(found)} {what}, config.json says {self.config.get(key)}")
        return found

    def network(self, make: Callable[[], N]) -> N:
        """The network that `make` makes, with the folder's weights."""
        return load_weights(self.path, self.config, make)

    def damaged(self, what: str) -> ModelError:
        """An error to raise."""
        return ModelError(f"{self.path}: config.json is damaged: {what}")


class About(NamedTuple):
    """A model card's own lines: what the model is, in a sentence; its sizes and such; how it is used."""

    headline: str
    facts: list[str]
    example: list[str]


class SavedModel:
    """What models of all kinds share; a subclass fills in what is below `# what a kind says for itself`.

    settings     those it was trained with; None for word vectors that relmo has not trained
    network      what its weights are in
    vocabulary   what it reads and predicts, where it has one
    results      what its training came to: sizes and the scores of the validation part; nothing where it is not known
    """

    kind: ClassVar[str]
    settings: Any
    network: nn.Module
    vocabulary: Vocabulary | None
    results: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto", **moved: str) -> Self:
        """A model from the folder that `save_pretrained` or `relmo train` wrote, or by the name of one that ships. A
        biLM and word vectors that a task's model was trained with must still be there, or copies of them in the
        folder; where they have moved, `elmo` and `vectors` say where to."""
        place = bundled(folder) or Path(folder)
        saved = SavedFolder(place, read_config(place), moved)
        found = saved.config["kind"]
        if found != cls.kind:
            raise ModelError(f"{folder}: is a {found} model, not {KINDS[cls.kind].called} ({cls.kind})")
        model = cls.restore(saved, device)
        results = saved.config.get("results")
        model.results = results if isinstance(results, dict) else {}
        return model

    def save_pretrained(self, folder: str | Path, *, results: dict[str, Any] | None = None) -> None:
        """Writes the model as a folder; `results` go into its config and its card. Where none are given, the model's
        own do, those in tables aside, which a folder from elsewhere may have filled with anything."""
        if results is None:
            results = {name: value for name, value in self.results.items() if not isinstance(value, dict)}
        folder = Path(folder)
        for name, vocabulary in self.vocabulary_files().items():
            with atomic(folder / name) as temporary:
                vocabulary.save(temporary)
        self.save_others(folder)
        save_weights(folder, self.network)
        self.save_description(folder, results)

    def save_description(self, folder: Path, results: dict[str, Any]) -> None:
        """The card and the settings as commented TOML, for people; then config.json, after which a folder is whole."""
        with atomic(folder / CARD) as temporary:
            temporary.write_text(self.card(folder.name, results), encoding="utf-8")
        if self.settings is not None:
            with atomic(folder / SETTINGS) as temporary:
                temporary.write_text(to_toml(self.settings), encoding="utf-8")
        save_config(folder, self.kind, self.config() | {"results": results})

    def card(self, name: str, results: dict[str, Any]) -> str:
        """A model card: what this is, how it was made, how well it does, how it is used."""
        headline, facts, example = self.about(name)
        return "\n".join([f"# {name}", "", headline, "", *facts, *self.card_results(results), "", *example, ""])

    def splitting(self, tokenizer: Literal["words", "whitespace"] | None) -> Self:
        """The same model, which splits raw text into words in another way; as it is where none is given."""
        if tokenizer is None:
            return self
        text: Any = None if self.settings is None else self.settings.text
        if not hasattr(text, "tokenizer") or getattr(text, "unit", "word") != "word":
            raise SettingError(f"tokenizer {tokenizer}: this model does not read words; leave the tokenizer out")
        if tokenizer not in ("words", "whitespace"):
            raise SettingError(f"the tokenizer is {shown(tokenizer)}; it can be words or whitespace")
        return self.with_text(tokenizer=tokenizer)

    def with_text(self, **options: Any) -> Self:
        """Return a copy that reads files with other text settings than in training, such as `column` or `errors`."""
        text: Any = self.settings.text
        for name in options:
            if not hasattr(text, name):
                raise SettingError(f"{name} has no meaning for {KINDS[self.kind].called}; leave it out")
        model = copy.copy(self)
        model.settings = dataclasses.replace(self.settings, text=dataclasses.replace(text, **options))
        check_settings(self.kind, model.settings)
        return model

    def tensors(self) -> dict[str, Tensor]:
        """The weights, as the folder names them."""
        return {name: tensor.detach() for name, tensor in own_tensors(self.network).items()}

    def parameter_count(self) -> int:
        """Trained numbers; of an n-gram model, its probabilities and weights."""
        own = sum(p.numel() for p in self.network.parameters())
        return own or sum(b.numel() for b in self.network.buffers() if b.is_floating_point())

    def __repr__(self) -> str:
        facts = self._facts()
        what = [facts["network"]]
        what += [f"{facts['parameters']} parameters"] if "parameters" in facts else []
        what += [f"trained on {facts['trained on']}"] if "trained on" in facts else []
        return one_line(f"<{type(self).__name__} ({self.kind}): {'; '.join(what)}>")

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        figures = {k: v for k, v in self.results.items() if isinstance(v, int | float) and k != "parameters"}
        shown = self._facts() | {k: f"{v:,.4f}" if isinstance(v, float) else f"{v:,}" for k, v in figures.items()}
        left = 'style="text-align:left"'
        rows = (
            f"<tr><th {left}>{escape(str(name))}</th><td {left}>{escape(value)}</td></tr>"
            for name, value in shown.items()
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{''.join(rows)}</tbody></table>"

    def _facts(self) -> dict[str, str]:
        """What there is to say of the model in a line."""
        facts = {"kind": f"{self.kind}, {KINDS[self.kind].called}", "network": self.geometry()}
        if hasattr(self, "network"):  # which a model that is to be trained has not yet
            facts["parameters"] = f"{self.parameter_count():,}"
        files = self.results.get("trained_on")
        if isinstance(files, list) and files:
            more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
            facts["trained on"] = ", ".join(map(str, files[:NAMED])) + more
        return facts

    def _settings_values(self) -> dict[str, Any] | None:
        return None if self.settings is None else dataclasses.asdict(self.settings)

    # what a kind says for itself

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        """The model that is in a folder."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """What `restore` needs to know, as config.json has it."""
        size = None if self.vocabulary is None else len(self.vocabulary)
        return {"vocab_size": size, "settings": self._settings_values()}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        """The vocabularies, by the names of their files (`store.folder.TEXT`)."""
        return {} if self.vocabulary is None else {VOCABULARY: self.vocabulary}

    def save_others(self, folder: Path) -> None:
        """Writes what else the folder holds; nothing where a kind does not say otherwise."""

    def geometry(self) -> str:
        """The network in a few words."""
        raise NotImplementedError

    def about(self, name: str) -> About:
        """What the card of a model in a folder of this name says."""
        raise NotImplementedError

    def card_results(self, results: dict[str, Any]) -> list[str]:
        """How it was trained and how well it does, a line each."""
        return [
            f"- {key}: {value:,.4f}" if isinstance(value, float) else f"- {key}: {value}"
            for key, value in results.items()
        ]


def layers_of(layers: int, units: int) -> str:
    """So many layers of so many units."""
    return f"{layers} layer of {units} units" if layers == 1 else f"{layers} layers of {units} units"
