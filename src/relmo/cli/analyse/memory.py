"""`relmo analyse gradients`, `connectivity`, `source-gradients` and `truncation`"""

import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.analyse.base import MODELS, OUTPUT, Device, Direction, Models, Output, check_minimum
from relmo.cli.numbers import parse_number
from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.cells import CELLS, CellName

if TYPE_CHECKING:
    from relmo.analysis.memory.fresh import Fresh

MAX_CHARACTERS = 200_000  # read from a text
Text = Annotated[
    PathName | None,
    Parameter(
        help="The text to measure on; by default a bundled text. Its first 200,000 characters are read. For a "
        "bidirectional model each line is a sentence."
    ),
]


@dataclass(frozen=True, kw_only=True)
class UntrainedOptions:
    """Networks before training."""

    fresh: str | None = None
    """Also measure untrained character models of these cells, separated by commas, such as elman,gru,lstm."""
    forget_bias: str | None = None
    """Also measure untrained LSTMs with these numbers added to the forget gate's bias, separated by commas."""
    spectral_radius: str | None = None
    """Also measure untrained Elman networks whose recurrent weights have these spectral radii, separated by commas."""
    hidden: int = 128
    """The hidden size of untrained networks."""
    start: Literal["torch", "relmo"] = "torch"
    """The initialisation of untrained networks: that of torch, or that of relmo train lm."""
    untrained: bool = False
    """Also measure each of the models before training."""

    def networks(self, seed: int, *, has_models: bool) -> "list[Fresh]":
        """Return the untrained networks; without options and without models, all cells."""
        from relmo.analysis.memory.fresh import Fresh

        if self.untrained and not has_models:
            raise SettingError("--untrained needs a model; for networks without one give --fresh elman,gru,lstm")
        shared: dict[str, Any] = {"hidden": self.hidden, "start": self.start, "seed": seed}
        cells = [cell.strip() for cell in (self.fresh or "").split(",") if cell.strip()]
        biases = _parse_numbers(self.forget_bias, "--forget-bias")
        radii = _parse_numbers(self.spectral_radius, "--spectral-radius")
        if not (cells or biases or radii or has_models):
            cells = sorted(CELLS)
        return [
            *(Fresh(cell=cell, **shared) for cell in cells),
            *(Fresh(cell="lstm", forget_bias=bias, **shared) for bias in biases),
            *(Fresh(cell="elman", spectral_radius=radius, **shared) for radius in radii),
        ]


def gradients(
    *models: PathName,
    text: Text = None,
    lags: int = 100,
    positions: int = 64,
    jacobian: int = 0,
    direction: Direction = "forward",
    seed: int = 0,
    untrained: Annotated[UntrainedOptions, Parameter(name="*", group="Untrained networks")] = UntrainedOptions(),
    output: Output = OUTPUT,
    loading: Models = MODELS,
) -> None:
    """Measure how far back a loss reaches: the norm of its gradient with respect to the states k symbols before, by k.

    Models are compared side by side. Untrained networks show the effect of the forget gate's bias and of the size of
    the recurrent weights. Without models and --fresh, all cells are measured with torch's initialisation.

        relmo analyse gradients models/lstm models/gru models/elman --text book.txt --plot memory.png

        relmo analyse gradients --forget-bias 0,1,2,4 --spectral-radius 1,2,3

    Parameters
    ----------
    models
        Folders of language models, bidirectional or not.
    lags
        The number of symbols to look back.
    positions
        The number of positions in the text to measure at.
    jacobian
        The number of these positions at which to measure also the largest singular value of the Jacobian, by lag.
    seed
        The random seed of the positions and of untrained networks.
    """
    from relmo.analysis.core.untrained import untrained as make_untrained
    from relmo.analysis.memory import gradients as library
    from relmo.analysis.memory.fresh import fresh_flows

    output.check()
    check_minimum(jacobian=(jacobian, 0))
    networks = untrained.networks(seed, has_models=bool(models))
    content = _read_text(text)
    options: dict[str, Any] = {"lags": lags, "positions": positions, "jacobian_positions": jacobian, "seed": seed}
    flows = []
    with output.progress("gradients") as progress:
        for source in models:
            model, name = loading.load(source), Path(source).name
            variants = {name: model}
            if untrained.untrained:
                variants[f"{name}, untrained"] = make_untrained(model, seed)
            for label, variant in variants.items():
                labelled: dict[str, Any] = options | {"name": label, "direction": direction, "progress": progress}
                flows.append(library.gradient_flow(variant, content, **labelled))
        flows += fresh_flows(content, networks, progress=progress, **options)
    output.draw(lambda path: library.draw_flows(flows, path))
    tables = [library.flow_table(flows), library.radius_table(flows)]
    if jacobian:
        tables.append(library.jacobian_table(flows))
    output.print({"networks": [flow.as_dict() for flow in flows]}, tables)


def _parse_numbers(text: str | None, flag: str) -> list[float]:
    numbers = [parse_number(part) for part in (text or "").split(",") if part.strip()]
    if not all(number is not None and math.isfinite(number) for number in numbers):
        raise SettingError(f"{flag} takes numbers separated by commas, such as 1,2,4, not {text}")
    return [number for number in numbers if number is not None]


