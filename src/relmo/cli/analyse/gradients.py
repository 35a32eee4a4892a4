"""`relmo analyse gradients [MODEL…]` and `relmo analyse connectivity MODEL TEXT`"""

import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.numbers import number_of
from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.cells import CELLS

if TYPE_CHECKING:
    from relmo.analysis.memory.fresh import Fresh

SYMBOLS = 200_000  # characters of a text that are taken


@dataclass(frozen=True, kw_only=True)
class FreshOptions:
    """Networks before training."""

    fresh: str | None = None
    """Also look at fresh character models of these cells, with commas between, such as elman,gru,lstm."""
    forget_bias: str | None = None
    """Also look at fresh LSTMs with these numbers added to the forget gate's bias, with commas between."""
    spectral_radius: str | None = None
    """Also look at fresh Elman networks whose recurrent weights have these spectral radii, with commas between."""
    hidden: int = 128
    """How many units fresh networks have."""
    start: Literal["torch", "relmo"] = "torch"
    """How the weights of fresh networks are drawn: as torch does, or as relmo train lm does."""
    untrained: bool = False
    """Also look at each of the models as it was before training."""


def gradients(
    *models: PathName,
    text: PathName | None = None,
    lags: int = 100,
    positions: int = 64,
    jacobian: int = 0,
    direction: Literal["forward", "backward"] = "forward",
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
    fresh: Annotated[FreshOptions, Parameter(name="*", group="Untrained networks")] = FreshOptions(),
) -> None:
    """How far back a loss reaches: the norm of its gradient with respect to the states k symbols before, by k.

    It measures models side by side. Of fresh networks it shows what the forget gate's bias and the size of the
    recurrent weights do before any training. Without models and --fresh, it takes all cells as torch starts them.

        relmo analyse gradients models/lstm models/gru models/elman --text book.txt --plot memory.png

        relmo analyse gradients --forget-bias 0,1,2,4 --spectral-radius 1,2,3

    Parameters
    ----------
    models
        Folders of language models, bidirectional or not.
    text
        A file of text to measure on; by default the text that ships with relmo. Its first 200,000 characters
        are taken. For a bidirectional model each line is a sentence.
    lags
        How many symbols to look back.
    positions
        At how many places of the text to measure.
    jacobian
        At how many of these places to measure the largest singular value of the Jacobian too, by lag.
    direction
        Which direction of a bidirectional model.
    plot
        Draw the curves to this .png or .svg file.
    seed
        The seed that draws the places and the fresh weights.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object with all curves.
    quiet
        Show no progress.
    """
    from relmo.analysis.core.untrained import untrained
    from relmo.analysis.memory import gradients as library
    from relmo.analysis.memory.fresh import fresh_flows
    from relmo.cli.terminal import print_json, print_tables, share_bar
    from relmo.loading import FORWARDS, load

    check_plot(plot, overwrite=overwrite)
    if jacobian < 0:
        raise SettingError(f"--jacobian must be 0 or more, not {jacobian}")
    networks = _fresh_networks(fresh, seed, models=bool(models))
    given = text_or_bundled(text)
    options: dict[str, Any] = {"lags": lags, "positions": positions, "jacobian_positions": jacobian, "seed": seed}
    flows = []
    with share_bar("gradients", quiet=quiet) as progress:
        for source in models:
            model, name = load(source, kinds=FORWARDS, device=device).splitting(tokenizer), Path(source).name
            twins = {name: model} | ({f"{name}, untrained": untrained(model, seed)} if fresh.untrained else {})
            for twin, network in twins.items():
                more: dict[str, Any] = {"name": twin, "direction": direction, "progress": progress}
                flows.append(library.gradient_flow(network, given, **options, **more))
        flows += fresh_flows(given, networks, progress=progress, **options)
    if plot is not None:
        library.draw_flows(flows, plot)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"networks": [flow.as_dict() for flow in flows]})
    else:
        more_tables = [library.jacobian_table(flows)] if jacobian else []
        print_tables(library.flow_table(flows), library.radius_table(flows), *more_tables)


def _fresh_networks(options: FreshOptions, seed: int, *, models: bool) -> "list[Fresh]":
    """The fresh networks that were asked for; without any, and without models, all cells."""
    from relmo.analysis.memory.fresh import Fresh

    if options.untrained and not models:
        raise SettingError("--untrained needs a model; for networks without one give --fresh elman,gru,lstm")
    shared: dict[str, Any] = {"hidden": options.hidden, "start": options.start, "seed": seed}
    cells = [cell.strip() for cell in (options.fresh or "").split(",") if cell.strip()]
    found = [Fresh(cell=cell, **shared) for cell in cells]
    biases, radii = numbers(options.forget_bias, "--forget-bias"), numbers(options.spectral_radius, "--spectral-radius")
    found += [Fresh(cell="lstm", forget_bias=bias, **shared) for bias in biases]
    found += [Fresh(cell="elman", spectral_radius=radius, **shared) for radius in radii]
    return found or ([] if models else [Fresh(cell=cell, **shared) for cell in sorted(CELLS)])


def numbers(given: str | None, flag: str) -> list[float]:
    """Numbers with commas between them."""
    found = [number_of(part) for part in (given or "").split(",") if part.strip()]
    if not all(number is not None and math.isfinite(number) for number in found):
        raise SettingError(f"{flag} takes numbers with commas between them, such as 1,2,4, not {given}")
    return [number for number in found if number is not None]


def text_or_bundled(file: str | None, symbols: int = SYMBOLS) -> str:
    """The beginning of a text file, or of the text that ships."""
    from relmo.text.corpus import read_text

    if file is not None:
        return read_text(file)[:symbols]
    return (resources.files("relmo") / "data" / "alice.txt").read_text(encoding="utf-8")[:symbols]


def connectivity(
    model: str,
    text: str,
    *,
    position: int = -1,
    symbol: str | None = None,
    direction: Literal["forward", "backward"] = "forward",
    top: int = 10,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
) -> None:
    """Which symbols of a text a prediction depends on: the gradient of its score with respect to each symbol before it.

    Prints the text with each symbol on the colour of its gradient, and the symbols with the largest gradients.

        relmo analyse connectivity models/mine "He said: (but only to her" --symbol ")"

        relmo analyse connectivity small "The keys to the cabinet" --symbol are

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, which ships with relmo.
    text
        The text itself.
    position
        After which symbol of the text to predict, from 0, or from the end as -1, -2.
    symbol
        What to predict; by default what follows in the text, or the text's end.
    direction
        Which direction of a bidirectional model.
    top
        How many symbols the table shows.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    """
    from relmo.analysis.memory.connectivity import connectivity as find
    from relmo.cli.terminal import print_coloured, print_json, print_tables
    from relmo.loading import FORWARDS, load

    loaded = load(model, kinds=FORWARDS, device=device)
    found = find(loaded, text, position=position, symbol=symbol, direction=direction)
    if json:
        print_json({"model": model} | found.as_dict())
        return
    print_coloured(found.text())
    print_tables(found.table(top))
