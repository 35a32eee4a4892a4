"""`relmo convert SRC DST`"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from relmo.cli.output import Overwrite
from relmo.cli.terminal import print_json
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.loading import Model

MOST_POINTS = 10_000  # as many as TensorBoard's projector shows in its default settings


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
    """Convert a model: from or to original ELMo files, to fewer bits, or to the format of another library.

    Without flags, original ELMo files become a relmo folder, and a relmo folder becomes original files. --precision
    writes a relmo folder of any kind again in fewer bits. --to writes what another library reads.

    Original files are an options .json and a weights .hdf5, by whatever names, in a folder or a .zip. A relmo folder of
    kind bilm that reads characters becomes options.json, weights.hdf5 and vocab.txt, as other tools for ELMo read them.

        relmo convert elmo_2x1024_128_2048cnn_1xhighway.zip models/small

        relmo convert model.tar.gz models/of-my-tagger

        relmo convert models/mine models/compact --precision int8

        relmo convert models/mine mine.onnx --to onnx

    Parameters
    ----------
    source
        A folder that relmo saved, or small or words, which ship with it; or a folder or .zip with original files, or
        the path of an options file with the weights beside it; or a folder of ELMoForManyLangs; or a model.tar.gz or
        .th that AllenNLP saved, for the ELMo in it.
    destination
        The folder to write; with --to onnx or gensim, the file.
    to
        What for: onnx (a bidirectional model's vectors, for onnxruntime); gensim (words and their vectors, for
        KeyedVectors.load); projector (the same, for tensorboard --logdir); hub (any relmo folder, with a card for the
        Hugging Face hub).
    weights
        The original weights, if they are not beside the options.
    precision
        How a relmo folder stores its weights: float32, half of that, or int8, a quarter (whole numbers, a float16 scale
        for each 512 of a row; biases in float16). They are float32 again when they are loaded.
    shard_mb
        Store the weights in several files, each of at most this many megabytes.
    card
        A file to become the folder's model card, README.md. By default the card of a relmo folder is
        kept. A section with the checksums of the weights is added.
    json
        Print one JSON object.
    quiet
        Print nothing.
    """
    from relmo.errors import SettingError
    from relmo.store.foreign import is_foreign
    from relmo.store.references import bundled

    where = bundled(source) or source
    if to is not None:
        if (weights, precision, shard_mb, card) != (None, None, None, None):
            raise SettingError(f"--weights, --precision, --shard-mb and --card do not go with --to {to}; leave it out")
        return _say(_to_library(where, destination, to, overwrite=overwrite), destination, json=json, quiet=quiet)
    original = is_foreign(where if weights is None else (where, weights))
    if not original and weights is not None:
        raise SettingError("--weights goes with original ELMo files only; leave it out")
    if not original and precision is None:
        if shard_mb is not None or card is not None:
            raise SettingError("--shard-mb and --card are for a relmo folder: give a --precision too, such as float32")
        facts = _to_original(where, destination, overwrite=overwrite)
    else:
        from relmo.models.pack import pack

        pair, stored = where if weights is None else (where, weights), precision or "float32"
        model = pack(pair, destination, precision=stored, shard_mb=shard_mb, card=card, overwrite=overwrite)
        lost = "the source holds no output layer: the model embeds, but does not predict words" if original else ""
        facts = {"format": "relmo", "precision": stored, "parameters": _parameters(model), "note": lost}
    return _say(facts, destination, json=json, quiet=quiet)


def _say(facts: dict[str, Any], destination: Path, *, json: bool, quiet: bool) -> None:
    """Tells what was written."""
    facts = {"written": str(destination)} | facts
    if json:
        print_json(facts)
    elif not quiet:
        how = f" in {facts['precision']}" if "precision" in facts else ""
        note = f"; {facts['note']}" if facts["note"] else ""
        print(f"wrote {destination}: {facts['parameters']:,} parameters{how}{note}")


def _to_library(source: str | Path, destination: Path, to: str, *, overwrite: bool) -> dict[str, Any]:
    """A model as another library reads it. -> what there is to say about it"""
    from relmo.loading import load

    if to == "onnx":
        from relmo.compat.onnx import export_onnx

        bilm = load(source, kinds="bilm", device="cpu")
        export_onnx(bilm, destination, overwrite=overwrite)
        return {"format": to, "parameters": _parameters(bilm, without="softmax."), "note": ""}
    model = load(source, kinds=None if to == "hub" else ("skipgram", "bilm"), device="cpu")
    facts = {"format": to, "parameters": _parameters(model), "note": ""}
    if to == "hub":
        _to_hub(model, destination, overwrite=overwrite)
        return facts
    from relmo.compat.gensim import export_gensim, static_vectors
    from relmo.compat.projector import export_projector

    if to == "gensim":
        return facts | {"words": export_gensim(model, destination, overwrite=overwrite)}
    words, vectors = static_vectors(model)
    export_projector({"words": (words[:MOST_POINTS], vectors[:MOST_POINTS])}, destination, overwrite=overwrite)
    return facts | {"words": min(len(words), MOST_POINTS)}


def _to_hub(model: "Model", destination: Path, *, overwrite: bool) -> None:
    """A relmo folder with a card that the hub reads."""
    from relmo.disk.outputs import new_folder
    from relmo.errors import SettingError
    from relmo.store.folder import OURS

    try:
        from relmo.compat.huggingface_hub import HubModel
    except ImportError as error:
        raise SettingError(str(error)) from error
    with new_folder(destination, overwrite=overwrite, ours=OURS) as inside:
        HubModel(model).save_pretrained(inside)


def _to_original(source: str | Path, destination: Path, *, overwrite: bool) -> dict[str, Any]:
    """A relmo folder as original ELMo files. -> what there is to say about it"""
    from relmo.errors import ModelError, WrongKindError
    from relmo.loading import load
    from relmo.store.original import write_original

    try:
        model = load(source, kinds="bilm", device="cpu")
    except WrongKindError as error:
        raise ModelError(f"{error}, or a --precision for another relmo folder") from error
    write_original(model, destination, overwrite=overwrite)
    lost = "the output layer is left out: the original format has no place for it"
    return {
        "format": "original",
        "parameters": _parameters(model, without="softmax."),
        "note": lost if model.network.softmax is not None else "",
    }


def _parameters(model: "Model", *, without: str | None = None) -> int:
    """How many numbers a model has, those of one part left out."""
    tensors = {name: t for name, t in model.tensors().items() if without is None or not name.startswith(without)}
    return sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
