"""`relmo info MODEL` and `relmo convert SRC DST`"""

from pathlib import Path
from typing import Any, Literal

from relmo.cli.options import Json, Overwrite
from relmo.cli.terminal import json_line, print_json, print_table
from relmo.errors import ModelError, SettingError, WrongKindError
from relmo.settings.fields import PathName
from relmo.settings.kinds import KINDS, example_command

COUNTS = {"train_symbols": "symbols", "train_tokens": "words", "train_words": "words", "train_examples": "examples"}
TRAINING_SETTINGS = ("dropout", "tied", "softmax", "samples")  # not in files of other libraries
MAX_POINTS = 10_000  # default of TensorBoard's projector


def info(model: PathName = "small", *, json: Json = False, quiet: bool = False) -> None:
    """Describe a model: its kind, training text, settings, results and checksums, and a command to try.

    The weights are read and checked.

        relmo info small

    Args:
        model: A model folder; the name of an installed model, which relmo models lists; original ELMo files (a folder
            or .zip, or the path of the options file); a folder of ELMoForManyLangs; or a model saved by AllenNLP,
            PyTorch's word_language_model, AWD-LSTM, fastai, Flair or Stanza.
        quiet: Print the kind only.
    """
    from relmo.store.installed import get_installed
    from relmo.store.references import find_installed

    facts = gather(model)
    kind, results = facts["kind"], facts["results"]
    if json or quiet:
        print(json_line(facts) if json else kind)
        return
    called = KINDS[kind].called
    print(f"{model}: {called}{'' if kind in called else f' ({kind})'} with {facts['parameters']:,} parameters.")
    if installed := (find_installed(model) and get_installed(model)):
        print(f"It is {f'installed by {installed}' if installed.package else 'bundled with relmo'}.")
    if text := describe_text(facts["about"], results):
        print(f"It was trained on {text}.")
    print(f"Try: {example_command(kind, model)}\n")
    print_table(["", ""], format_facts(facts), left=(0, 1))


