"""`relmo convert SRC DST`"""

from pathlib import Path


def convert(
    source: Path,
    destination: Path,
    *,
    weights: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Convert original ELMo files to a relmo folder, or a relmo folder to original ELMo files, whichever SOURCE is.

    Original files are an options .json and a weights .hdf5, by whatever names, in a folder or a .zip. A relmo folder of
    kind bilm that reads characters becomes options.json, weights.hdf5 and vocab.txt, as other tools for ELMo read them.

        relmo convert elmo_2x1024_128_2048cnn_1xhighway.zip models/small

        relmo convert models/mine original/mine

    Parameters
    ----------
    source
        A folder that relmo saved; or a folder or .zip with original files, or the path of an options file with the
        weights beside it.
    destination
        The folder to write, which must not exist yet.
    weights
        The original weights, where they do not lie beside the options.
    json
        Print one JSON object.
    quiet
        Print nothing.
    """
    from relmo.cli.report import print_json
    from relmo.convert import locate, new_folder, read_files, write_original
    from relmo.errors import ModelError, SettingError
    from relmo.loading import load

    original = locate(source if weights is None else (source, weights))
    if original is not None:
        model = read_files(original, device="cpu")
        with new_folder(destination) as inside:
            model.save_pretrained(inside)
        lost = "original files hold no output layer: the model embeds, but does not predict words"
    else:
        if weights is not None:
            raise SettingError("weights goes with original ELMo files only; leave it out")
        loaded = load(source, device="cpu")
        from relmo.bilm import BiLM

        if not isinstance(loaded, BiLM):
            raise ModelError(f"{source}: only bidirectional language models (bilm) can become original ELMo files")
        model = loaded
        write_original(model, destination)
        softmax = model.network.softmax is not None
        lost = "the output layer is left out: the original format has no place for it" if softmax else ""
    parameters = sum(p.numel() for name, p in model.network.named_parameters() if not name.startswith("softmax."))
    if json:
        written = "relmo" if original is not None else "original"
        print_json({"written": str(destination), "format": written, "parameters": parameters, "note": lost})
    elif not quiet:
        print(f"wrote {destination}: {parameters:,} parameters" + (f"; {lost}" if lost else ""))
