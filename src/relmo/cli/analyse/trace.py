"""`relmo analyse trace MODEL FILE`"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from relmo.cli.output import Overwrite, check_out, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.analysis.core.trace import Trace


def trace(
    model: PathName,
    file: PathName,
    *,
    state: str = "h",
    layer: int = 0,
    unit: int = 0,
    direction: Literal["forward", "backward"] = "forward",
    symbols: int = 2000,
    out: Path | None = None,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """What a model's recurrent layers hold after every symbol of a text: states h and c, and the gates.

    Prints the text with each symbol on the colour of one unit: blue where the unit is negative, orange where it is
    positive. With --out every state and gate of every layer goes to a file.

        relmo analyse trace models/mine text.txt --state c --unit 27

        relmo analyse trace small text.txt --layer 1 --out trace.npz

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, which ships with relmo.
    file
        Plain text, source code, or .conllu; - for standard input. A bidirectional model takes each line for a sentence.
    state
        What to show: h, the layer's output; c, an LSTM's memory; its gates i, f, o and candidate g; a GRU's r, z and n.
    layer
        Which recurrent layer, from 0.
    unit
        Which unit of the layer, from 0.
    direction
        Which direction of a bidirectional model.
    symbols
        How many of the text's first symbols to take; 0 takes all.
    out
        Write all states and gates, (layers, symbols, units) each, to this .npz or .h5 file.
    plot
        Draw the unit's values and, of an LSTM, its gates over the text, to this .png or .svg file.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object: the symbols and the unit's values.
    quiet
        Show no progress.
    """
    from relmo.analysis.core import show
    from relmo.analysis.core import trace as library
    from relmo.analysis.core.files import read_document
    from relmo.cli.terminal import print_coloured, print_json, sayer, share_bar, warnings_said
    from relmo.loading import FORWARDS, load

    check_plot(plot, overwrite=overwrite)
    if out is not None:
        check_out(out, show.ARRAYS, overwrite=overwrite)
    loaded = load(model, kinds=FORWARDS, device=device).splitting(tokenizer)
    document = read_document(loaded, file, symbols=symbols or None)
    with warnings_said(sayer(quiet=quiet)), share_bar("reading", quiet=quiet) as progress:
        traced = library.trace(loaded, document.texts, progress=progress)
    chosen = traced.forward if direction == "forward" else traced.backward
    _check_unit(chosen, state, layer, unit)
    values = chosen.unit(state, layer, unit)
    title = f"{state}{unit} of layer {layer}" + (f", {direction}" if traced.directions == 2 else "")
    if out is not None:
        library.write_trace(traced, out)
        say_wrote(out, quiet=quiet)
    if plot is not None:
        library.draw_unit(chosen, layer, unit, plot, title=title)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"unit": title, "symbols": traced.symbols, "values": values.tolist()})
    elif not (quiet and out is not None):
        print_coloured(show.ColouredText(traced.symbols, values, title, _space(traced.symbols)))


def _space(symbols: Sequence[str]) -> str:
    """What stands between symbols: nothing between characters."""
    return "" if all(len(symbol) == 1 for symbol in symbols) else " "


def _check_unit(traced: "Trace", state: str, layer: int, unit: int) -> None:
    if state not in traced.states:
        raise SettingError(f"--state {state}: the model's cells have {', '.join(traced.states)}")
    if layer not in traced.layers:
        raise SettingError(f"--layer {layer}: the model has the layers 0 to {len(traced.layers) - 1}")
    size = traced.states[state].shape[2]
    if not 0 <= unit < size:
        raise SettingError(f"--unit {unit}: {state} has the units 0 to {size - 1}")
