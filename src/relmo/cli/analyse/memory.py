"""`relmo analyse gradients`, `connectivity`, `source-gradients`, `truncation` and `counting`"""

import math
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from msgspec import Meta

from relmo.cli.options import ANALYSIS, OUTPUT, Analysis, Device, Direction, Json, LMFolder, Output, Positive, Seed
from relmo.cli.terminal import print_coloured, print_json, print_tables
from relmo.errors import SettingError
from relmo.registry import BASIC_CELLS
from relmo.settings.fields import Dimension, FrozenSettings, PathName
from relmo.settings.options import CountingOptions
from relmo.settings.sections import CellName

MAX_CHARACTERS = 200_000  # read from a text
TEXT_HELP = """The text to measure on; by default a bundled text. Its first 200,000 characters are read. For a
bidirectional model each line is a sentence."""
Text = Annotated[PathName | None, Parameter(help=TEXT_HELP)]


class UntrainedOptions(FrozenSettings):
    """Networks before training."""

    fresh: str | None = None
    """Also measure untrained character models of these cells, separated by commas, such as elman,gru,lstm."""
    forget_bias: str | None = None
    """Also measure untrained LSTMs with these numbers added to the forget gate's bias, separated by commas."""
    spectral_radius: str | None = None
    """Also measure untrained Elman networks whose recurrent weights have these spectral radii, separated by commas."""
    hidden: Dimension = 128
    """The hidden size of untrained networks."""
    start: Literal["torch", "relmo"] = "torch"
    """The initialisation of untrained networks: that of torch, or that of relmo train lm."""
    untrained: bool = False
    """Also measure each of the models before training."""

    def networks(self, seed: int, *, has_models: bool) -> list[Any]:
        """Return the untrained networks; without options and without models, all cells."""
        from relmo.analysis.memory.gradients import Fresh

        if self.untrained and not has_models:
            raise SettingError("--untrained needs a model; for networks without one give --fresh elman,gru,lstm")
        shared: dict[str, Any] = {"hidden": self.hidden, "start": self.start, "seed": seed}
        cells = [cell.strip() for cell in (self.fresh or "").split(",") if cell.strip()]
        biases = _parse_numbers(self.forget_bias, "--forget-bias")
        radii = _parse_numbers(self.spectral_radius, "--spectral-radius")
        if not (cells or biases or radii or has_models):
            cells = [*BASIC_CELLS]
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
    jacobian: Annotated[int, Meta(ge=0)] = 0,
    direction: Direction = "forward",
    seed: Seed = 0,
    untrained: Annotated[UntrainedOptions, Parameter(name="*", group="Untrained networks")] = UntrainedOptions(),
    output: Analysis = ANALYSIS,
) -> None:
    """Measure how far back a loss reaches: the norm of its gradient with respect to the states k symbols before, by k.

    Models are compared side by side. Untrained networks show the effect of the forget gate's bias and of the size of
    the recurrent weights. Without models and --fresh, all cells are measured with torch's initialisation.

        relmo analyse gradients models/lstm models/gru models/elman --text book.txt --plot memory.png
        relmo analyse gradients --forget-bias 0,1,2,4 --spectral-radius 1,2,3

    Args:
        models: Folders of language models, bidirectional or not.
        lags: The number of symbols to look back.
        positions: The number of positions in the text to measure at.
        jacobian: The number of these positions at which to measure also the Jacobian's largest singular value, by lag.
        seed: The random seed of the positions and of untrained networks.
    """
    from relmo.analysis.memory import gradients as library
    from relmo.analysis.memory.gradients import fresh_flows
    from relmo.models.sequence_model import untrained as make_untrained

    output.check()
    networks = untrained.networks(seed, has_models=bool(models))
    content = _read_text(text)
    options: dict[str, Any] = {"lags": lags, "positions": positions, "jacobian_positions": jacobian, "seed": seed}
    flows = []
    with output.progress("gradients") as progress:
        for source in models:
            model, name = output.load(source), Path(source).name
            variants = {name: model}
            if untrained.untrained:
                variants[f"{name}, untrained"] = make_untrained(model, seed)
            for label, variant in variants.items():
                labelled: dict[str, Any] = options | {"name": label, "direction": direction, "progress": progress}
                flows.append(library.gradient_flow(variant, content, **labelled))
        flows += fresh_flows(content, networks, progress=progress, **options)
    output.write(lambda path: library.draw_flows(flows, path), output.plot)
    output.show({"networks": [flow.as_dict() for flow in flows]}, *library.flow_tables(flows))


