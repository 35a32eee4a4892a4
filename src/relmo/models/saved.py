"""Base class of all models: saving, loading, describing and packing a model folder."""

import copy
import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from torch import Tensor, nn

from relmo.config import to_toml
from relmo.disk.files import sha256
from relmo.disk.outputs import atomic, new_folder
from relmo.errors import ModelError, SettingError, one_line, quote
from relmo.loading import is_foreign, load
from relmo.settings.kinds import KINDS, example_command
from relmo.store.folder import (
    CARD,
    CELLS,
    CONFIG,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    MODEL_FILES,
    SETTINGS,
    VOCABULARY,
    WEIGHTS,
    StoredPrecision,
    TensorForm,
    encode_weights,
    encoded_forms,
    load_weights,
    named_tensors,
    read_config,
    read_encoded,
    read_record,
    read_settings,
    save_config,
    save_weights,
    text_digests,
    text_files,
    verify_text_file,
    write_json,
    write_weights,
)
from relmo.store.original import PairOrPath
from relmo.store.references import bilm_digest, find_installed, read_reference, vectors_digest
from relmo.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from relmo.loading import Model

N = TypeVar("N", bound=nn.Module)
V = TypeVar("V", bound=Vocabulary)
MAX_FILES_TO_LIST = 3  # of the training files
COPIES: Any = (("elmo", COPY_OF_BILM, bilm_digest), ("vectors", COPY_OF_VECTORS, vectors_digest))
VECTORS = "vectors.txt"
ABOUT_VECTORS = f"`{VECTORS}` holds the same vectors in word2vec's text format."
HEADING = "## Stored weights"
PRECISIONS: dict[StoredPrecision, str] = {
    "float32": "in float32",
    "float16": "in float16",
    "int8": "in int8, a float16 scale for each 512 numbers of a row; biases and small tensors in float16",
    "nf4": "in NF4 (recurrent and output layers, a scale for each 64 numbers of a row) and int8; biases in float16",
}
MAX_CARD_BYTES = 1 << 20


class SavedFolder(NamedTuple):
    """Folder of a model that is being loaded: its path, its config.json, and the new paths of references that moved."""

    path: Path
    config: dict[str, Any]
    moved: Mapping[str, str] = MappingProxyType({})

    def settings(self, kind: str, key: str = "settings") -> Any:
        """Return the settings of a model of this kind, stored under this key."""
        return read_settings(self.path, self.config.get(key), kind)

    def vocabulary(self, cls: type[V], name: str = VOCABULARY, *, key: str = "vocab_size", what: str = "symbols") -> V:
        """Load a vocabulary, which must have the size that config.json states."""
        vocabulary = cls.load(verify_text_file(self.path, self.config, name))
        size = self.config.get(key)
        if len(vocabulary) != size:
            raise ModelError(f"{self.path}: {name} has {len(vocabulary)} {what}, config.json says {size}")
        return vocabulary

    def network(self, make: Callable[[], N]) -> N:
        """Return the network that `make` creates, with the weights of the folder."""
        return load_weights(self.path, self.config, make)

    def config_error(self, problem: str) -> ModelError:
        """Return an error about config.json."""
        return ModelError(f"{self.path}: config.json is damaged: {problem}")


class CardText(NamedTuple):
    """Parts of a model card that depend on the kind: a headline, facts, and an example of its use."""

    headline: str
    facts: list[str]
    example: list[str]


