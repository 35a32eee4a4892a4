"""`relmo analyse trace`, `cells` and `compare`: units over a text, what they follow, and models on the same text"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from msgspec import Meta

from relmo.cli.options import ANALYSIS, Analysis, Direction, LMFolder, Positive, SampleSeed, Seed, TextFile, check_out
from relmo.cli.terminal import print_coloured, print_json
from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError
from relmo.settings.fields import FrozenSettings, PathName

CODE = ("indentation", "depth", "column", "string", "comment", "if", "if_body")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
MAX_SYMBOLS, MAX_VALUES = 120_000, 1 << 26  # defaults: symbols, and values of all units over all symbols
MARK_FORMAT = "a mark is a line of start, end and name, separated by tabs"


def trace(
    model: LMFolder,
    file: TextFile,
    *,
    state: str = "h",
    layer: int = 0,
    unit: int = 0,
    direction: Direction = "forward",
    symbols: int = 2000,
    out: Path | None = None,
    output: Analysis = ANALYSIS,
) -> None:
    """Record the states and gates of a model's recurrent layers after every symbol of a text.

    Prints the text with each symbol coloured by the value of one unit: blue for negative, orange for positive values.
    --plot draws the values of the unit and, for an LSTM, its gates. --out writes every state and gate of every layer.

        relmo analyse trace models/mine text.txt --state c --unit 27
        relmo analyse trace small text.txt --layer 1 --out trace.npz

    Args:
        state: The state or gate to print: h, the layer's output; c, an LSTM's memory; its gates i, f, o and candidate
            g; a GRU's r, z and n.
        layer: The recurrent layer, from 0.
        unit: The unit of the layer, from 0.
        symbols: The number of symbols to read; 0 reads all.
        out: Write all states and gates, (layers, symbols, units) each, to this .npz or .h5 file.
    """
    from relmo.analysis.core import show
    from relmo.analysis.core import trace as library
    from relmo.analysis.core.features import read_document
    from relmo.analysis.core.stack import build_stack

    output.check()
    if out is not None:
        check_out(out, library.ARRAY_FORMATS, overwrite=output.overwrite)
    loaded = output.load(model)
    stack = build_stack(loaded.get_recurrent_network())
    stack.check_unit(show.Unit(state, layer, unit, direction), stack.layers[0].cell.vectors)
    document = read_document(loaded, file, symbols=symbols or None)
    with output.notes(), output.progress("reading") as progress:
        traced = library.trace(loaded, document.texts, progress=progress)
    selected = traced.forward if direction == "forward" else traced.backward
    values = selected.unit(state, layer, unit)
    title = f"{state}{unit} of layer {layer}" + (f", {direction}" if traced.directions == 2 else "")
    output.write(lambda path: library.write_trace(traced, path), out)
    output.write(lambda path: library.draw_unit(selected, layer, unit, path, title=title), output.plot)
    if output.json:
        print_json({"unit": title, "symbols": traced.symbols, "values": values.tolist()})
    elif not (output.quiet and out is not None):
        print_coloured(show.ColouredText(traced.symbols, values, title))


class FeatureOptions(FrozenSettings):
    """Features that units are scored against."""

    feature: tuple[str, ...] = ()
    """A feature by name; repeatable. --list-features lists them. By default, features that suit the file."""
    regex: tuple[str, ...] = ()
    """NAME=PATTERN: a feature that is on inside the matches of a regular expression, or inside its groups if any."""
    conllu_column: tuple[str, ...] = ()
    """COLUMN=VALUE of a .conllu file, such as upos=NOUN or feats.Number=Plur. COLUMN alone: all its frequent values."""
    function: tuple[str, ...] = ()
    """MODULE:NAME, a Python function that takes the text and returns a number for each character. It is executed."""
    marks: Path | None = None
    """A file of marked spans, one per line: first character, end character (exclusive), name, separated by tabs."""
    language: Literal["python", "c"] | None = None
    """The language of source code, for strings, comments and if statements; by default inferred from the file name."""

    def tracks(self, document: Any) -> dict[str, Any]:
        """Return the features by name; by default those that suit the document and vary in it."""
        from relmo.analysis.core import features

        if not (self.feature or self.regex or self.conllu_column or self.function or self.marks):
            if document.words is not None:
                tracks = features.column_tracks(document, "upos")
            else:
                tracks = features.tracks(document, CODE if document.language else PROSE)
            return {name: track for name, track in tracks.items() if track.min() < track.max()}
        tracks = features.tracks(document, self.feature)
        for option in self.regex:
            name, equals, pattern = option.partition("=")
            if not (name and equals and pattern):
                raise SettingError(f"--regex {option}: the format is NAME=PATTERN")
            tracks[name] = features.pattern_track(document, pattern)
        for column in self.conllu_column:
            tracks |= features.column_tracks(document, column)
        for option in self.function:
            module, _, attribute = option.partition(":")
            if not (module and attribute):
                raise SettingError(f"--function {option}: the format is MODULE:NAME, such as mine:syllables")
            sys.path.insert(0, str(Path.cwd()))  # imported as Python does from the working directory
            try:
                function = getattr(import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                raise SettingError(f"--function {option}: cannot be imported ({error})") from None
            finally:
                sys.path.pop(0)
            if not callable(function):
                raise SettingError(f"--function {option}: is not a function")
            tracks[option] = features.function_track(document, function)
        if self.marks is not None:
            tracks |= features.mark_tracks(document, _read_marks(self.marks))
        return tracks


class ControlOptions(FrozenSettings):
    """Controls and ablation of units."""

    control: bool = True
    """Also score the same network untrained."""
    order: Annotated[int, Meta(ge=1, le=20)] = 3
    """The order of the n-gram control."""
    ablate: Literal["zero", "mean", "hold"] | None = None
    """Ablate units one by one: set to zero, set to their mean, or hold on. Reports the loss by class of symbol."""
    ablate_symbols: Positive | None = None
    """The number of symbols for --ablate; by default 20,000, or 1,000 words for a bidirectional model."""
    among: Positive | None = None
    """The number of units that the best ones are ranked among, sampled if there are more; by default 512, or 32 for a
    bidirectional model."""
    seed: SampleSeed = 0


def cells(
    model: LMFolder | None = None,
    file: TextFile | None = None,
    *,
    features: Annotated[FeatureOptions, Parameter(name="*", group="Features")] = FeatureOptions(),
    controls: Annotated[ControlOptions, Parameter(name="*", group="Controls and ablation")] = ControlOptions(),
    symbols: Positive | None = None,
    list_features: bool = False,
    name_cells: bool = False,
    output: Analysis = ANALYSIS,
) -> None:
    """Score every unit of a model (c and h of every layer) against features of a text.

    Each score has controls: the same network untrained, a prediction from the last few symbols, and chance. A linear
    probe of all units is the upper bound. --ablate changes units one by one and reports the increase of the loss.

        relmo analyse cells models/code lib.py --feature depth --feature indentation --ablate zero
        relmo analyse cells models/mine text.txt --feature quotes --regex 'the=\\bthe\\b' --plot cells.png
        relmo analyse cells small dev.conllu --conllu-column upos=NOUN --conllu-column feats.Number=Plur
        relmo analyse cells models/mine held-out.txt --ablate zero --name-cells

    Args:
        symbols: The number of symbols to read; by default 120,000, or fewer if the model has very many units.
        list_features: List the features and exit.
        name_cells: Name the units that beat their controls, and write the names with their evidence to cells.json in
            the model folder. relmo explore shows them first.
    """
    from relmo.analysis.core.features import FEATURES, read_document
    from relmo.analysis.core.stack import build_stack
    from relmo.analysis.units.cell_report import name_cells as select_cells
    from relmo.analysis.units.cell_report import write_cells
    from relmo.analysis.units.cells import find_cells
    from relmo.store.folder import CELLS, CONFIG
    from relmo.store.references import find_installed

    if list_features:
        width = 2 + max(map(len, FEATURES))
        for name, feature in FEATURES.items():
            print(f"{name:<{width}}{' '.join((feature.__doc__ or '').split())}")
        return
    if model is None or file is None:
        raise SettingError("MODEL or FILE is missing: relmo analyse cells MODEL FILE")
    output.check()
    folder = find_installed(model) or Path(model)
    if name_cells:
        if not (folder / CONFIG).is_file():
            raise SettingError(f"{model}: --name-cells needs a model folder written by relmo")
        refuse_existing(folder / CELLS, overwrite=output.overwrite)
    loaded = output.load(model)
    max_symbols = symbols
    if max_symbols is None:
        stack = build_stack(loaded.get_recurrent_network())
        num_units = sum(
            layer.cell.sizes[state] * stack.directions for layer in stack.layers for state in layer.cell.unit_states
        )
        max_symbols = max(1, min(MAX_SYMBOLS, MAX_VALUES // num_units))
    document = read_document(loaded, file, language=features.language, symbols=max_symbols)
    tracks = features.tracks(document)
    with output.notes(), output.progress("scoring units") as progress:
        report = find_cells(loaded, document, tracks, progress=progress, **vars(controls))
    output.write(report.plot, output.plot)
    if name_cells:
        named = select_cells(report, _format_command(model, file, features, controls, symbols))
        path = write_cells(folder, named)
        names = ", ".join(f"{cell.name} ({cell.unit})" for cell in named) or "none"
        output.say(f"{path}: {len(named)} named: {names}")
    output.show({"model": model, "file": file} | report.as_dict(), *report.tables())


def _format_command(
    model: str, file: str, features: FeatureOptions, controls: ControlOptions, symbols: int | None
) -> str:
    """Return the command that repeats the measurement, with file names without folders."""
    words = ["relmo analyse cells", Path(model).name, Path(file).name]
    words += [f"--feature {name}" for name in features.feature] + [f"--regex '{option}'" for option in features.regex]
    words += [f"--conllu-column {column}" for column in features.conllu_column]
    options = {"language": features.language, "symbols": symbols, "ablate": controls.ablate}
    options |= {"ablate-symbols": controls.ablate_symbols, "among": controls.among}
    words += [f"--{name} {option}" for name, option in options.items() if option]
    return " ".join([*words, "--name-cells"])[:400]


def _read_marks(path: Path) -> list[Any]:
    from relmo.analysis.core.features import Mark
    from relmo.text.corpus import read_lines

    marks = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.text.split("\t")
        if not line.text.strip():
            continue
        if len(fields) not in (2, 3) or not (fields[0].isdecimal() and fields[1].isdecimal()):
            raise SettingError(f"{path}:{number}: {MARK_FORMAT}: 10\t24\tquote")
        if not int(fields[0]) < int(fields[1]):
            raise SettingError(f"{path}:{number}: a mark must end after its start, not {fields[0]} to {fields[1]}")
        marks.append(Mark(int(fields[0]), int(fields[1]), *fields[2:]))
    if not marks:
        raise SettingError(f"{path}: has no marks; {MARK_FORMAT}")
    return marks


class ComparisonOptions(FrozenSettings):
    """Baselines, samples and features."""

    train: PathName | None = None
    """The training text of the models. An n-gram model of it is compared too, and copies from it are counted."""
    order: Annotated[int, Meta(ge=1, le=20)] = 20
    """The order of the n-gram model, up to 20."""
    samples: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """The number of texts sampled from every model, with the same seeds. The models' names are printed last."""
    prompt: str = ""
    """The beginning of these texts."""
    limit: Positive = 500
    """The number of symbols of such a text."""
    temperature: float = 1.0
    """The sampling temperature."""
    feature: str | None = None
    """A feature (relmo analyse cells --list-features): report how well the units of each model follow it, in the order
    of the models, such as the checkpoints of a run."""


