"""`relmo analyse cells MODEL FILE`"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.analyse.base import MODELS, OUTPUT, Models, Output, check_minimum
from relmo.errors import SettingError
from relmo.settings.arguments import PathName, check_integer

if TYPE_CHECKING:
    import numpy as np

    from relmo.analysis.core.features import Document, Mark

CODE = ("indentation", "depth", "column", "string", "comment", "if", "if_body")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
MAX_SYMBOLS, MAX_VALUES = 120_000, 1 << 26  # defaults: symbols, and values of all units over all symbols
MARK_FORMAT = "a mark is a line of start, end and name, separated by tabs"


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Features that units are scored against."""

    feature: tuple[str, ...] = ()
    """A feature by name; repeatable. --list-features lists them. By default, features that suit the file."""
    regex: tuple[str, ...] = ()
    """NAME=PATTERN: a feature that is on inside the matches of a regular expression, or inside its groups if it has
    any."""
    conllu_column: tuple[str, ...] = ()
    """COLUMN=VALUE of a .conllu file, such as upos=NOUN or feats.Number=Plur. A column alone stands for all its
    frequent values."""
    function: tuple[str, ...] = ()
    """MODULE:NAME, a Python function that takes the text and returns a number for each character. It is imported and
    run."""
    marks: Path | None = None
    """A file of marked spans, one per line: first character, end character (exclusive), and a name, separated by
    tabs."""
    language: Literal["python", "c"] | None = None
    """The language of source code, for strings, comments and if statements. By default it is inferred from the file
    name."""

    def tracks(self, document: "Document") -> "dict[str, np.ndarray]":
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
            tracks[option] = features.function_track(document, _import_function(option))
        if self.marks is not None:
            tracks |= features.mark_tracks(document, _read_marks(self.marks))
        return tracks


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """Controls and ablation of units."""

    control: bool = True
    """Also score the same network untrained."""
    order: int = 3
    """The order of the n-gram control."""
    ablate: Literal["zero", "mean", "hold"] | None = None
    """Ablate units one by one: set them to zero, set them to their mean, or hold them on. Reports the loss by class of
    symbol."""
    ablate_symbols: int | None = None
    """The number of symbols for --ablate; by default 20,000, or 1,000 words for a bidirectional model."""
    among: int | None = None
    """The number of units that the best ones are ranked among, sampled if there are more; by default 512, or 32 for a
    bidirectional model."""
    seed: int = 0
    """The random seed of the untrained network and of samples."""


def cells(
    model: PathName | None = None,
    file: PathName | None = None,
    *,
    features: Annotated[FeatureOptions, Parameter(name="*", group="Features")] = FeatureOptions(),
    controls: Annotated[ControlOptions, Parameter(name="*", group="Controls and ablation")] = ControlOptions(),
    symbols: int | None = None,
    list_features: bool = False,
    name_cells: bool = False,
    output: Output = OUTPUT,
    loading: Models = MODELS,
) -> None:
    """Score every unit of a model (c and h of every layer) against features of a text.

    Each score has controls: the same network untrained, a prediction from the last few symbols, and chance. A linear
    probe of all units is the upper bound. --ablate changes units one by one and reports the increase of the loss.

        relmo analyse cells models/code lib.py --feature depth --feature indentation --ablate zero

        relmo analyse cells models/mine text.txt --feature quotes --regex 'the=\\bthe\\b' --plot cells.png

        relmo analyse cells small dev.conllu --conllu-column upos=NOUN --conllu-column feats.Number=Plur

        relmo analyse cells models/mine held-out.txt --ablate zero --name-cells

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, a bundled model.
    file
        Plain text, source code, or .conllu; - for standard input. For a bidirectional model each line is a sentence.
    symbols
        The number of symbols to read; by default 120,000, or fewer if the model has very many units.
    list_features
        List the features and exit.
    name_cells
        Name the units that beat their controls, and write the names with their evidence to cells.json in the model
        folder. relmo explore shows them first.
    """
    from relmo.analysis.core.features import FEATURES, read_document
    from relmo.analysis.core.stack import build_stack
    from relmo.analysis.core.trace import get_network
    from relmo.analysis.units.cells import find_cells
    from relmo.analysis.units.named_cells import name_cells as select_cells
    from relmo.analysis.units.named_cells import write_cells

    if list_features:
        width = 2 + max(map(len, FEATURES))
        for name, feature in FEATURES.items():
            print(f"{name:<{width}}{' '.join((feature.__doc__ or '').split())}")
        return
    if model is None or file is None:
        raise SettingError("MODEL or FILE is missing: relmo analyse cells MODEL FILE")
    output.check()
    check_minimum(order=(controls.order, 1), ablate_symbols=(controls.ablate_symbols, 1), among=(controls.among, 1))
    check_integer("--symbols", 1 if symbols is None else symbols)
    folder = _find_cells_folder(model, overwrite=output.overwrite) if name_cells else None
    loaded = loading.load(model)
    max_symbols = symbols
    if max_symbols is None:
        stack = build_stack(get_network(loaded))
        num_units = sum(layer.sizes[state] * stack.directions for layer in stack.layers for state in layer.states)
        max_symbols = max(1, min(MAX_SYMBOLS, MAX_VALUES // num_units))
    document = read_document(loaded, file, language=features.language, symbols=max_symbols)
    tracks = features.tracks(document)
    with output.notes(), output.progress("scoring units") as progress:
        report = find_cells(loaded, document, tracks, progress=progress, **vars(controls))
    output.draw(report.plot)
    if folder is not None:
        named = select_cells(report, _format_command(model, file, features, controls, symbols))
        path = write_cells(folder, named)
        names = ", ".join(f"{cell.name} ({cell.unit})" for cell in named) or "none"
        output.say(f"{path}: {len(named)} named: {names}")
    output.print({"model": model, "file": file} | report.as_dict(), report.tables())


def _find_cells_folder(model: str, *, overwrite: bool) -> Path:
    from relmo.disk.outputs import refuse_existing
    from relmo.store.folder import CELLS, CONFIG
    from relmo.store.references import find_bundled

    folder = find_bundled(model) or Path(model)
    if not (folder / CONFIG).is_file():
        raise SettingError(f"{model}: --name-cells needs a model folder written by relmo")
    refuse_existing(folder / CELLS, overwrite=overwrite)
    return folder


def _format_command(
    model: str, file: str, features: FeatureOptions, controls: ControlOptions, symbols: int | None
) -> str:
    """Return the command that repeats the measurement, with file names without folders."""
    words = ["relmo analyse cells", Path(model).name, Path(file).name]
    words += [f"--feature {name}" for name in features.feature] + [f"--regex '{option}'" for option in features.regex]
    words += [f"--conllu-column {column}" for column in features.conllu_column]
    options = {
        "language": features.language,
        "symbols": symbols,
        "ablate": controls.ablate,
        "ablate-symbols": controls.ablate_symbols,
        "among": controls.among,
    }
    words += [f"--{name} {option}" for name, option in options.items() if option]
    return " ".join([*words, "--name-cells"])[:400]


def _import_function(name: str) -> Callable[[str], Any]:
    """Import a user's function MODULE:NAME, as Python does from the working directory."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise SettingError(f"--function {name}: the format is MODULE:NAME, such as mine:syllables")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"--function {name}: cannot be imported ({error})") from None
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise SettingError(f"--function {name}: is not a function")
    return function


def _read_marks(path: Path) -> "list[Mark]":
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