class SavedModel:
    """Base class of models; subclasses implement the methods after `# implemented by each kind`.

    settings     settings of its training; None for word vectors that relmo has not trained
    network      module with its weights
    vocabulary   symbols that it reads and predicts, if any
    results      results of its training: sizes and validation scores; empty if unknown
    """

    kind: ClassVar[str]
    settings: Any
    network: nn.Module
    vocabulary: Vocabulary | None
    results: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto", **moved: str) -> Self:
        """Load a model from a folder of `save_pretrained` or `relmo train`, or by the name of a bundled model.

        The biLM and word vectors that a task's model was trained with must still exist, unless the folder holds copies
        of them; if they have moved, give their paths as `elmo` and `vectors`."""
        path = find_installed(folder) or Path(folder)
        config = read_config(path)
        if config["kind"] != cls.kind:
            raise ModelError(f"{folder}: is a {config['kind']} model, not {KINDS[cls.kind].called} ({cls.kind})")
        return cls.from_config(path, config, device=device, moved=moved)

    @classmethod
    def from_config(cls, folder: Path, config: dict[str, Any], *, device: str, moved: Mapping[str, str]) -> Self:
        """Load the model of a folder whose config.json has been read."""
        model = cls.restore(SavedFolder(folder, config, moved), device)
        results = config.get("results")
        model.results = results if isinstance(results, dict) else {}
        return model

    def save_pretrained(self, folder: str | Path, *, results: dict[str, Any] | None = None) -> None:
        """Write the model as a folder, with `results`, by default the model's, in its config and its card.

        Results that are tables are left out by default, since a folder from elsewhere may contain anything."""
        if results is None:
            results = {name: value for name, value in self.results.items() if not isinstance(value, dict)}
        folder = Path(folder)
        for name, vocabulary in self.vocabulary_files().items():
            with atomic(folder / name) as temporary:
                vocabulary.save(temporary)
        self.save_extra_files(folder)
        save_weights(folder, self.network)
        self.save_description(folder, results)

    def save_description(self, folder: Path, results: dict[str, Any]) -> None:
        """Write the card, the settings as commented TOML, and then config.json, which completes a folder."""
        headline, facts, example = self.card_text(folder.name)
        card = [f"# {folder.name}", "", headline, "", *facts, *self.card_results(results), "", *example, ""]
        with atomic(folder / CARD) as temporary:
            temporary.write_text("\n".join(card), encoding="utf-8")
        if self.settings is not None:
            with atomic(folder / SETTINGS) as temporary:
                temporary.write_text(to_toml(self.settings), encoding="utf-8")
        save_config(folder, self.kind, self.config() | {"results": results})

    def with_tokenizer(self, tokenizer: Literal["words", "whitespace"] | None) -> Self:
        """Return a copy that splits raw text with another tokenizer; the model itself if it is None."""
        if tokenizer is None:
            return self
        text: Any = None if self.settings is None else self.settings.text
        if not hasattr(text, "tokenizer") or getattr(text, "unit", "word") != "word":
            raise SettingError(f"tokenizer {tokenizer}: this model does not read words; omit the tokenizer")
        if tokenizer not in ("words", "whitespace"):
            raise SettingError(f"unknown tokenizer {quote(tokenizer)}; choose words or whitespace")
        return self.with_text(tokenizer=tokenizer)

    def with_text(self, **options: Any) -> Self:
        """Return a copy that reads files with other text settings than in training, such as `column` or `errors`."""
        text: Any = self.settings.text
        for name in options:
            if not hasattr(text, name):
                raise SettingError(f"{name} does not apply to {KINDS[self.kind].called}; omit it")
        model = copy.copy(self)
        model.settings = dataclasses.replace(self.settings, text=dataclasses.replace(text, **options))
        model.settings.check()
        return model

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in the folder."""
        return {name: tensor.detach() for name, tensor in named_tensors(self.network).items()}

    def parameter_count(self) -> int:
        """Return the number of trained parameters; of an n-gram model, of its probabilities and weights."""
        count = sum(p.numel() for p in self.network.parameters())
        return count or sum(b.numel() for b in self.network.buffers() if b.is_floating_point())

    def __repr__(self) -> str:
        facts = self._facts()
        parts = [facts["network"]]
        parts += [f"{facts['parameters']} parameters"] if "parameters" in facts else []
        parts += [f"trained on {facts['trained on']}"] if "trained on" in facts else []
        return one_line(f"<{type(self).__name__} ({self.kind}): {'; '.join(parts)}>")

    def _repr_html_(self) -> str:
        figures = {k: v for k, v in self.results.items() if isinstance(v, int | float) and k != "parameters"}
        facts = self._facts() | {k: f"{v:,.4f}" if isinstance(v, float) else f"{v:,}" for k, v in figures.items()}
        style = 'style="text-align:left"'
        rows = (
            f"<tr><th {style}>{escape(str(name))}</th><td {style}>{escape(value)}</td></tr>"
            for name, value in facts.items()
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{''.join(rows)}</tbody></table>"

    def _facts(self) -> dict[str, str]:
        facts = {"kind": f"{self.kind}, {KINDS[self.kind].called}", "network": self.geometry()}
        if hasattr(self, "network"):  # a model has none before its training
            facts["parameters"] = f"{self.parameter_count():,}"
        files = self.results.get("trained_on")
        if isinstance(files, list) and files:
            num_hidden = len(files) - MAX_FILES_TO_LIST
            names = ", ".join(map(str, files[:MAX_FILES_TO_LIST]))
            facts["trained on"] = f"{names} and {num_hidden} more" if num_hidden > 0 else names
        return facts

    # implemented by each kind

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        """Create the model from its folder."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Return the entries of config.json that `restore` needs."""
        size = None if self.vocabulary is None else len(self.vocabulary)
        return {"vocab_size": size, "settings": None if self.settings is None else dataclasses.asdict(self.settings)}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        """Return the vocabularies by file name (`store.folder.VOCABULARY_NAME`)."""
        return {} if self.vocabulary is None else {VOCABULARY: self.vocabulary}

    def save_extra_files(self, folder: Path) -> None:
        """Write further files of the folder; by default none."""

    def geometry(self) -> str:
        """Return a short description of the network."""
        raise NotImplementedError

    def card_text(self, name: str) -> CardText:
        """Return the text for the card of a model in a folder of this name."""
        headline = f"A{KINDS[self.kind].called[1:]}, made with relmo."  # `called` is "a tagger", for example
        facts = [f"- {self.geometry()}", f"- parameters: {self.parameter_count():,}"]
        return CardText(headline, facts, ["```", example_command(self.kind, name), "```"])

    def card_results(self, results: dict[str, Any]) -> list[str]:
        """Return lines on its training and its scores."""
        return [
            f"- {key}: {value:,.4f}" if isinstance(value, float) else f"- {key}: {value}"
            for key, value in results.items()
        ]


