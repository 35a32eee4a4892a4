"""`relmo info MODEL`"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from relmo.cli.terminal import print_json, print_table
from relmo.settings.arguments import PathName

HELLO = 'the word "hello", with weights that are simple enough to compute by hand'
BUNDLED_CORPORA = {
    "small": "124.7 million words of English: Wikipedia, news, textbooks, books, science, talks, meetings and blogs",
    "words": "76.6 million words of English: Wikipedia, Wikinews, textbooks and novels",
    "code": "the source of SQLite, in C, 9.3 million characters",
    **dict.fromkeys(("prose", "prose-elman", "prose-gru", "prose-lstm"), "War and Peace, 3.0 million characters"),
    "english-french": "164,285 sentence pairs of Tatoeba (CC BY 2.0 FR)",
    "addition": "150,000 sums of numbers of up to four digits",
    **dict.fromkeys(("anbn-lstm", "anbn-gru"), "strings of the form aaabbb, which it has learned to count"),
    **dict.fromkeys(("hello", "hello-gru", "hello-lstm"), HELLO),
}
COUNTS = {"train_symbols": "symbols", "train_tokens": "words", "train_words": "words", "train_examples": "examples"}
DEFAULT_EXAMPLE = 'echo "Anna moved from Berlin to Oslo." | relmo predict {model}'
EXAMPLES = {  # a command for each kind of model
    "lm": "relmo generate {model} --limit 200",
    "bilm": 'echo "A bank lends money." | relmo embed --model {model} --out vectors.h5',
    "skipgram": "relmo train tagger FILE --vectors {model} --out models/tagger",
    "classifier": 'echo "The room was cold and the waiter was rude." | relmo predict {model}',
    "coref": 'echo "Anna saw Bob. She waved to him." | relmo predict {model}',
    "pairs": "printf 'A dog sleeps.\\tAn animal is asleep.\\n' | relmo predict {model}",
    "reader": "printf 'It was built in 1874.\\tWhen was it built?\\n' | relmo predict {model}",
    "seq2seq": "relmo predict {model} FILE",
}
TRAINING_SETTINGS = ("dropout", "tied", "softmax", "samples")  # not in files of other libraries


def info(model: PathName = "small", *, json: bool = False, quiet: bool = False) -> None:
    """Describe a model: its kind, training text, settings, results and checksums, and a command to try.

    The weights are read and checked.

        relmo info small

    Parameters
    ----------
    model
        A model folder; small or words, which are bundled; original ELMo files (a folder or .zip, or the path of the
        options file); a folder of ELMoForManyLangs; or a model saved by AllenNLP.
    json
        Print one JSON object.
    quiet
        Print the kind only.
    """
    facts = gather(model)
    if json:
        print_json(facts)
    elif quiet:
        print(facts["kind"])
    else:
        print(*summarize(model, facts), "", sep="\n")
        print_table(["", ""], [[name, format_fact(fact)] for name, fact in flatten(facts)], left=(0, 1))


def summarize(model: str, facts: dict[str, Any]) -> list[str]:
    """Return three lines: what the model is, what it was trained on, and a command to try."""
    from relmo.settings.kinds import KINDS
    from relmo.store.references import find_bundled

    kind, results = facts["kind"], facts["results"]
    called = KINDS[kind].called
    suffix = "" if kind in called else f" ({kind})"
    lines = [f"{model}: {called}{suffix} with {facts['parameters']:,} parameters."]
    if find_bundled(model) is not None:
        lines.append(f"It is bundled with relmo and was trained on {BUNDLED_CORPORA[model]}.")
    elif files := results.get("trained_on"):
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        count = next((f", {results[key]:,} {unit}" for key, unit in COUNTS.items() if key in results), "")
        lines.append(f"It was trained on {', '.join(files[:3])}{more}{count}.")
    return [*lines, f"Try: {EXAMPLES.get(kind, DEFAULT_EXAMPLE).format(model=shlex.quote(model))}"]


def gather(model: str) -> dict[str, Any]:
    """Return everything that `relmo info` prints about a model."""
    from relmo.disk.digests import sha256
    from relmo.loading import load
    from relmo.store.allennlp import is_allennlp, read_allennlp
    from relmo.store.folder import digest, read_config
    from relmo.store.many_langs import is_many_langs, list_files, read_many_langs
    from relmo.store.original import locate, read_original
    from relmo.store.references import find_bundled
    from relmo.store.weights import read_record

    folder = find_bundled(model) or Path(model)
    facts: dict[str, Any]
    if (original := locate(folder)) is not None:
        settings, network = read_original(original)
        facts = {"options": original.options.name, "weights": original.weights.name, "vocabulary": None}
        paths = list(dict.fromkeys(member.path for member in original))
        return _describe_bilm("original ELMo files", facts, settings, network, paths)
    if is_many_langs(folder):
        settings, network, dictionaries = read_many_langs(folder)
        num_words = None if dictionaries.words is None else len(dictionaries.words)
        facts = {"characters": len(dictionaries.characters), "words": num_words}
        return _describe_bilm("ELMoForManyLangs", facts, settings, network, list_files(folder))
    if is_allennlp(folder):
        saved = read_allennlp(folder)
        paths = [folder] if folder.is_file() else []
        return _describe_bilm("AllenNLP", {"name": saved.name}, saved.settings, saved.network, paths)
    config = read_config(folder)
    tensors = load(folder, device="cpu").tensors()  # checks that the files are consistent
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


def _describe_bilm(
    file_format: str, facts: dict[str, Any], settings: Any, network: Any, paths: Iterable[Path]
) -> dict[str, Any]:
    """Describe a bidirectional language model in the files of another library."""
    from relmo.disk.digests import sha256
    from relmo.store.folder import digest, named_tensors

    tensors = {name: tensor.detach() for name, tensor in named_tensors(network).items()}
    return {
        "kind": "bilm",
        "format": file_format,
        **facts,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING_SETTINGS},
        "results": {},
        "sha256": {path.name: sha256(path) for path in paths},
    }


def flatten(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested facts with dotted names, without empty ones."""
    rows: list[tuple[str, Any]] = []
    for name, fact in facts.items():
        if isinstance(fact, dict):
            rows += flatten(fact, f"{prefix}{name}.")
        elif fact not in (None, [], ()):
            rows.append((prefix + name, fact))
    return rows


def format_fact(fact: Any) -> str:
    """Return a fact as text."""
    if isinstance(fact, bool) or not isinstance(fact, int | float):
        return ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)
    return f"{fact:,}" if isinstance(fact, int) else f"{fact:.6g}"
