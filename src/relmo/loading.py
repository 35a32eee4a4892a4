"""`relmo.load`: a model of any kind, from its folder, from original ELMo files, or by the name of one that ships."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch

from relmo.errors import ModelError, SettingError, WrongKindError, reason, shown
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.settings.arguments import typed
from relmo.settings.kinds import KINDS, TASKS, model_class
from relmo.store.allennlp import is_saved, read_saved
from relmo.store.folder import pick_device, read_config
from relmo.store.many_langs import is_many_langs, read_many_langs
from relmo.store.original import PairOrPath, locate, read_original
from relmo.store.references import DEFAULT, SHIPPED, bundled

if TYPE_CHECKING:  # the classes themselves are imported when a model of their kind is loaded
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.models.vectors import WordVectors
    from relmo.tasks.task import Task

    Model: TypeAlias = BiLM | LanguageModel | WordVectors | Task[Any, Any]

DType: TypeAlias = str | torch.dtype | None
Forwards: TypeAlias = tuple[Literal["lm"], Literal["bilm"]]  # models that read forwards and predict what comes next
FORWARDS: Forwards = ("lm", "bilm")


@overload
def load(
    source: Literal["small"] | None = None, *, kinds: None = None, device: str = "auto", dtype: DType = None
) -> "BiLM": ...
@overload
def load(
    source: Literal["words"], *, kinds: None = None, device: str = "auto", dtype: DType = None
) -> "WordVectors": ...
@overload
def load(
    source: PairOrPath | None = None, *, kinds: Literal["bilm"], device: str = "auto", dtype: DType = None
) -> "BiLM": ...
@overload
def load(
    source: PairOrPath | None = None, *, kinds: Literal["lm"], device: str = "auto", dtype: DType = None
) -> "LanguageModel": ...
@overload
def load(
    source: PairOrPath | None = None, *, kinds: Literal["skipgram"], device: str = "auto", dtype: DType = None
) -> "WordVectors": ...
@overload
def load(
    source: PairOrPath | None = None, *, kinds: Forwards, device: str = "auto", dtype: DType = None
) -> "BiLM | LanguageModel": ...
@overload
def load(
    source: PairOrPath | None = None,
    *,
    kinds: str | Collection[str] | None = None,
    device: str = "auto",
    dtype: DType = None,
    elmo: str | Path | None = None,
    vectors: str | Path | None = None,
) -> "Model": ...
def load(
    source: PairOrPath | None = None,
    *,
    kinds: str | Collection[str] | None = None,
    device: str = "auto",
    dtype: DType = None,
    elmo: str | Path | None = None,
    vectors: str | Path | None = None,
) -> "Model":
    """A model, as the class of its kind. Never runs what a file says, never touches the network.

    source   "small", the bidirectional model that ships, also where nothing is given, or "words", the word vectors that
             ship; a folder that relmo saved; a folder or a .zip with an original ELMo's options .json and weights
             .hdf5, by whatever names; the path of the options; or a pair (options, weights); or a folder of
             ELMoForManyLangs; or a model.tar.gz or .th that AllenNLP saved, for the ELMo in it. A model on disk goes
             before one that ships under the same name; "./small" is one on disk and nothing else
    kinds    the kind that it must be of, or several of them; a model of another kind is an error
    device   auto (a GPU where there is one), cpu or cuda
    dtype    the precision of a bidirectional model's `embed`: None or "float32"; "bfloat16"; on a CPU "int8"; by name
             or as torch's types. Other kinds of model know float32 alone
    elmo     where the biLM is that a task's model was trained with, if it has moved; vectors, its static vectors
    """
    precision = _parse_dtype(dtype)
    paths = source if isinstance(source, tuple | list) else (DEFAULT if source is None else source,)
    if not all(isinstance(path, str | Path) for path in paths):
        raise SettingError(f"a model is a name, a path or a pair of paths, not {typed(source)}")
    wanted = [kinds] if isinstance(kinds, str) else kinds
    moved = {name: str(place) for name, place in (("elmo", elmo), ("vectors", vectors)) if place is not None}
    try:
        kind, model = _load(source, wanted, device, moved)
    except OSError as error:
        raise ModelError(f"{error.filename or source}: cannot be read ({reason(error)})") from error
    if precision != "float32":
        if kind != "bilm":
            raise SettingError(f"dtype {precision}: is for bidirectional models (bilm); {source} has float32 alone")
        model.precision = precision
    return model


def _parse_dtype(dtype: DType) -> Precision:
    """The precision by its name."""
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    for precision in PRECISIONS:
        if precision == name:
            return precision
    raise SettingError(f"dtype {name}: it can be {', '.join(PRECISIONS)}; leave it out for float32")


def _load(
    source: PairOrPath | None, kinds: Collection[str] | None, device: str, moved: dict[str, str]
) -> tuple[str, Any]:
    place = bundled(source) or source
    assert place is not None  # then it was the default
    if moved and not isinstance(place, str | Path):
        raise SettingError(f"--{min(moved)} is for the model of a task, which original ELMo files are not")
    if (original := locate(place)) is not None:
        _check_kind(source, "bilm", kinds)
        settings, network = read_original(original)
        return "bilm", model_class("bilm")(network, settings, None, pick_device(device))
    if isinstance(place, str | Path) and is_many_langs(place):
        _check_kind(source, "bilm", kinds)
        settings, network, dictionaries = read_many_langs(place)
        return "bilm", model_class("bilm")(network, settings, None, pick_device(device), dictionaries=dictionaries)
    if isinstance(place, str | Path) and is_saved(place):
        _check_kind(source, "bilm", kinds)
        saved = read_saved(place)
        return "bilm", model_class("bilm")(saved.network, saved.settings, None, pick_device(device))
    assert isinstance(place, str | Path)  # a pair is taken for original files, or is an error
    kind = read_config(Path(place), [name for name in SHIPPED if kinds is None or SHIPPED[name] in kinds])["kind"]
    if kind not in KINDS:
        raise ModelError(
            f"{place}: is of kind {shown(kind)}, which this relmo does not know; it knows {', '.join(KINDS)}"
        )
    _check_kind(source, kind, kinds)
    if moved and kind not in TASKS:
        raise SettingError(f"--{min(moved)} is for the model of a task; {source} is {KINDS[kind].called}")
    return kind, model_class(kind).from_pretrained(place, device=device, **moved)


def _check_kind(source: Any, kind: str, kinds: Collection[str] | None) -> None:
    if kinds is not None and kind not in kinds:
        wanted = " or ".join(f"{KINDS[name].called} ({name})" for name in kinds)
        if len(kinds) > 2:
            *most, last = kinds
            wanted = f"a model that relmo train {', '.join(most)} or {last} has made"
        raise WrongKindError(f"{source or DEFAULT}: is {KINDS[kind].called} ({kind}); give {wanted}")


def load_vectors(source: str | None, say: Callable[[str], None]) -> "WordVectors | None":
    """Static word vectors to compare with: those that ship where none are named. Without those there are none, and
    `say` is told why."""
    try:
        return load("words" if source is None else source, kinds="skipgram")
    except ModelError as error:
        if source is not None:
            raise
        say(f"no static vectors to compare with ({error})")
        return None
