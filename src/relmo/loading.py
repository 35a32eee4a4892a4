"""`relmo.load`: load a model of any kind from a folder, original ELMo files, or the name of an installed model."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch

from relmo.errors import ModelError, SettingError, WrongKindError, describe_os_error, quote
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.quantize import PRECISIONS
from relmo.settings.bilm import BiLMSettings
from relmo.settings.fields import describe_value
from relmo.settings.kinds import KINDS, TASKS, model_class
from relmo.store.allennlp import is_allennlp, read_allennlp
from relmo.store.folder import pick_device, read_config
from relmo.store.installed import DEFAULT
from relmo.store.language_models import is_language_model, read_language_model
from relmo.store.many_langs import is_many_langs, read_many_langs
from relmo.store.original import PairOrPath, locate, read_original
from relmo.store.references import find_installed
from relmo.store.tf_checkpoint import is_checkpoint, read_checkpoint
from relmo.text.characters import Dictionaries

if TYPE_CHECKING:  # the classes are imported when a model of their kind is loaded
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.models.vectors import WordVectors
    from relmo.tasks.task import Task

    Model: TypeAlias = BiLM | LanguageModel | WordVectors | Task[Any, Any]

Source: TypeAlias = PairOrPath | None
DType: TypeAlias = str | torch.dtype | None
ForwardKinds: TypeAlias = tuple[Literal["lm"], Literal["bilm"]]  # models that predict the next symbol
FORWARD_KINDS: ForwardKinds = ("lm", "bilm")


@overload
def load(
    source: Literal["small"] | None = ..., *, kinds: None = ..., device: str = ..., dtype: DType = ...
) -> "BiLM": ...
@overload
def load(source: Literal["words"], *, kinds: None = ..., device: str = ..., dtype: DType = ...) -> "WordVectors": ...
@overload
def load(source: Source = ..., *, kinds: Literal["bilm"], device: str = ..., dtype: DType = ...) -> "BiLM": ...
@overload
def load(source: Source = ..., *, kinds: Literal["lm"], device: str = ..., dtype: DType = ...) -> "LanguageModel": ...
@overload
def load(
    source: Source = ..., *, kinds: Literal["skipgram"], device: str = ..., dtype: DType = ...
) -> "WordVectors": ...
@overload
def load(
    source: Source = ..., *, kinds: ForwardKinds, device: str = ..., dtype: DType = ...
) -> "BiLM | LanguageModel": ...
@overload
def load(
    source: Source = None,
    *,
    kinds: str | Collection[str] | None = None,
    device: str = "auto",
    dtype: DType = None,
    elmo: str | Path | None = None,
    vectors: str | Path | None = None,
) -> "Model": ...
def load(
    source: Source = None,
    *,
    kinds: str | Collection[str] | None = None,
    device: str = "auto",
    dtype: DType = None,
    elmo: str | Path | None = None,
    vectors: str | Path | None = None,
) -> "Model":
    """Load a model; the returned class depends on its kind. Runs no code from files and never accesses the network.

    source   "small", the bundled bidirectional model, which is the default; "words", the bundled word vectors; the
             name of another installed model (`relmo models` lists them); a model folder; a folder or .zip with an
             original ELMo's options .json and weights .hdf5, under any names; the path of the options; a pair (options,
             weights); a folder of bilm-tf with options.json and a TensorFlow checkpoint; a folder of ELMoForManyLangs;
             a model.tar.gz or .th saved by AllenNLP, for the ELMo in it; or the .pt or .pth file of a language model of
             PyTorch's word_language_model, AWD-LSTM, fastai, Flair or Stanza. A model on disk takes precedence over an
             installed one of the same name; "./small" is always a path
    kinds    the kind, or kinds, that are accepted; any other raises `WrongKindError`
    device   auto (a GPU if there is one), cpu or cuda
    dtype    precision of a bidirectional model's `embed`: None or "float32"; "bfloat16"; on a CPU "int8"; by name or as
             torch dtypes. Other kinds support float32 only
    elmo     path of the biLM that a task's model was trained with, if it has moved; `vectors`, of its static vectors
    """
    precision = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if precision not in PRECISIONS:
        raise SettingError(f"unknown dtype {precision}; choose {', '.join(PRECISIONS)}, or omit it for float32")
    paths = source if isinstance(source, tuple | list) else (DEFAULT if source is None else source,)
    if not all(isinstance(path, str | Path) for path in paths):
        raise SettingError(f"a model is given by a name, a path or a pair of paths, not {describe_value(source)}")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    moved = {name: str(path) for name, path in (("elmo", elmo), ("vectors", vectors)) if path is not None}
    try:
        kind, model = _load(source, kinds, device, moved)
    except OSError as error:
        raise ModelError(f"{error.filename or source}: cannot be read ({describe_os_error(error)})") from error
    if precision != "float32":
        if kind != "bilm":
            raise SettingError(f"dtype {precision} is only supported by bidirectional models (bilm), not by {source}")
        model.precision = precision
    return model


def _load(source: Source, kinds: Collection[str] | None, device: str, moved: dict[str, str]) -> tuple[str, Any]:
    path = find_installed(source) or source
    assert path is not None  # None means the default model, which is bundled
    if moved and not isinstance(path, str | Path):
        raise SettingError(f"--{min(moved)} applies to task models, not to original ELMo files")
    config: dict[str, Any] = {}
    foreign = None
    if isinstance(path, str | Path):
        try:  # config.json decides; other formats are probed only where it is missing or not relmo's
            config = read_config(Path(path), kinds)
        except ModelError:
            if (foreign := _find_foreign(path)) is None:
                raise
    else:
        foreign = _find_foreign(path)
    kind, read_foreign = (config["kind"], None) if foreign is None else foreign
    if kind not in KINDS:
        raise ModelError(f"{path}: unknown kind {quote(kind)}; this version of relmo supports {', '.join(KINDS)}")
    if kinds is not None and kind not in kinds:
        expected = " or ".join(f"{KINDS[name].called} ({name})" for name in kinds)
        if len(kinds) > 2:
            *head, last = kinds
            expected = f"a model of kind {', '.join(head)} or {last}"
        raise WrongKindError(f"{source or DEFAULT}: is {KINDS[kind].called} ({kind}); expected {expected}")
    if read_foreign is not None:
        return kind, read_foreign(pick_device(device))
    assert isinstance(path, str | Path)  # a pair is original ELMo files, or an error
    if moved and kind not in TASKS:
        raise SettingError(f"--{min(moved)} applies to task models; {source} is {KINDS[kind].called}")
    return kind, model_class(kind).from_config(Path(path), config, device=device, moved=moved)


def is_foreign(source: PairOrPath) -> bool:
    """Return whether the source is in a format of another tool."""
    return _find_foreign(source) is not None


def _find_foreign(source: PairOrPath) -> tuple[str, Callable[[torch.device], Any]] | None:
    """Return the kind of the model at the source and a function that reads it, or None if no other tool wrote it."""

    def make_bilm(settings: BiLMSettings, network: BiLMNetwork, dictionaries: Dictionaries | None, device: Any) -> Any:
        return model_class("bilm")(network, settings, None, device, dictionaries=dictionaries)

    if isinstance(source, str | Path) and is_checkpoint(source):
        return "bilm", lambda device: model_class("bilm")(*read_checkpoint(source), device)
    if (original := locate(source)) is not None:
        return "bilm", lambda device: make_bilm(*read_original(original), None, device)
    if not isinstance(source, str | Path):
        return None
    if is_many_langs(source):
        return "bilm", lambda device: make_bilm(*read_many_langs(source), device)
    if is_language_model(source):
        return "lm", lambda device: model_class("lm")(*read_language_model(source), device)
    if is_allennlp(source):
        return "bilm", lambda device: make_bilm(*read_allennlp(source)[1:3], None, device)
    return None


def load_vectors(source: str | None, report: Callable[[str], None]) -> "WordVectors | None":
    """Load static word vectors, by default the bundled ones; if those are missing, report the reason, return None."""
    try:
        return load("words" if source is None else source, kinds="skipgram")
    except ModelError as error:
        if source is not None:
            raise
        report(f"no static vectors for comparison ({error})")
        return None
