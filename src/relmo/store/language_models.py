"""Language models that other tools saved with torch.save, read as data (`disk/state_dict.py`).

- PyTorch's example word_language_model, as a module: Gulordava et al. 2018, Colorless green recurrent networks dream
  hierarchically; van Schijndel et al. 2019, Quantity doesn't buy quality syntax with neural language models
- Merity et al. 2018, Regularizing and optimizing LSTM language models: AWD-LSTM, as a module
- fastai: Howard & Ruder 2018, Universal language model fine-tuning (ULMFiT), as a dictionary of tensors
- Flair and Stanza: Akbik et al. 2018, Contextual string embeddings for sequence labeling; a dictionary with its symbols

All have an embedding, recurrent layers and an output layer; the names and shapes of the tensors say which. The symbols
of word models are in a file next to the weights.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.disk.files import is_file
from relmo.disk.state_dict import PickledObject, StoredTensor, read_objects, read_plain_pickle
from relmo.errors import ModelError, quote
from relmo.networks import make_language_model
from relmo.networks.language_model import RecurrentLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.corpus import read_lines
from relmo.text.vocabulary import END, UNKNOWN, Vocabulary

SUFFIXES = (".pt", ".pth")
VOCABULARIES = ("vocab.txt", "*itos*.pkl", "*vocab*.pkl")
EMBEDDING = re.compile(r"(0\.)?(encoder|char_emb)\.weight")
LAYER = re.compile(
    r"(?:0\.)?(?:rnns?|charlstm\.lstm)\.(?:cells\.)?(?:(\d+)\.)?(?:module\.)?(weight|bias)_(ih|hh)(?:_l(\d+))?(_raw)?"
)
OUTPUT = re.compile(r"(?:1\.)?decoder\.(weight|bias)")
PROJECTION, STARTS = "proj", {"start_h": "charlstm_h_init", "start_c": "charlstm_c_init"}
EMBEDDED, RECURRENT = "encoder.embedding.weight", "encoder.recurrent.layers.{}.0.{}"  # in relmo's network
CELL_BY_BLOCKS = {4: "lstm", 3: "gru", 1: "elman"}
UNKNOWN_SYMBOLS, END_SYMBOLS = (UNKNOWN, "<UNK>", "xxunk"), (END, "<eos>", "xxbos", "\n")
MAX_SYMBOLS = 10_000_000


class SavedLM(NamedTuple):
    """Contents of a file."""

    network: RecurrentLM
    vocabulary: Vocabulary
    settings: LMSettings


def is_language_model(source: str | Path) -> bool:
    """Return whether this is a file with the tensors of a language model; raise `ModelError` if it is damaged."""
    path = Path(source)
    has_suffix = is_file(path) and path.suffix in SUFFIXES
    return has_suffix and any(EMBEDDING.fullmatch(name) for name in _read(path)[0])


def read_language_model(source: str | Path) -> SavedLM:
    """Read the settings, the network and the vocabulary of a file."""
    path = Path(source)
    stored, value, module = _read(path)
    if isinstance(value, dict) and value.get("is_forward_lm") is False:
        raise ModelError(f"{path}: reads text backwards; relmo loads forward language models")
    try:
        tensors, layers = _rename(stored, path)
        embedding = tensors[EMBEDDED]
        symbols = _read_symbols(value, path, len(embedding))
        first, last = (tensors[RECURRENT.format(layer, "weight_hh")] for layer in (0, layers - 1))
        model = LanguageModelSettings(
            cell=CELL_BY_BLOCKS[len(first) // first.shape[1]],
            cell_options=("learned_start=true",) if RECURRENT.format(0, "start_h") in tensors else (),
            layers=layers,
            hidden=first.shape[1],
            last_hidden=last.shape[1] if last.shape[1] != first.shape[1] else None,
            embedding=embedding.shape[1],
            nonlinearity="relu" if _find_mode(module) == "RNN_RELU" else "tanh",
            tied=torch.equal(embedding, tensors["softmax.weight"]),
        )
        is_char = isinstance(value, dict) and ("dictionary" in value or "vocab" in value)
        unit: Any = {"unit": "char"} if is_char else {"unit": "word", "tokenizer": "whitespace"}
        settings = LMSettings(text=TextSettings(**unit, text_per="line"), model=model)
        settings.check()
        network = make_language_model(model, len(symbols))
        assert isinstance(network, RecurrentLM)
        network.load_state_dict(tensors)
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        raise ModelError(f"{path}: its tensors are not those of a recurrent language model ({error})") from error
    return SavedLM(network, Vocabulary(symbols), settings)


def _read(path: Path) -> tuple[dict[str, StoredTensor], Any, PickledObject | None]:
    """Return the tensors of a file, the rest of it, and its module if it has one."""
    objects = read_objects(path)
    value = objects.value
    if isinstance(value, list) and value:  # AWD-LSTM: model, criterion and optimiser
        value = value[0]
    if isinstance(value, PickledObject):
        return objects.find_tensors(value), value, value
    if isinstance(value, dict) and isinstance(value.get("model"), dict):  # with an optimiser, or of a trainer
        value = value["model"]
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds no model")
    tensors = value.get("state_dict", value)
    return objects.find_tensors(tensors) if isinstance(tensors, dict) else {}, value, None


def _rename(stored: dict[str, StoredTensor], path: Path) -> tuple[dict[str, Tensor], int]:
    """Return the tensors under the names of relmo's network, and the number of recurrent layers."""
    names: dict[str, str] = {}
    layers = 0
    for name in sorted(stored, key=lambda name: name.endswith("_raw")):  # of dropped weights, those before dropout
        if EMBEDDING.fullmatch(name):
            names[EMBEDDED] = name
        elif match := LAYER.fullmatch(name):
            module, kind, side, number, _ = match.groups()
            layer = int(module or 0) + int(number or 0)
            layers = max(layers, layer + 1)
            names[RECURRENT.format(layer, f"{kind}_{side}")] = name
        elif match := OUTPUT.fullmatch(name):
            names[f"softmax.{match[1]}"] = name
    for required, called in ((EMBEDDED, "embedding"), ("softmax.weight", "output")):
        if required not in names:
            raise ModelError(f"{path}: has no {called} layer of a language model")
    tensors = {name: _to_tensor(stored[source]) for name, source in names.items()}
    weight = tensors["softmax.weight"]
    tensors.setdefault("softmax.bias", torch.zeros(len(weight)))
    if f"{PROJECTION}.weight" in stored:  # Flair: a linear layer before the output layer, which it becomes a part of
        tensors["softmax.weight"] = weight @ _to_tensor(stored[f"{PROJECTION}.weight"])
        tensors["softmax.bias"] = tensors["softmax.bias"] + weight @ _to_tensor(stored[f"{PROJECTION}.bias"])
    for start, source in STARTS.items():
        if source in stored:
            for layer, row in enumerate(_to_tensor(stored[source]).reshape(layers, -1)):
                tensors[RECURRENT.format(layer, start)] = row
    return tensors, layers