def describe_text(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Return the training text of a model in words: as its author describes it, else its files; empty if unknown."""
    files = results.get("trained_on")
    if "text" in about or not isinstance(files, list):
        return str(about.get("text", ""))
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    count = next((f", {results[key]:,} {unit}" for key, unit in COUNTS.items() if key in results), "")
    return f"{', '.join(map(str, files[:3]))}{more}{count}"


def gather(model: str) -> dict[str, Any]:
    """Return everything that `relmo info` prints about a model."""
    from relmo.disk.files import sha256
    from relmo.loading import load
    from relmo.store.allennlp import is_allennlp, read_allennlp
    from relmo.store.folder import digest, named_tensors, read_config, read_record
    from relmo.store.language_models import is_language_model, read_language_model
    from relmo.store.many_langs import is_many_langs, read_many_langs
    from relmo.store.original import locate, read_original
    from relmo.store.references import find_installed
    from relmo.store.tf_checkpoint import is_checkpoint, read_checkpoint

    folder = find_installed(model) or Path(model)
    facts: dict[str, Any] = {"kind": "bilm", "about": {}}
    settings: Any
    network: Any
    if is_checkpoint(folder):
        network, settings, vocabulary = read_checkpoint(folder)
        facts |= {"format": "bilm-tf checkpoint", "vocabulary": None if vocabulary is None else len(vocabulary)}
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    elif (original := locate(folder)) is not None:
        settings, network = read_original(original)
        facts |= {"format": "original ELMo files", "options": original.options.name, "weights": original.weights.name}
        facts["vocabulary"] = None
        paths = list(dict.fromkeys(member.path for member in original))
    elif is_many_langs(folder):
        settings, network, dictionaries = read_many_langs(folder)
        num_words = None if dictionaries.words is None else len(dictionaries.words)
        facts |= {"format": "ELMoForManyLangs", "characters": len(dictionaries.characters), "words": num_words}
        paths = [p for p in sorted(folder.iterdir()) if p.suffix in (".json", ".dic", ".pkl") and p.is_file()]
    elif is_language_model(folder):
        network, symbols, settings = read_language_model(folder)
        facts |= {"kind": "lm", "format": "torch.save", "vocabulary": len(symbols)}
        paths = [folder]
    elif is_allennlp(folder):
        name, settings, network, *_ = read_allennlp(folder)
        facts |= {"format": "AllenNLP", "name": name}
        paths = [folder] if folder.is_file() else []
    else:
        config = read_config(folder)
        loaded = load(folder, device="cpu")  # checks that the files are consistent
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return {
            "kind": config["kind"],
            "about": config.get("about", {}),
            "relmo_version": config.get("relmo_version"),
            "vocabulary": config.get("vocab_size"),
            "parameters": count_parameters(loaded),
            "weights_digest": digest(loaded.tensors()),
            "stored_precision": read_record(folder, config).precision,
            "settings": {k: v for section in (config.get("settings") or {}).values() for k, v in section.items()},
            "results": config.get("results", {}),
            "sha256": {path.name: sha256(path) for path in files},
        }
    tensors = {name: tensor.detach() for name, tensor in named_tensors(network).items()}
    return facts | {
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_digest": digest(tensors),
        "settings": {name: value for name, value in vars(settings.model).items() if name not in TRAINING_SETTINGS},
        "results": {},
        "sha256": {path.name: sha256(path) for path in paths},
    }


def format_facts(facts: dict[str, Any], prefix: str = "") -> list[list[str]]:
    """Return the rows of a table of nested facts with dotted names, without empty ones."""
    rows = []
    for name, fact in facts.items():
        if isinstance(fact, dict):
            rows += format_facts(fact, f"{prefix}{name}.")
        elif fact not in (None, [], ()):
            text = ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else str(fact)
            if isinstance(fact, int | float) and not isinstance(fact, bool):
                text = f"{fact:,}" if isinstance(fact, int) else f"{fact:.6g}"
            rows.append([prefix + name, text])
    return rows


def count_parameters(model: Any, *, without: str | None = None) -> int:
    """Count the parameters of a model, except those of tensors whose names start with `without`."""
    tensors = [tensor for name, tensor in model.tensors().items() if without is None or not name.startswith(without)]
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


def convert(
    source: PathName,
    destination: Path,
    *,
    to: Literal["onnx", "gensim", "projector", "hub", "transformers"] | None = None,
    direction: Literal["forward", "backward"] | None = None,
    weights: Path | None = None,
    precision: Literal["float32", "float16", "int8", "nf4"] | None = None,
    shard_mb: int | None = None,
    card: Path | None = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: bool = False,
) -> None:
    """Convert a model: from or to original ELMo files, to another precision, or to the format of another library.

    Without flags, original ELMo files become a model folder, and a model folder becomes original files (options.json,
    weights.hdf5 and vocab.txt; only for kind bilm with character inputs). --precision writes a model folder of any kind
    in another precision. --to writes the format of another library.

    Original files are an options .json and a weights .hdf5, with any names, in a folder or a .zip.

        relmo convert elmo_2x1024_128_2048cnn_1xhighway.zip models/small
        relmo convert model.tar.gz models/of-my-tagger
        relmo convert models/mine models/compact --precision int8
        relmo convert models/mine mine.onnx --to onnx

    Args:
        source: A model folder; the name of an installed model, such as small; a folder or .zip with original files, or
            the path of an options file next to the weights; a folder of ELMoForManyLangs; or a model.tar.gz or .th
            saved by AllenNLP, for the ELMo in it; or a language model of PyTorch's word_language_model, AWD-LSTM,
            fastai, Flair or Stanza.
        destination: The output folder; with --to onnx or gensim, the output file.
        to: The target format: onnx (the vectors of a bidirectional model, for onnxruntime); gensim (words and their
            vectors, for KeyedVectors.load); projector (the same, for tensorboard --logdir); hub (any model folder, with
            a model card for the Hugging Face hub); transformers (a recurrent language model in one direction).
        direction: With --to transformers: the direction of a bidirectional model, forward (default) or backward.
        weights: The original weights, if they are not next to the options.
        precision: The stored precision of the weights: float32, float16 (half the size), int8 (a quarter: integers
            with a float16 scale per 512 values of a row; biases in float16) or nf4 (the matrices of recurrent and
            output layers in four bits, others as in int8). Loading converts them to float32.
        shard_mb: Split the weights into files of at most this many megabytes.
        card: A file to use as the model card, README.md. By default the card of a model folder is kept. A section with
            the checksums of the weights is added.
        quiet: Print nothing.
    """
    from relmo.loading import is_foreign
    from relmo.store.references import find_installed

    place = find_installed(source) or source
    pair = place if weights is None else (place, weights)
    is_original = to is None and is_foreign(pair)
    if direction is not None and to != "transformers":
        raise SettingError("--direction needs --to transformers.")
    if to is not None:
        if (weights, precision, shard_mb, card) != (None, None, None, None):
            raise SettingError(f"--weights, --precision, --shard-mb and --card cannot be used with --to {to}.")
        try:
            facts = _export(place, destination, to, overwrite=overwrite, direction=direction or "forward")
        except ImportError as error:
            raise SettingError(str(error)) from error
    elif weights is not None and not is_original:
        raise SettingError("--weights needs original ELMo files.")
    elif is_original or precision is not None:
        from relmo.models.saved import pack

        precision = precision or "float32"
        model = pack(pair, destination, precision=precision, shard_mb=shard_mb, card=card, overwrite=overwrite)
        note = "the source has no output layer: the model embeds, but does not predict words" if is_original else ""
        facts = {"format": "relmo", "precision": precision, "parameters": count_parameters(model), "note": note}
    elif shard_mb is not None or card is not None:
        raise SettingError("--shard-mb and --card need a --precision, such as float32.")
    else:
        facts = _export(place, destination, "original", overwrite=overwrite, direction="forward")
    if json:
        print_json({"written": str(destination)} | facts)
    elif not quiet:
        suffix = f" in {facts['precision']}" if "precision" in facts else ""
        note = f"; {facts['note']}" if facts["note"] else ""
        print(f"wrote {destination}: {facts['parameters']:,} parameters{suffix}{note}")


def _export(source: str | Path, destination: Path, to: str, *, overwrite: bool, direction: str) -> dict[str, Any]:
    """Write a model as original ELMo files or in the format of another library; return facts about it."""
    from relmo.loading import FORWARD_KINDS, load

    kinds_of: dict[str, Any] = {"hub": None, "transformers": FORWARD_KINDS}
    kinds = kinds_of.get(to, ("skipgram", "bilm") if to in ("gensim", "projector") else "bilm")
    try:
        model: Any = load(source, kinds=kinds, device="cpu")
    except WrongKindError as error:
        if to != "original":
            raise
        raise ModelError(f"{error}, or a --precision for another kind of model") from error
    without = "softmax." if to in ("onnx", "original") else None
    facts: dict[str, Any] = {"format": to, "parameters": count_parameters(model, without=without), "note": ""}
    if to == "original":
        from relmo.store.original import write_original

        write_original(model, destination, overwrite=overwrite)
        if model.network.softmax is not None:
            facts["note"] = "the output layer is omitted: the original format cannot store it"
    elif to == "onnx":
        from relmo.compat.onnx import export_onnx

        export_onnx(model, destination, overwrite=overwrite)
    elif to == "hub":
        from relmo.compat.huggingface_hub import HubModel
        from relmo.disk.outputs import new_folder
        from relmo.store.folder import MODEL_FILES

        with new_folder(destination, overwrite=overwrite, ours=MODEL_FILES) as folder:
            HubModel(model).save_pretrained(folder)
    elif to == "transformers":
        from relmo.compat.transformers import export_transformers, transformers

        transformers.logging.disable_progress_bar()
        facts["parameters"] = export_transformers(model, destination, direction=direction, overwrite=overwrite)
    elif to == "gensim":
        from relmo.compat.gensim import export_gensim

        facts["words"] = export_gensim(model, destination, overwrite=overwrite)
    else:
        from relmo.compat.gensim import static_vectors
        from relmo.compat.projector import export_projector

        words, vectors = static_vectors(model)
        export_projector({"words": (words[:MAX_POINTS], vectors[:MAX_POINTS])}, destination, overwrite=overwrite)
        facts["words"] = min(len(words), MAX_POINTS)
    return facts
