"""`relmo.load`: a model of any kind, from its folder, from original ELMo files, or by the name of one that ships."""

from pathlib import Path

import torch
from torch import Tensor

from relmo.bilm import BiLM
from relmo.checks import typed
from relmo.classifier import Classifier
from relmo.convert import PairOrPath, locate, read_files
from relmo.errors import ModelError, SettingError, reason, shown
from relmo.folder import own_tensors, read_config
from relmo.lm import LanguageModel
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.pairs import SentencePairs
from relmo.references import DEFAULT, bundled
from relmo.tagger import Tagger
from relmo.vectors import WordVectors

Model = BiLM | LanguageModel | WordVectors | Classifier | SentencePairs | Tagger
KINDS: dict[str, type[Model]] = {
    "bilm": BiLM,
    "lm": LanguageModel,
    "skipgram": WordVectors,
    "classifier": Classifier,
    "pairs": SentencePairs,
    "tagger": Tagger,
}


def load(source: PairOrPath | None = None, *, device: str = "auto", dtype: str | torch.dtype | None = None) -> Model:
    """A model, as the class of its kind. Never unpickles, never touches the network.

    source   "small", the bidirectional model that ships, also where nothing is given, or "words", the word vectors that
             ship; a folder that relmo saved; a folder or a .zip with an original ELMo's options .json and weights
             .hdf5, by whatever names; the path of the options; or a pair (options, weights). A model on disk goes
             before one that ships under the same name; "./small" is one on disk and nothing else
    device   auto (a GPU where there is one), cpu or cuda
    dtype    the precision of a bidirectional model's `embed`: None or "float32"; "bfloat16"; on a CPU "int8"; by name
             or as torch's types. Other kinds of model know float32 alone
    """
    precision = parse_dtype(dtype)
    paths = source if isinstance(source, tuple | list) else (DEFAULT if source is None else source,)
    if not all(isinstance(path, str | Path) for path in paths):
        raise SettingError(f"a model is a name, a path or a pair of paths, not {typed(source)}")
    try:
        model = _load(source, device)
    except OSError as error:
        raise ModelError(f"{error.filename or source}: cannot be read ({reason(error)})") from error
    if precision != "float32":
        if not isinstance(model, BiLM):
            raise SettingError(f"dtype {precision}: is for bidirectional models (bilm); {source} has float32 alone")
        model.precision = precision
    return model


def parse_dtype(dtype: str | torch.dtype | None) -> Precision:
    """The precision by its name."""
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    for precision in PRECISIONS:
        if precision == name:
            return precision
    raise SettingError(f"dtype {name}: it can be {', '.join(PRECISIONS)}; leave it out for float32")


def _load(source: PairOrPath | None, device: str) -> Model:
    source = bundled(source) or source
    assert source is not None  # then it was the default
    if (original := locate(source)) is not None:
        return read_files(original, device=device)
    assert isinstance(source, str | Path)  # a pair is taken for original files, or is an error
    if str(source).startswith(("http://", "https://")):
        raise ModelError(f"{source}: relmo does not download; fetch the files yourself and give their place")
    return load_folder(Path(source), device)


def load_folder(folder: Path, device: str) -> Model:
    """The model in a folder that relmo saved."""
    kind = read_config(folder)["kind"]
    if kind not in KINDS:
        raise ModelError(
            f"{folder}: is of kind {shown(kind)}, which this relmo does not know; it knows {', '.join(KINDS)}"
        )
    return KINDS[kind].from_pretrained(folder, device=device)


def tensors_of(model: Model) -> dict[str, Tensor]:
    """The weights of a model, as its folder names them."""
    if isinstance(model, WordVectors):
        return {"weight": torch.from_numpy(model.matrix)}
    return {name: tensor.detach() for name, tensor in own_tensors(model.network).items()}


def load_bilm(
    source: PairOrPath | None = None, *, device: str = "auto", dtype: str | torch.dtype | None = None
) -> BiLM:
    """A bidirectional language model, from wherever `load` takes one."""
    model = load(source, device=device, dtype=dtype)
    if not isinstance(model, BiLM):
        raise ModelError(f"{source}: is not a bidirectional language model (bilm)")
    return model