def _to_tensor(stored: StoredTensor) -> Tensor:
    return torch.from_numpy(np.array(stored.read(), dtype=np.float32))


def _find_mode(module: PickledObject | None) -> Any:
    """Return the kind of a module's recurrent layers as torch names it."""
    modules = {} if module is None else module.state.get("_modules", {})
    rnn = modules.get("rnn") if isinstance(modules, dict) else None
    return rnn.state.get("mode") if isinstance(rnn, PickledObject) else None


def _read_symbols(value: Any, path: Path, count: int) -> list[str]:
    """Return the symbols in the order of their ids, the end of a text and unknown symbols under relmo's names."""
    if isinstance(value, dict) and isinstance(value.get("dictionary"), PickledObject):  # Flair
        symbols, where = value["dictionary"].state.get("idx2item"), str(path)
    elif isinstance(value, dict) and isinstance(value.get("vocab"), dict):  # Stanza
        symbols, where = value["vocab"].get("_id2unit"), str(path)
    else:
        files = [file for pattern in VOCABULARIES for file in sorted(path.parent.glob(pattern))]
        if not files:
            expected = "vocab.txt, with one symbol per line in the order of the ids, or fastai's itos.pkl"
            raise ModelError(f"{path}: has no vocabulary next to it: {expected}")
        file, where = files[0], str(files[0])
        symbols = read_plain_pickle(file) if file.suffix == ".pkl" else [line.text for line in read_lines(file)]
    if not isinstance(symbols, list) or len(symbols) > MAX_SYMBOLS:
        raise ModelError(f"{where}: holds no list of symbols")
    names = [symbol.decode("utf-8", "replace") if isinstance(symbol, bytes) else symbol for symbol in symbols]
    if not all(isinstance(name, str) for name in names):
        raise ModelError(f"{where}: a symbol is not a string")
    if len(names) != count:
        raise ModelError(f"{where}: has {len(names):,} symbols; the model of {path.name} has {count:,}")
    for target, candidates in ((UNKNOWN, UNKNOWN_SYMBOLS), (END, END_SYMBOLS)):
        name = next((candidate for candidate in candidates if candidate in names), None)
        if name is None:
            raise ModelError(f"{where}: has none of the symbols {', '.join(map(quote, candidates))}")
        names[names.index(name)] = target
    seen: dict[str, int] = {}
    for i, name in enumerate(names):  # fastai fills its vocabulary with copies of xxfake
        seen[name] = seen.get(name, 0) + 1
        names[i] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    return names
