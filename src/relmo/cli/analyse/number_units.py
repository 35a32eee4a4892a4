"""`relmo analyse number-units MODEL [PAIRS…]`"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.analysis.core.show import Table
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.text.minimal_pairs import MinimalPair


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """How number units are looked for."""

    states: tuple[str, ...] = ()
    """Look at units of h, which other layers read, or of c, an LSTM's memory; by default both."""
    subject: int | None = None
    """The subject's place, from 0, if it cannot be found from the words."""
    every: bool = False
    """Set every unit to zero, not only random ones and those that tell the number."""
    how: Literal["zero", "mean"] = "zero"
    """Set units to zero, or to their mean over the pairs."""
    best: int = 10
    """How many long-range units, and how many short-range ones, to look at."""
    draws: int = 200
    """How many random units to compare with."""
    per_condition: int = 100
    """How many pairs of each condition to draw; 0 takes all."""

    def check(self) -> None:
        """Raises where a number makes no sense."""
        for name, least in (("best", 1), ("draws", 1), ("per_condition", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"--{name.replace('_', '-')} must be {least} or more, not {getattr(self, name)}")

    @property
    def options(self) -> dict[str, Any]:
        """What the library takes."""
        names = ("subject", "every", "how", "best", "draws")
        found = {name: getattr(self, name) for name in names}
        return found | {"states": self.states or None, "per_condition": self.per_condition or None}


@dataclass(frozen=True, kw_only=True)
class Trees:
    """How syntax units are looked for."""

    trees: Path | None = None
    """Sentences with trees, .conllu or in brackets: show which units say how deep in the tree a word is."""
    depth: Literal["open", "depth"] = "open"
    """What depth is: how many dependencies or phrases are open after a word, or how deep the word itself stands."""
    words: int = 20_000
    """How many words of the trees to read."""
    tree_states: tuple[str, ...] = ("h",)
    """Whose units to look at: h, c, or both."""


def number_units(
    model: PathName,
    *files: Path,
    numbers: Annotated[Numbers, Parameter(name="*", group="Number units")] = Numbers(),
    trees: Annotated[Trees, Parameter(name="*", group="Syntax units")] = Trees(),
    tokenizer: Tokenizer = None,
    control: bool = True,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    gates: Path | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Which units keep the number of a subject until its verb, and whether the model needs them; with --trees, which
    units say how deep in the syntactic tree it is.

    After Lakretz et al. 2019. A long-range unit tells the subject's number at every word up to the verb, also past a
    noun of the other number. Past such a noun, a short-range unit tells the number of that noun. Without a needed unit
    the model gets more verbs wrong than without any random unit. Without files, sentences such as 'The boys near the
    car know' are made of common words.

        relmo analyse number-units small --plot number.png --gates gates.png

        relmo analyse number-units models/mine nounpp.txt --states c --every

        relmo analyse number-units small --trees en_ewt-ud-dev.conllu

    Parameters
    ----------
    model
        The folder of a language model of words, bidirectional or not, or small, which ships with relmo.
    files
        Minimal pairs of one kind, as relmo analyse agreement reads them. Conditions end in the numbers of the nouns,
        singular or plural, the subject's first.
    control
        Also ask the same network untrained.
    plot
        Draw what units tell, and what they cost, to this .png or .svg file.
    gates
        Draw the states and gates of the first units over the sentence, by condition, to this .png or .svg file.
    seed
        The seed of the untrained network, and of what is drawn.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.syntax import number_units as library
    from relmo.cli.terminal import print_json, print_tables, sayer, share_bar, warnings_said
    from relmo.loading import FORWARDS, load

    check_plot(plot, overwrite=overwrite)
    check_plot(gates, overwrite=overwrite)
    numbers.check()
    sentences = _read_trees(trees)
    loaded = load(model, kinds=FORWARDS, device=device).splitting(tokenizer)
    pairs = _read_or_make(files, loaded, numbers, seed)
    with warnings_said(sayer(quiet=quiet)):
        with share_bar("units off one by one", quiet=quiet) as progress:
            options = numbers.options | {"control": control, "seed": seed, "progress": progress}
            found = library.number_units(loaded, pairs, **options)
        done: dict[str, Any] = {"number": found, **{f"together_{name}": each for name, each in found.together.items()}}
        if sentences is not None:
            done |= _find_syntax(loaded, sentences, trees, control=control, seed=seed, quiet=quiet)
            done |= _syntax_off(loaded, pairs, done["syntax"], numbers, seed)
            done |= _connected(loaded, done["syntax"], found)
        if gates is not None:
            _draw_first(loaded, pairs, found, gates, quiet=quiet)
    if plot is not None:
        found.plot(plot)
        say_wrote(plot, quiet=quiet)
    if json:
        given = {"model": model, "files": [str(file) for file in files]}
        print_json(given | {name: each.as_dict() for name, each in done.items()})
        return
    print_tables(*(titled(name, each.table()) for name, each in done.items()))


def titled(name: str, table: "Table") -> "Table":
    """A table that says which units were off together."""
    _, together, kind = name.partition("together_")
    title = f"{kind}{'-range' * (kind != 'syntax')} units off together"
    return replace(table, title=title) if together else table


def _read_trees(trees: Trees) -> Any:
    from relmo.text.trees import read_depths

    if trees.words < 1:
        raise SettingError(f"--words must be 1 or more, not {trees.words}")
    return None if trees.trees is None else read_depths(trees.trees, trees.depth)


def _read_or_make(
    files: tuple[Path, ...], model: "LanguageModel | BiLM", numbers: Numbers, seed: int
) -> "list[MinimalPair]":
    """The pairs of the files; without files, pairs of common words that the model knows."""
    from relmo.text.minimal_pairs import read_pairs
    from relmo.text.noun_phrases import noun_pp

    if files:
        return [pair for file in files for pair in read_pairs(file)]
    known = None if model.vocabulary is None else model.vocabulary.index
    return noun_pp(per_condition=numbers.per_condition or 600, known=known, seed=seed)


def _find_syntax(
    model: "LanguageModel | BiLM", sentences: Any, trees: Trees, *, control: bool, seed: int, quiet: bool
) -> dict[str, Any]:
    """The regression on the depth in the tree."""
    from relmo.analysis.syntax.syntax_units import MEASURES, syntax_units
    from relmo.cli.terminal import share_bar

    measure = MEASURES[trees.depth]
    with share_bar("depths of words", quiet=quiet) as progress:
        options: dict[str, Any] = {"states": trees.tree_states, "measure": measure, "words": trees.words}
        found = syntax_units(model, sentences, control=control, seed=seed, progress=progress, **options)
    return {"syntax": found}


def _syntax_off(
    model: "LanguageModel | BiLM", pairs: "list[MinimalPair]", syntax: Any, numbers: Numbers, seed: int
) -> dict[str, Any]:
    """What is right with all syntax units off, where there are any."""
    from relmo.analysis.syntax.agreement import ablate_together

    if not syntax.units:
        return {}
    most = numbers.per_condition or None
    options: dict[str, Any] = {"how": numbers.how, "draws": numbers.draws, "per_condition": most, "seed": seed}
    return {"together_syntax": ablate_together(model, pairs, [each.unit for each in syntax.units], **options)}


def _connected(model: "LanguageModel | BiLM", syntax: Any, number: Any) -> dict[str, Any]:
    """The weights from syntax units to the gates of long-range units of the same layer, where there are both."""
    from relmo.analysis.syntax.connections import connections

    sources = [each.unit for each in syntax.units]
    projected = bool(model.settings.model.projection)
    targets = [each.unit for each in number.of("long") if each.unit.state != "h" or not projected]
    targets = [unit for unit in targets if any(unit.layer == source.layer for source in sources)][:3]
    return {"connections": connections(model, sources, targets)} if sources and targets else {}


def _draw_first(
    model: "LanguageModel | BiLM", pairs: "list[MinimalPair]", found: Any, path: Path, *, quiet: bool
) -> None:
    """The gates of the first needed or long-range unit, and of the first short-range one."""
    from relmo.analysis.syntax.gate_traces import draw_gates, gate_traces

    first = sorted(found.of("long"), key=lambda each: not each.needed)[:2] or found.of("none")[:1]
    units = [each.unit for each in [*first, *found.of("short")[:1]]]
    draw_gates([gate_traces(model, pairs, unit) for unit in units], path)
    say_wrote(path, quiet=quiet)