def compare(
    *models: PathName,
    text: str,
    comparison: Annotated[ComparisonOptions, Parameter(name="*", group="Comparison")] = ComparisonOptions(),
    symbols: int = 100_000,
    seed: Seed = 0,
    output: Analysis = ANALYSIS,
) -> None:
    """Compare language models on the same text: their loss by class of symbol and by the distance to the bracket that a
    symbol closes. With --train, also compare them with an n-gram model of their training text.

    For example:

        relmo analyse compare models/lstm --text held-out.txt --train train.txt --samples 2
        relmo analyse compare models/lstm models/gru --text held-out.txt --plot losses.png
        relmo analyse compare models/epoch-1 models/epoch-2 --text held-out.txt --feature quotes

    Args:
        models: Folders of language models that tokenise text alike.
        text: A held-out text; - for standard input.
        symbols: The number of symbols to read; 0 reads all.
        seed: The random seed of the samples.
    """
    import numpy as np

    from relmo.analysis.core.features import read_document, tracks
    from relmo.analysis.core.show import Table, format_number
    from relmo.analysis.units import compare as library
    from relmo.analysis.units.compare import ngram_like
    from relmo.text.encode import encode_file

    output.check()
    if not models:
        raise SettingError("MODEL is missing: relmo analyse compare MODEL… --text FILE")
    names = [Path(source).name for source in models]
    names = list(models) if len(set(names)) < len(names) else names
    if len(set(names)) < len(names):
        raise SettingError("the same model is given twice")
    loaded = {name: output.load(source, kinds="lm") for name, source in zip(names, models, strict=True)}
    model = next(iter(loaded.values()))
    library.check_comparable(loaded)
    document = read_document(model, text, symbols=symbols or None)
    reports: dict[str, Any] = {}
    if comparison.feature:
        track = tracks(document, [comparison.feature])[comparison.feature]
        reports["emergence"] = library.emergence(loaded, document, track)
    if comparison.train:
        with tempfile.TemporaryDirectory() as scratch, output.progress("counting n-grams") as progress:
            stream = encode_file(comparison.train, model.settings.text, model.vocabulary, Path(scratch))
            training_ids = np.array(stream.ids)
            ngram = ngram_like(model, training_ids, order=comparison.order, progress=progress)
        loaded |= {f"{comparison.order}-gram": ngram}
    with output.progress("reading") as progress:
        reports["losses"] = library.compare_losses_of(loaded, document.symbols, progress=progress)
    sampling = {name: getattr(comparison, name) for name in ("prompt", "limit", "temperature")}
    seeds = range(seed, seed + comparison.samples)
    samples = [(s, sample) for s in seeds for sample in library.samples(loaded, seed=s, **sampling)]
    record: dict[str, Any] = {name: report.as_dict() for name, report in reports.items()}
    tables = [report.table() for report in reports.values()]
    if comparison.train:
        texts = {"the text given": [model.vocabulary.ids(document.symbols)]}
        for name in loaded:
            texts[f"samples of {name}"] = [model.encode(sample.text) for _, sample in samples if sample.model == name]
        lengths = library.COPY_LENGTHS[model.settings.text.unit]
        copies = {n: library.copied(np.concatenate(ids), training_ids, lengths) for n, ids in texts.items() if ids}
        record["copies"] = {name: {str(n): share for n, share in shares.items()} for name, shares in copies.items()}
        rows = [[name, *(format_number(100 * shares[n], 1) for n in lengths)] for name, shares in copies.items()]
        columns = ["spans of n symbols, n =", *map(str, lengths)]
        tables.append(Table(columns, rows, "percent of spans that occur in the training text"))
    record["samples"] = [{"seed": s, "model": sample.model, "text": sample.text} for s, sample in samples]
    output.write(reports["losses"].plot, output.plot)
    output.show({"text": text} | record, *tables)
    if samples and not output.json:
        _print_samples(samples, len(loaded))


def _print_samples(samples: list[tuple[int, Any]], num_models: int) -> None:
    """Print texts under letters, and at the end which model wrote which."""
    answers: dict[int, list[str]] = {}
    for index, (seed, sample) in enumerate(samples):
        letter = chr(ord("A") + index % num_models)
        print(f"\n--- seed {seed}, text {letter}\n{sample.text}")
        answers.setdefault(seed, []).append(f"{letter} {sample.model}")
    print("\n--- models")
    for seed, letters in answers.items():
        print(f"seed {seed}: {', '.join(letters)}")
