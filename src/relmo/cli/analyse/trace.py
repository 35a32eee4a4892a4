"""`relmo analyse trace MODEL FILE`"""

from pathlib import Path

from relmo.cli.analyse.base import MODELS, OUTPUT, Direction, Models, Output
from relmo.cli.options import check_out, report_written
from relmo.errors import SettingError
from relmo.settings.arguments import PathName


def trace(
    model: PathName,
    file: PathName,
    *,
    state: str = "h",
    layer: int = 0,
    unit: int = 0,
    direction: Direction = "forward",
    symbols: int = 2000,
    out: Path | None = None,
    output: Output = OUTPUT,
    loading: Models = MODELS,
) -> None:
    """Record the states and gates of a model's recurrent layers after every symbol of a text.

    Prints the text with each symbol coloured by the value of one unit: blue for negative, orange for positive values.
    --plot draws the values of the unit and, for an LSTM, its gates. --out writes every state and gate of every layer.

        relmo analyse trace models/mine text.txt --state c --unit 27

        relmo analyse trace small text.txt --layer 1 --out trace.npz

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, a bundled model.
    file
        Plain text, source code, or .conllu; - for standard input. For a bidirectional model each line is a sentence.
    state
        The state or gate to print: h, the layer's output; c, an LSTM's memory; its gates i, f, o and candidate g; a
        GRU's r, z and n.
    layer
        The recurrent layer, from 0.
    unit
        The unit of the layer, from 0.
    symbols
        The number of symbols to read; 0 reads all.
    out
        Write all states and gates, (layers, symbols, units) each, to this .npz or .h5 file.
    """
    from relmo.analysis.core import show
    from relmo.analysis.core import trace as library
    from relmo.analysis.core.features import read_document
    from relmo.cli.terminal import print_coloured, print_json

    output.check()
    if out is not None:
        check_out(out, show.ARRAY_FORMATS, overwrite=output.overwrite)
    loaded = loading.load(model)
    document = read_document(loaded, file, symbols=symbols or None)
    with output.notes(), output.progress("reading") as progress:
        traced = library.trace(loaded, document.texts, progress=progress)
    selected = traced.forward if direction == "forward" else traced.backward
    if state not in selected.states:
        raise SettingError(f"--state {state}: the model's cells have {', '.join(selected.states)}")
    if layer not in selected.layers:
        raise SettingError(f"--layer {layer}: the model has the layers 0 to {len(selected.layers) - 1}")
    size = selected.states[state].shape[2]
    if not 0 <= unit < size:
        raise SettingError(f"--unit {unit}: {state} has the units 0 to {size - 1}")
    values = selected.unit(state, layer, unit)
    title = f"{state}{unit} of layer {layer}" + (f", {direction}" if traced.directions == 2 else "")
    if out is not None:
        library.write_trace(traced, out)
        report_written(out, quiet=output.quiet)
    output.draw(lambda path: library.draw_unit(selected, layer, unit, path, title=title))
    if output.json:
        print_json({"unit": title, "symbols": traced.symbols, "values": values.tolist()})
    elif not (output.quiet and out is not None):
        separator = "" if all(len(symbol) == 1 for symbol in traced.symbols) else " "
        print_coloured(show.ColouredText(traced.symbols, values, title, separator))
