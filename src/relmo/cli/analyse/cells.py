"""`relmo analyse cells MODEL FILE`"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName, check_whole

if TYPE_CHECKING:
    import numpy as np

    from relmo.analysis.core.features import Document, Mark
    from relmo.analysis.units.cell_report import CellReport
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel

CODE = ("indentation", "depth", "column", "string", "comment", "if", "if_body")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
SYMBOLS, NUMBERS = 120_000, 1 << 26  # taken where nothing is said: so many symbols, or so many numbers of all units


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """The features that units are scored against."""

    feature: tuple[str, ...] = ()
    """A feature by name; may be given several times. --list-features says which there are. Without any, features that
    suit the file are taken."""
    regex: tuple[str, ...] = ()
    """NAME=PATTERN: a feature of your own. It is on inside the matches of a regular expression, or inside its groups if
    it has any."""
    conllu_column: tuple[str, ...] = ()
    """COLUMN=VALUE of a .conllu file, such as upos=NOUN or feats.Number=Plur. A column alone stands for all its
    frequent values."""
    function: tuple[str, ...] = ()
    """MODULE:NAME, a Python function of your own that takes the text and returns a number for each character. It is
    imported and run."""
    marks: Path | None = None
    """A file of stretches that you have marked, a line each: the first character, the one after the last, and a name,
    with tabs between."""
    language: Literal["python", "c"] | None = None
    """The language of source code, for its strings, comments and if statements. By default the name of the file tells
    it."""

    def tracks(self, document: "Document") -> "dict[str, np.ndarray]":
        """The features by name; where nothing was asked for, some that the document has."""
        from relmo.analysis.core import features

        if not (self.feature or self.regex or self.conllu_column or self.function or self.marks):
            return _usual(document)
        found = features.tracks(document, self.feature)
        for given in self.regex:
            name, equals, pattern = given.partition("=")
            if not (name and equals and pattern):
                raise SettingError(f"--regex {given}: give it as NAME=PATTERN")
            found[name] = features.pattern_track(document, pattern)
        for column in self.conllu_column:
            found |= features.column_tracks(document, column)
        for given in self.function:
            found[given] = features.function_track(document, _imported(given))
        if self.marks is not None:
            found |= features.mark_tracks(document, _read_marks(self.marks))
        return found


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What scores are compared with, and what is done to units."""

    control: bool = True
    """Also score the same network untrained."""
    order: int = 3
    """How many symbols the n-gram control sees."""
    ablate: Literal["zero", "mean", "hold"] | None = None
    """Change units one by one: set them to zero, set them to their mean, or hold them on. Show what each costs, by kind
    of symbol."""
    ablate_symbols: int | None = None
    """How many of the first symbols --ablate measures on; by default 20,000, or 1,000 words of a bidirectional
    model."""
    among: int | None = None
    """How many units the best ones are ranked among. If there are more, some are drawn. The default is 512, or 32 of a
    bidirectional model."""
    seed: int = 0
    """The seed of the untrained network, and of what is drawn."""

    def check(self) -> None:
        """Raises where a number makes no sense."""
        for name, value in (("order", self.order), ("ablate-symbols", self.ablate_symbols), ("among", self.among)):
            if value is not None and value < 1:
                raise SettingError(f"--{name} must be 1 or more, not {value}")