def _parse_numbers(text: str | None, flag: str) -> list[float]:
    try:
        numbers = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise SettingError(f"{flag} takes numbers separated by commas, such as 1,2,4, not {text}")
    return numbers


def _read_text(file: str | None) -> str:
    from relmo.text.corpus import read_text

    if file is not None:
        return read_text(file)[:MAX_CHARACTERS]
    return (resources.files("relmo") / "data" / "alice.txt").read_text(encoding="utf-8")[:MAX_CHARACTERS]


def connectivity(
    model: LMFolder,
    text: str,
    *,
    position: int = -1,
    symbol: str | None = None,
    direction: Direction = "forward",
    top: int = 10,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show which symbols a prediction depends on: the gradient of its score with respect to each symbol before it.

    Prints the text with each symbol coloured by its gradient, and the symbols with the largest gradients.

        relmo analyse connectivity models/mine "He said: (but only to her" --symbol ")"
        relmo analyse connectivity small "The keys to the cabinet" --symbol are

    Args:
        text: The text itself.
        position: The symbol after which to predict, from 0, or from the end as -1, -2.
        symbol: The symbol to predict; by default the next one in the text, or the end of the text.
        top: The number of symbols in the table.
    """
    from relmo.analysis.memory import connectivity as library
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
    most: Positive = 1000,
    unit: Literal["all", "first", "last"] = "all",
    lengths: str = "5,10,20,40,80",
    cell: CellName = "lstm",
    hidden: Dimension = 64,
    seed: Seed = 0,
    device: Device = "auto",
    output: Output = OUTPUT,
) -> None:
    """Measure the gradient that reaches the first word of the source, and the number of steps on its path, by the
    length of the source: what attention is for.

    Sequence-to-sequence models are compared side by side on text pairs. Without models, three networks are measured
    before training: with one source vector, with one source vector at every step, and with attention.

        relmo analyse source-gradients --plot first-word.png
        relmo analyse source-gradients models/attention models/fixed --pairs val.en,val.de

    Args:
        models: Folders of sequence-to-sequence models.
        pairs: With models: a file of pairs, or two parallel files separated by a comma.
        most: With models: the maximum number of pairs.
        unit: The target units whose loss is used: all, the first, or the last.
        lengths: Without models: source lengths, separated by commas.
        cell: Without models: the recurrent cell.
        hidden: Without models: the hidden size.
        seed: Without models: the random seed of weights and vectors.
    """
    output.check()
    if bool(models) != (pairs is not None):
        raise SettingError("models need --pairs, and --pairs needs models; give neither for networks before training")
    sizes = [int(number) for number in _parse_numbers(lengths, "--lengths")]
    from relmo.analysis.memory import connectivity as library
    from relmo.loading import load

    if pairs is None:
        settings: dict[str, Any] = {"lengths": sizes, "cell": cell, "hidden": hidden, "unit": unit, "seed": seed}
        # decoding from one vector, from one vector at every step, and with attention
        curves = [library.fresh_source_gradients("none", every=every, **settings) for every in (False, True)]
        curves.append(library.fresh_source_gradients("additive", **settings))
    else:
        curves = []
        with output.progress("source gradients") as progress:
            options: dict[str, Any] = {"unit": unit, "most": most, "progress": progress}
            for source in models:
                model: Any = load(source, kinds="seq2seq", device=device)
                curves.append(library.source_gradients(model, pairs, name=Path(source).name, **options))
    output.write(lambda path: library.draw_source_gradients(curves, path), output.plot)
    output.show({"networks": [curve.as_dict() for curve in curves]}, library.source_table(curves))


def truncation(
    *models: PathName,
    text: Text = None,
    lengths: str | None = None,
    positions: int = 1000,
    direction: Direction = "forward",
    seed: Seed = 0,
    output: Analysis = ANALYSIS,
) -> None:
    """Measure how much context models use: their loss when they read only the last k symbols, by k.

    For example:

        relmo analyse truncation models/lstm models/elman --text book.txt --plot past.png

    Args:
        models: Folders of language models of any kind, including n-gram models, bidirectional or not.
        lengths: Context lengths in symbols, separated by commas, such as 1,2,4,8.
        positions: The number of positions in the text to measure at.
        seed: The random seed of the positions.
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
            model, name = output.load(source), Path(source).name
            options |= {"name": name, "direction": direction, "progress": progress}
            curves.append(library.truncation(model, content, **options))
    output.write(lambda path: library.draw_truncation(curves, path), output.plot)
    output.show({"models": [curve.as_dict() for curve in curves]}, library.truncation_table(curves))


def counting(
    language: str = "anbn",
    *,
    cells: str = ",".join(BASIC_CELLS),
    each: bool = False,
    save: Path | None = None,
    training: Annotated[CountingOptions, Parameter(name="*", group="Training")] = CountingOptions(),
    output: Output = OUTPUT,
) -> None:
    """Train small networks on the words of a formal language, and test whether they can count on longer words.

    A network accepts a word if every symbol, and the end, is probable enough. The table shows the n for which right
    words are accepted, the first failure, the n from which wrong words are accepted, and the unit that counts. Each
    network is the best of its seeds, selected on words at most a quarter longer than those in training.

        relmo analyse counting anbn --plot counting.png
        relmo analyse counting dyck-2 --cells lstm --limit 10 --hidden 32

    Args:
        language: anbn (n a's, then n b's), anbncn, or dyck-1 to dyck-4: brackets of 1 to 4 kinds, nested n deep.
        cells: Recurrent cells, separated by commas.
        each: Train and test the network of every seed, not only the best.
        save: Save the networks for other analyses in this folder, as LANGUAGE-CELL (with --each LANGUAGE-CELL-SEED).
    """
    from relmo.analysis.memory import counting as library
    from relmo.analysis.memory.counting import counting_table, draw_counting
    from relmo.analysis.memory.counting_training import get_language
    from relmo.analysis.memory.gradients import check_cell
    from relmo.disk.outputs import check_replaceable, new_folder
    from relmo.store.folder import MODEL_FILES

    output.check()
    get_language(language)
    names = [cell.strip() for cell in cells.split(",") if cell.strip()]
    if not names:
        raise SettingError(f"--cells takes cells separated by commas, such as {','.join(BASIC_CELLS)}")
    training.check()
    for cell in names:
        check_cell(cell)
    replacing: dict[str, Any] = {"overwrite": output.overwrite, "ours": MODEL_FILES}
    template = f"{language}-{{0}}-{{1}}" if each else f"{language}-{{0}}"  # of cell and seed
    if save is not None:
        for cell, seed in product(names, range(training.seed, training.seed + training.seeds)):
            check_replaceable(save / template.format(cell, seed), **replacing)
    networks = []
    for cell in names:
        with output.progress(f"{language}, {cell}") as progress:
            if each:
                networks += library.counting_each(language, cell, training, progress=progress)
            else:
                networks.append(library.counting(language, cell, training, progress=progress))
    if save is not None:
        for network in networks:
            with new_folder(save / template.format(network.cell, network.tried[0].seed), **replacing) as folder:
                network.model.save_pretrained(folder, results={"balanced": network.balanced})
    output.write(lambda path: draw_counting(networks, path), output.plot)
    output.show({"networks": [network.as_dict() for network in networks]}, counting_table(networks))