def _read_text(file: str | None) -> str:
    from relmo.text.corpus import read_text

    if file is not None:
        return read_text(file)[:MAX_CHARACTERS]
    return (resources.files("relmo") / "data" / "alice.txt").read_text(encoding="utf-8")[:MAX_CHARACTERS]


def connectivity(
    model: str,
    text: str,
    *,
    position: int = -1,
    symbol: str | None = None,
    direction: Direction = "forward",
    top: int = 10,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Show which symbols a prediction depends on: the gradient of its score with respect to each symbol before it.

    Prints the text with each symbol coloured by its gradient, and the symbols with the largest gradients.

        relmo analyse connectivity models/mine "He said: (but only to her" --symbol ")"

        relmo analyse connectivity small "The keys to the cabinet" --symbol are

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, a bundled model.
    text
        The text itself.
    position
        The symbol after which to predict, from 0, or from the end as -1, -2.
    symbol
        The symbol to predict; by default the next one in the text, or the end of the text.
    top
        The number of symbols in the table.
    json
        Print one JSON object.
    """
    from relmo.analysis.memory import connectivity as library
    from relmo.cli.terminal import print_coloured, print_json, print_tables
    from relmo.loading import FORWARD_KINDS, load

    loaded = load(model, kinds=FORWARD_KINDS, device=device)
    result = library.connectivity(loaded, text, position=position, symbol=symbol, direction=direction)
    if json:
        print_json({"model": model} | result.as_dict())
        return
    print_coloured(result.text())
    print_tables(result.table(top))


def source_gradients(
    *models: PathName,
    pairs: PathName | None = None,
    most: int = 1000,
    unit: Literal["all", "first", "last"] = "all",
    lengths: str = "5,10,20,40,80",
    cell: CellName = "lstm",
    hidden: int = 64,
    seed: int = 0,
    device: Device = "auto",
    output: Output = OUTPUT,
) -> None:
    """Measure the gradient that reaches the first word of the source, and the number of steps on its path, by the
    length of the source: what attention is for.

    Sequence-to-sequence models are compared side by side on text pairs. Without models, three networks are measured
    before training: with one source vector, with one source vector at every step, and with attention.

        relmo analyse source-gradients --plot first-word.png

        relmo analyse source-gradients models/attention models/fixed --pairs val.en,val.de

    Parameters
    ----------
    models
        Folders of sequence-to-sequence models.
    pairs
        With models: a file of pairs, or two parallel files separated by a comma.
    most
        With models: the maximum number of pairs.
    unit
        The target units whose loss is used: all, the first, or the last.
    lengths
        Without models: source lengths, separated by commas.
    cell
        Without models: the recurrent cell.
    hidden
        Without models: the hidden size.
    seed
        Without models: the random seed of weights and vectors.
    """
    output.check()
    if bool(models) != (pairs is not None):
        raise SettingError("models need --pairs, and --pairs needs models; give neither for networks before training")
    check_minimum(most=(most, 1), hidden=(hidden, 1))
    sizes = [int(number) for number in _parse_numbers(lengths, "--lengths")]
    from relmo.analysis.memory import source_gradients as library
    from relmo.loading import load

    if pairs is None:
        curves = library.compare_fresh(lengths=sizes, cell=cell, hidden=hidden, unit=unit, seed=seed)
    else:
        curves = []
        with output.progress("source gradients") as progress:
            options: dict[str, Any] = {"unit": unit, "most": most, "progress": progress}
            for source in models:
                model: Any = load(source, kinds="seq2seq", device=device)
                curves.append(library.source_gradients(model, pairs, name=Path(source).name, **options))
    output.draw(lambda path: library.draw_source_gradients(curves, path))
    output.print({"networks": [curve.as_dict() for curve in curves]}, [library.source_table(curves)])


def truncation(
    *models: PathName,
    text: Text = None,
    lengths: str | None = None,
    positions: int = 1000,
    direction: Direction = "forward",
    seed: int = 0,
    output: Output = OUTPUT,
    loading: Models = MODELS,
) -> None:
    """Measure how much context models use: their loss when they read only the last k symbols, by k.

    For example:

        relmo analyse truncation models/lstm models/elman --text book.txt --plot past.png

    Parameters
    ----------
    models
        Folders of language models of any kind, including n-gram models, bidirectional or not.
    lengths
        Context lengths in symbols, separated by commas, such as 1,2,4,8.
    positions
        The number of positions in the text to measure at.
    seed
        The random seed of the positions.
    """
    from relmo.analysis.memory import truncation as library

    if not models:
        raise SettingError("MODEL is missing: relmo analyse truncation MODEL…")
    output.check()
    sizes = _parse_numbers(lengths, "--lengths") if lengths else [*map(float, library.LENGTHS)]
    if any(size != int(size) for size in sizes):
        raise SettingError(f"--lengths takes whole numbers separated by commas, not {lengths}")
    options: dict[str, Any] = {"lengths": [int(size) for size in sizes], "positions": positions, "seed": seed}
    content = _read_text(text)
    curves = []
    for source in models:
        with output.progress(source) as progress:
            model, name = loading.load(source), Path(source).name
            options |= {"name": name, "direction": direction, "progress": progress}
            curves.append(library.truncation(model, content, **options))
    output.draw(lambda path: library.draw_truncation(curves, path))
    output.print({"models": [curve.as_dict() for curve in curves]}, [library.truncation_table(curves)])