def describe_layers(layers: int, units: int) -> str:
    """Return the number of layers and their units in words."""
    return f"{layers} layer of {units} units" if layers == 1 else f"{layers} layers of {units} units"


def pack(
    source: PairOrPath | None,
    destination: str | Path,
    *,
    precision: StoredPrecision | None = "float32",
    shard_mb: int | None = None,
    card: str | Path | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    overwrite: bool = False,
) -> "Model":
    """Write the model that `relmo.load(source)` returns as a new folder, and return it as it was loaded.

    The vocabulary, the settings, the named cells and config.json are copied, and so is the card unless another is
    given; its section on the stored weights, with their checksums, is renewed. Copies of the models it is built on are
    stored in the same precision. Files of the training run, and word vectors as text, are left out.

    precision   precision of stored weights: float32, float16, int8 or nf4; None keeps it; loaded weights are float32
    shard_mb    maximum size of a weight file in megabytes; by default there is one file
    card        file with another README.md for the folder
    about       entries of `about` in config.json, over those that it has: text, languages, license
    overwrite   replace a folder that relmo wrote, which may be the source
    """
    if shard_mb is not None and shard_mb < 1:
        raise SettingError(f"the size of weight files is {shard_mb} MB; it must be at least 1")
    text = None if card is None else _read_card(Path(card))
    source = find_installed(source) or source
    model = load(source, device="cpu")
    with new_folder(Path(destination), overwrite=overwrite, ours=MODEL_FILES) as folder:
        if source is None or not isinstance(source, str | Path) or is_foreign(source):
            model.save_pretrained(folder)
            (folder / WEIGHTS).unlink()
        else:
            for name in (CONFIG, SETTINGS, CARD, CELLS, *text_files(Path(source))):
                if (Path(source) / name).is_file():
                    shutil.copyfile(Path(source) / name, folder / name)
            _pack_copies(Path(source), folder, precision)
        (folder / VECTORS).unlink(missing_ok=True)
        config = read_config(folder)
        kept = read_record(folder, config)
        if precision in (None, kept.precision) and kept.digests:  # encoded once only
            forms = {name: TensorForm(tuple(t.shape), t.dtype) for name, t in model.tensors().items()}
            stored = read_encoded(Path(source), kept, encoded_forms(forms, kept.precision))  # type: ignore[arg-type]
        else:
            stored = encode_weights(model.tensors(), precision or kept.precision)
        record = write_weights(folder, stored, precision or kept.precision, shard_mb)
        if text is None:
            text = _read_card(folder / CARD) if (folder / CARD).is_file() else f"# {folder.name}\n"
            text = text.replace(ABOUT_VECTORS + "\n", "")
        description = re.sub(rf"^{HEADING}\n.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE).rstrip()
        summary = f"Weights are stored {PRECISIONS[record.precision]};\nrelmo loads them as float32."
        lines = [description, "", HEADING, "", summary, "", "| file | bytes | SHA-256 |", "|---|---|---|"]
        for name in record.names:
            lines.append(f"| {name} | {(folder / name).stat().st_size:,} | {sha256(folder / name)} |")
        with atomic(folder / CARD) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        config |= {"stored": record._asdict(), "digests": text_digests(folder)}
        if about := {**config.get("about", {}), **about}:
            config["about"] = about
        write_json(folder / CONFIG, config)
    return model


def _pack_copies(source: Path, folder: Path, precision: StoredPrecision | None) -> None:
    """Store the copies of the models that a task's model is built on, and the digests of their new weights."""
    config = read_config(folder)
    for name, subfolder, checksum in COPIES:
        reference = read_reference(folder, config, name)
        if reference is not None and reference.source == f"./{subfolder}" and (source / subfolder).is_dir():
            pack(source / subfolder, folder / subfolder, precision=precision)
            digest = checksum(load(folder / subfolder, device="cpu"))  # of the weights as rounded
            config[name] = reference._replace(digest=digest)._asdict()
    write_json(folder / CONFIG, config)


def _read_card(path: Path) -> str:
    if not path.is_file():
        raise ModelError(f"{path}: {'is not a file' if path.exists() else 'does not exist'}; give a model card")
    if path.stat().st_size > MAX_CARD_BYTES:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes is too large for a model card")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: a model card must be UTF-8 ({error})") from error
