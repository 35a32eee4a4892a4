"""`relmo info MODEL`"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relmo.cli.terminal import print_json, print_table
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.store.original import Original

HELLO = 'the word "hello", with weights that are simple enough to compute by hand'
SHIPPED = {
    "small": "124.7 million words of English: Wikipedia, news, textbooks, books, science, talks, meetings and blogs",
    "words": "76.6 million words of English: Wikipedia, Wikinews, textbooks and novels",
    "prose": "War and Peace, 3.0 million characters",
    "code": "the source of SQLite, in C, 9.3 million characters",
    "prose-elman": "War and Peace, 3.0 million characters",
    "prose-gru": "War and Peace, 3.0 million characters",
    "prose-lstm": "War and Peace, 3.0 million characters",
    "english-french": "164,285 sentence pairs of Tatoeba (CC BY 2.0 FR)",
    "addition": "150,000 sums of numbers of up to four digits",
    "anbn-lstm": "strings of the form aaabbb, which it has learned to count",
    "anbn-gru": "strings of the form aaabbb, which it has learned to count",
    "hello": HELLO,
    "hello-gru": HELLO,
    "hello-lstm": HELLO,
}
COUNTS = {"train_symbols": "symbols", "train_tokens": "words", "train_words": "words", "train_examples": "examples"}
SENTENCE = 'echo "Anna moved from Berlin to Oslo." | relmo predict {model}'
NEXT = {  # a command for each kind of model
    "lm": "relmo generate {model} --limit 200",
    "bilm": 'echo "A bank lends money." | relmo embed --model {model} --out vectors.h5',
    "skipgram": "relmo train tagger FILE --vectors {model} --out models/tagger",
    "tagger": SENTENCE,
    "srl": SENTENCE,
    "classifier": 'echo "The room was cold and the waiter was rude." | relmo predict {model}',
    "coref": 'echo "Anna saw Bob. She waved to him." | relmo predict {model}',
    "pairs": "printf 'A dog sleeps.\\tAn animal is asleep.\\n' | relmo predict {model}",
    "reader": "printf 'It was built in 1874.\\tWhen was it built?\\n' | relmo predict {model}",
    "seq2seq": "relmo predict {model} FILE",
}
TRAINING = ("dropout", "tied", "softmax", "samples")  # settings that original files do not have


def info(model: PathName = "small", *, json: bool = False, quiet: bool = False) -> None:
    """Say what a model is, what it was trained on and what to do with it; then its settings, results and checksums.

    The weights are read and checked.

        relmo info small

    Parameters
    ----------
    model
        The model's folder, or small or words, which ship with relmo; or original ELMo files: a folder or .zip that
        holds them, or the path of the options; or a folder of ELMoForManyLangs; or a model that AllenNLP saved.
    json
        Print one JSON object.
    quiet
        Print the kind alone.
    """
    facts = gather(model)
    if json:
        print_json(facts)
    elif quiet:
        print(facts["kind"])
    else:
        print(*summary(model, facts), "", sep="\n")
        print_table(["", ""], [[name, show(value)] for name, value in flatten(facts)], left=(0, 1))


def summary(model: str, facts: dict[str, Any]) -> list[str]:
    """What a model is, what it was trained on and what to type next, a line each."""
    from relmo.settings.kinds import KINDS
    from relmo.store.references import bundled

    kind = facts["kind"]
    called = KINDS[kind].called
    also = "" if kind in called else f" ({kind})"
    lines = [f"{model}: {called}{also} with {facts['parameters']:,} parameters."]
    results = facts["results"]
    if bundled(model) is not None:
        lines.append(f"It ships with relmo and was trained on {SHIPPED[model]}.")
    elif files := results.get("trained_on"):
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        count = next((f", {results[key]:,} {unit}" for key, unit in COUNTS.items() if key in results), "")
        lines.append(f"It was trained on {', '.join(files[:3])}{more}{count}.")
    return [*lines, f"Try: {NEXT[kind].format(model=shlex.quote(model))}"]


def gather(model: str) -> dict[str, Any]:
    """What there is to say about a model."""
    from relmo.disk.digests import sha256
    from relmo.loading import load
    from relmo.store.allennlp import is_saved
    from relmo.store.folder import digest, read_config
    from relmo.store.many_langs import is_many_langs
    from relmo.store.original import locate
    from relmo.store.references import bundled
    from relmo.store.weights import read_record

    folder = bundled(model) or Path(model)
    if (original := locate(folder)) is not None:
        return _gather_original(original)
    if is_many_langs(folder):
        return _gather_many_langs(folder)
    if is_saved(folder):
        return _gather_saved(folder)
    config = read_config(folder)
    tensors = load(folder, device="cpu").tensors()  # checks that everything fits together
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return {
        "kind": config["kind"],
        "relmo_version": config.get("relmo_version"),
        "vocabulary": config.get("vocab_size"),
        "parameters": sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point()),
        "weights_digest": digest(tensors),
        "stored_precision": read_record(folder, config).precision,
        "settings": {k: v for section in (config.get("settings") or {}).values() for k, v in section.items()},
        "results": config.get("results", {}),
        "sha256": {path.name: sha256(path) for path in files},
    }


def _gather_original(original: "Original") -> dict[str, Any]:
    """What there is to say about original ELMo files."""
    from relmo.disk.digests import sha256
    from relmo.store.folder import digest, own_tensors
    from relmo.store.original import read_original

    settings, network = read_original(original)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(network).items()}
    return {
        "kind": "bilm",
        "format": "original ELMo files",
        "options": original.options.name,
        "weights": original.weights.name,
        "vocabulary": None,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path) for path in {member.path: None for member in original}},
    }


def _gather_many_langs(folder: Path) -> dict[str, Any]:
    """What there is to say about a folder of ELMoForManyLangs."""
    from relmo.disk.digests import sha256
    from relmo.store.folder import digest, own_tensors
    from relmo.store.many_langs import files_of, read_many_langs

    settings, network, dictionaries = read_many_langs(folder)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(network).items()}
    return {
        "kind": "bilm",
        "format": "ELMoForManyLangs",
        "characters": len(dictionaries.characters),
        "words": None if dictionaries.words is None else len(dictionaries.words),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path) for path in files_of(folder)},
    }


def _gather_saved(path: Path) -> dict[str, Any]:
    """What there is to say about the ELMo of a model that AllenNLP saved."""
    from relmo.disk.digests import sha256
    from relmo.store.allennlp import read_saved
    from relmo.store.folder import digest, own_tensors

    saved = read_saved(path)
    tensors = {name: tensor.detach() for name, tensor in own_tensors(saved.network).items()}
    return {
        "kind": "bilm",
        "format": "AllenNLP",
        "name": saved.name,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(saved.settings.model).items() if name not in TRAINING},
        "results": {},
        "sha256": {path.name: sha256(path)} if path.is_file() else {},
    }


def flatten(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested facts as dotted names, those without a value left out."""
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{name}.")
        elif value not in (None, [], ()):
            rows.append((prefix + name, value))
    return rows


def show(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