def cells(
    model: PathName | None = None,
    file: PathName | None = None,
    *,
    asked: Annotated[FeatureOptions, Parameter(name="*", group="Features")] = FeatureOptions(),
    checks: Annotated[Checks, Parameter(name="*", group="Controls and ablation")] = Checks(),
    symbols: int | None = None,
    list_features: bool = False,
    name_cells: bool = False,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Which units of a model stand for what: scores every unit, c and h of every layer, against features of a text.

    Each score has controls: the same network untrained, a prediction from the last few symbols, and chance. A linear
    probe of all units is the upper bound. With --ablate the units are changed one by one, which shows what breaks
    without them.

        relmo analyse cells models/code lib.py --feature depth --feature indentation --ablate zero

        relmo analyse cells models/mine text.txt --feature quotes --regex 'the=\\bthe\\b' --plot cells.png

        relmo analyse cells small dev.conllu --conllu-column upos=NOUN --conllu-column feats.Number=Plur

        relmo analyse cells models/mine held-out.txt --ablate zero --name-cells

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, which ships with relmo.
    file
        Plain text, source code, or .conllu; - for standard input. A bidirectional model takes each line for a sentence.
    symbols
        How many of the text's first symbols to take; by default 120,000, or fewer if there are very many units.
    list_features
        List the features by name, and stop.
    name_cells
        Give the units that beat their controls names in plain words, and keep them with their evidence as cells.json in
        the model's folder. relmo explore offers them first.
    plot
        Draw units against features, and the controls, to this .png or .svg file.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object, with the scores of all units.
    quiet
        Show no progress.
    """
    from relmo.analysis.core.files import read_document
    from relmo.analysis.units.cells import find_cells
    from relmo.cli.terminal import print_json, print_tables, sayer, share_bar, warnings_said
    from relmo.loading import FORWARDS, load

    if list_features:
        _print_features()
        return
    if model is None or file is None:
        raise SettingError("a model and a text are needed: relmo analyse cells MODEL FILE")
    check_plot(plot, overwrite=overwrite)
    checks.check()
    check_whole("--symbols", 1 if symbols is None else symbols)
    folder = _folder_to_name_in(model, overwrite=overwrite) if name_cells else None
    loaded = load(model, kinds=FORWARDS, device=device).splitting(tokenizer)
    document = read_document(loaded, file, language=asked.language, symbols=symbols or _most_symbols(loaded))
    found = asked.tracks(document)
    with warnings_said(sayer(quiet=quiet)), share_bar("looking at the units", quiet=quiet) as progress:
        report = find_cells(loaded, document, found, progress=progress, **vars(checks))
    if plot is not None:
        report.plot(plot)
        say_wrote(plot, quiet=quiet)
    if folder is not None:
        _write_names(folder, report, _command(model, file, asked, checks, symbols), say=sayer(quiet=quiet))
    if json:
        print_json({"model": model, "file": file} | report.as_dict())
    else:
        print_tables(*report.tables())


def _folder_to_name_in(model: str, *, overwrite: bool) -> Path:
    """The folder of a model, where its cells can be named."""
    from relmo.disk.outputs import refuse_existing
    from relmo.store.folder import CELLS, CONFIG
    from relmo.store.references import bundled

    folder = bundled(model) or Path(model)
    if not (folder / CONFIG).is_file():
        raise SettingError(f"{model}: --name-cells writes into a model's folder; name a folder that relmo wrote")
    refuse_existing(folder / CELLS, overwrite=overwrite)
    return folder


def _write_names(folder: Path, report: "CellReport", command: str, *, say: Callable[[str], None]) -> None:
    from relmo.analysis.units.named_cells import name_cells, write_cells

    named = name_cells(report, command)
    path = write_cells(folder, named)
    say(f"{path}: {len(named)} named: " + (", ".join(f"{cell.name} ({cell.unit})" for cell in named) or "none"))


def _command(model: str, file: str, asked: FeatureOptions, checks: Checks, symbols: int | None) -> str:
    """The command that measures the same again, with files by their names alone."""
    words = ["relmo analyse cells", Path(model).name, Path(file).name]
    words += [f"--feature {name}" for name in asked.feature] + [f"--regex '{given}'" for given in asked.regex]
    words += [f"--conllu-column {column}" for column in asked.conllu_column]
    words += [f"--language {asked.language}"] if asked.language else []
    words += [f"--symbols {symbols}"] if symbols else []
    words += [f"--ablate {checks.ablate}"] if checks.ablate else []
    words += [f"--ablate-symbols {checks.ablate_symbols}"] if checks.ablate_symbols else []
    words += [f"--among {checks.among}"] if checks.among else []
    return " ".join([*words, "--name-cells"])[:400]


def _print_features() -> None:
    from relmo.analysis.core.features import FEATURES

    width = 2 + max(map(len, FEATURES))
    print(*(f"{name:<{width}}{' '.join((made.__doc__ or '').split())}" for name, made in FEATURES.items()), sep="\n")


def _most_symbols(model: "LanguageModel | BiLM") -> int:
    """How many symbols are taken by default."""
    from relmo.analysis.core.stack import stack_of
    from relmo.analysis.core.trace import network_of

    stack = stack_of(network_of(model))
    units = sum(layer.sizes[state] * stack.directions for layer in stack.layers for state in layer.states)
    return max(1, min(SYMBOLS, NUMBERS // units))


def _usual(document: "Document") -> "dict[str, np.ndarray]":
    """Features that suit a document of code, of annotated words, or of prose, and change in it."""
    from relmo.analysis.core import features

    if document.words is not None:
        found = features.column_tracks(document, "upos")
    else:
        found = features.tracks(document, CODE if document.language else PROSE)
    return {name: track for name, track in found.items() if track.min() < track.max()}


def _imported(name: str) -> Callable[[str], Any]:
    """A function of the user's, MODULE:NAME, imported as Python does from where the command runs."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise SettingError(f"--function {name}: give it as MODULE:NAME, such as mine:syllables")
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
    """Stretches of a text from a file: first character, the one after the last, a name; tabs between."""
    from relmo.analysis.core.features import Mark
    from relmo.text.corpus import read_lines

    marks = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.text.split("\t")
        if not line.text.strip():
            continue
        if len(fields) not in (2, 3) or not (fields[0].isdecimal() and fields[1].isdecimal()):
            raise SettingError(
                f"{path}:{number}: a mark is a line of start, end and name with tabs between: 10\t24\tquote"
            )
        if not int(fields[0]) < int(fields[1]):
            raise SettingError(f"{path}:{number}: a mark ends after its beginning, not {fields[0]} to {fields[1]}")
        marks.append(Mark(int(fields[0]), int(fields[1]), *fields[2:]))
    if not marks:
        raise SettingError(f"{path}: has no marks; a mark is a line of start, end and name with tabs between")
    return marks
