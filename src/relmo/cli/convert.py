"""`relmo convert SRC DST`"""

from pathlib import Path
from typing import Any, Literal

from relmo.cli.options import Overwrite
from relmo.cli.terminal import print_json
from relmo.errors import ModelError, SettingError, WrongKindError
from relmo.settings.arguments import PathName

MAX_POINTS = 10_000  # default of TensorBoard's projector


def convert(
    source: PathName,
    destination: Path,
    *,
    to: Literal["onnx", "gensim", "projector", "hub"] | None = None,
    weights: Path | None = None,
    precision: Literal["float32", "float16", "int8"] | None = None,
    shard_mb: int | None = None,
    card: Path | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
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

    Parameters
    ----------
    source
        A model folder; small or words, which are bundled; a folder or .zip with original files, or the path of an
        options file next to the weights; a folder of ELMoForManyLangs; or a model.tar.gz or .th saved by AllenNLP, for
        the ELMo in it.
    destination
        The output folder; with --to onnx or gensim, the output file.
    to
        The target format: onnx (the vectors of a bidirectional model, for onnxruntime); gensim (words and their
        vectors, for KeyedVectors.load); projector (the same, for tensorboard --logdir); hub (any model folder, with a
        model card for the Hugging Face hub).
    weights
        The original weights, if they are not next to the options.
    precision
        The stored precision of the weights: float32, float16 (half the size) or int8 (a quarter: integers with a
        float16 scale per 512 values of a row; biases in float16). Loading converts them to float32.
    shard_mb
        Split the weights into files of at most this many megabytes.
    card
        A file to use as the model card, README.md. By default the card of a model folder is kept. A section with the
        checksums of the weights is added.
    json
        Print one JSON object.
    quiet
        Print nothing.
    """
    from relmo.loading import is_foreign
    from relmo.store.references import find_bundled

    place = find_bundled(source) or source
    pair = place if weights is None else (place, weights)
    is_original = to is None and is_foreign(pair)
    if to is not None:
        if (weights, precision, shard_mb, card) != (None, None, None, None):
            raise SettingError(f"--weights, --precision, --shard-mb and --card cannot be used with --to {to}.")
        facts = _export(place, destination, to, overwrite=overwrite)
    elif weights is not None and not is_original:
        raise SettingError("--weights needs original ELMo files.")
    elif is_original or precision is not None:
        from relmo.models.pack import pack

        precision = precision or "float32"
        model = pack(pair, destination, precision=precision, shard_mb=shard_mb, card=card, overwrite=overwrite)
        note = "the source has no output layer: the model embeds, but does not predict words" if is_original else ""
        facts = {"format": "relmo", "precision": precision, "parameters": _count_parameters(model), "note": note}
    elif shard_mb is not None or card is not None:
        raise SettingError("--shard-mb and --card need a --precision, such as float32.")
    else:
        facts = _export_original(place, destination, overwrite=overwrite)
    _report(destination, facts, json=json, quiet=quiet)


def _report(destination: Path, facts: dict[str, Any], *, json: bool, quiet: bool) -> None:
    if json:
        print_json({"written": str(destination)} | facts)
    elif not quiet:
        suffix = f" in {facts['precision']}" if "precision" in facts else ""
        note = f"; {facts['note']}" if facts["note"] else ""
        print(f"wrote {destination}: {facts['parameters']:,} parameters{suffix}{note}")


def _export(source: str | Path, destination: Path, to: str, *, overwrite: bool) -> dict[str, Any]:
    """Write a model in the format of another library; return facts about it."""
    from relmo.loading import load

    kinds: Any = {"hub": None, "onnx": "bilm"}.get(to, ("skipgram", "bilm"))
    model: Any = load(source, kinds=kinds, device="cpu")
    without = "softmax." if to == "onnx" else None
    facts = {"format": to, "parameters": _count_parameters(model, without=without), "note": ""}
    if to == "onnx":
        from relmo.compat.onnx import export_onnx

        export_onnx(model, destination, overwrite=overwrite)
    elif to == "hub":
        from relmo.disk.outputs import new_folder
        from relmo.store.folder import MODEL_FILES

        try:
            from relmo.compat.huggingface_hub import HubModel
        except ImportError as error:
            raise SettingError(str(error)) from error
        with new_folder(destination, overwrite=overwrite, ours=MODEL_FILES) as folder:
            HubModel(model).save_pretrained(folder)
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


def _export_original(source: str | Path, destination: Path, *, overwrite: bool) -> dict[str, Any]:
    """Write a model folder as original ELMo files; return facts about it."""
    from relmo.loading import load
    from relmo.store.original import write_original

    try:
        model = load(source, kinds="bilm", device="cpu")
    except WrongKindError as error:
        raise ModelError(f"{error}, or a --precision for another kind of model") from error
    write_original(model, destination, overwrite=overwrite)
    has_softmax = model.network.softmax is not None
    return {
        "format": "original",
        "parameters": _count_parameters(model, without="softmax."),
        "note": "the output layer is omitted: the original format cannot store it" if has_softmax else "",
    }


def _count_parameters(model: Any, *, without: str | None = None) -> int:
    """Count the parameters of a model, except tensors whose names start with `without`."""
    tensors = [tensor for name, tensor in model.tensors().items() if without is None or not name.startswith(without)]
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
