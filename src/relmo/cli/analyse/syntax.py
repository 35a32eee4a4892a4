"""`relmo analyse agreement`, `relmo analyse suite` and `relmo analyse number-units`"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import ANALYSIS, Analysis, Control, Draws, LMFolder, Natural, Positive, SampleSeed, check_plot
from relmo.errors import SettingError
from relmo.settings.fields import FrozenSettings, PathName


class UnitOptions(FrozenSettings):
    """Ablation and traces of units."""

    sweep: bool = False
    """Ablate every unit, one at a time, and report the unit that each condition needs."""
    together: str | None = None
    """Ablate these units jointly, such as h1.126,h1.338: state, layer and number."""
    trace: str | None = None
    """Report the states and gates of this unit over the sentences, by condition."""
    state: str = "h"
    """The state whose units --sweep ablates: h, a layer's output, or c, an LSTM's memory."""
    how: Literal["zero", "mean"] = "zero"
    """Set ablated units to zero, or to their mean over the pairs."""
    per_condition: Natural = 100
    """The number of pairs sampled from each condition for ablation; 0 takes all. Accuracies are over all pairs."""
    draws: Draws = 100
    """The number of random sets of units that --together is compared with."""


def agreement(
    model: LMFolder,
    *files: Path,
    units: Annotated[UnitOptions, Parameter(name="*", group="Units")] = UnitOptions(),
    control: Control = True,
    seed: SampleSeed = 0,
    output: Analysis = ANALYSIS,
) -> None:
    """Measure how often a model prefers the right one of two forms or sentences, by condition, and find needed units.

    Accuracies have 95% intervals and two controls: the same network untrained, and the more frequent form. --sweep
    ablates every unit, one at a time. --together ablates a set of units and compares with random sets of the same size.
    --plot draws the gates with --trace, else the sweep with --sweep, else the accuracies.

        relmo analyse agreement small nounpp.txt simple.txt --sweep --plot sweep.png
        relmo analyse agreement models/mine pairs.csv --together h1.126,h1.338
        relmo analyse agreement models/mine nounpp.txt --trace c1.338 --plot gates.png

    Args:
        files: Minimal pairs: BLiMP's .jsonl, Lakretz's .txt, Linzen's .gold with its .text file, Gulordava's .tab, or a
            .csv or .tsv with columns good and bad, or context, right and wrong, and condition. A folder stands for all
            such files in it.
    """
    from relmo.analysis.syntax import agreement as library
    from relmo.analysis.syntax.gate_traces import gate_traces
    from relmo.text.minimal_pairs import read_pairs

    output.check()
    if not files:
        raise SettingError("PAIRS is missing: relmo analyse agreement MODEL PAIRS…")
    together, traced = _parse_units(units.together), _parse_units(units.trace)
    if len(traced) > 1:
        raise SettingError(f"--trace {units.trace}: takes one unit, such as h1.126")
    pairs = [pair for file in files for pair in read_pairs(file)]
    loaded = output.load(model)
    per_condition = units.per_condition or None
    options: dict[str, Any] = {"how": units.how, "per_condition": per_condition, "seed": seed}
    reports: dict[str, Any] = {}
    with output.notes():
        with output.progress("reading pairs") as progress:
            reports["agreement"] = library.agreement(loaded, pairs, control=control, seed=seed, progress=progress)
        if units.sweep:
            with output.progress("ablating units") as progress:
                reports["sweep"] = library.sweep(loaded, pairs, state=units.state, progress=progress, **options)
        if together:
            with output.progress("ablating sets of units") as progress:
                options |= {"draws": units.draws, "progress": progress}
                reports["together"] = library.ablate_together(loaded, pairs, together, **options)
        if traced:
            reports["trace"] = gate_traces(loaded, pairs, traced[0], per_condition=per_condition)
    output.write([report for report in reports.values() if hasattr(report, "plot")][-1].plot, output.plot)
    _show_reports(output, model, files, reports)


def _show_reports(output: Analysis, model: str, files: tuple[Path, ...], reports: dict[str, Any]) -> None:
    record = {"model": model, "files": [str(file) for file in files]}
    record |= {name: report.as_dict() for name, report in reports.items()}
    tables = []
    for name, report in reports.items():
        kind = name.removeprefix("together_")
        title = f"joint ablation of {kind}{'' if kind == 'syntax' else '-range'} units"
        tables.append(report.table() if kind == name else replace(report.table(), title=title))
    output.show(record, *tables)


def _parse_units(names: str | None) -> list[Any]:
    """Parse units as reports name them, separated by commas: h1.126,c0.3."""
    from relmo.analysis.core.causal import Unit

    units = []
    for name in names.split(",") if names else []:
        match = re.fullmatch(r"\s*([hc])(\d+)\.(\d+)\s*", name)
        if match is None:
            raise SettingError(f"{name!r} is not a unit; the format is state, layer and number, such as h1.126 or c0.3")
        units.append(Unit(match[1], int(match[2]), int(match[3])))
    return units


def suite(
    model: LMFolder,
    *files: Path,
    published: Path | None = None,
    published_models: tuple[str, ...] = (),
    control: Control = True,
    seed: SampleSeed = 0,
    output: Analysis = ANALYSIS,
) -> None:
    """Measure the accuracy of a model on test suites of SyntaxGym, and on minimal pairs, beside published models.

    An item of a suite is right if the surprisals of its regions satisfy all predictions. Accuracies have 95% intervals;
    those of circuits (Hu et al. 2020), of phenomena and of sets are means over their suites.

        relmo analyse suite small data/tasks/syntaxgym --plot suites.png
        relmo analyse suite models/mine number_orc.json nounpp.txt --no-control

    Args:
        files: Suites, .json, or minimal pairs, as for relmo analyse agreement. A folder stands for the suites in it or,
            without any, for its minimal pairs.
        published: A table of published accuracies from 0 to 1, with a column model and one per suite. The default is
            published.tsv beside the suites, if it exists.
        published_models: The models of that table to show; by default GRNN, JRNN, GPT-2 and RNNG. --json has all.
    """
    from relmo.analysis.syntax import suites as library

    output.check()
    if not files:
        raise SettingError("FILES is missing: relmo analyse suite MODEL FILES…")
    suites, pair_sets = library.read_sets(files)
    if published is None and suites:
        tables = ((file if file.is_dir() else file.parent) / "published.tsv" for file in files)
        published = next((path for path in tables if path.is_file()), None)
    if published_models and published is None:
        raise SettingError("--published-models needs a table: --published FILE")
    accuracies = {} if published is None else library.read_published(published, published_models)
    loaded = output.load(model)
    with output.notes(), output.progress("reading suites") as progress:
        options: dict[str, Any] = {"published": accuracies, "control": control, "seed": seed, "progress": progress}
        report = library.evaluate_suites(loaded, suites, pair_sets, **options)
    report = replace(report, columns=published_models or [name for name in library.PEERS if name in accuracies])
    output.write(report.plot, output.plot)
    _show_reports(output, model, files, {"suite": report})


class NumberOptions(FrozenSettings):
    """Search for number units."""

    states: tuple[str, ...] = ()
    """States whose units are searched: h, a layer's output, or c, an LSTM's memory; by default both."""
    subject: int | None = None
    """The subject's position, from 0, if it cannot be inferred from the words."""
    every: bool = False
    """Ablate every unit, not only random units and those that carry the number."""
    how: Literal["zero", "mean"] = "zero"
    """Set ablated units to zero, or to their mean over the pairs."""
    best: Positive = 10
    """The number of long-range units, and of short-range ones, to examine."""
    draws: Draws = 200
    """The number of random units for comparison."""
    per_condition: Natural = 100
    """The number of pairs sampled from each condition; 0 takes all."""


class TreeOptions(FrozenSettings):
    """Search for syntax units."""

    trees: Path | None = None
    """Sentences with trees, .conllu or bracketed: find the units that encode the depth of a word in the tree."""
    depth: Literal["open", "depth"] = "open"
    """The definition of depth: the number of dependencies or phrases open after a word, or the depth of the word."""
    words: Positive = 20_000
    """The number of words of the trees to read."""
    tree_states: tuple[str, ...] = ("h",)
    """States whose units are searched: h, c, or both."""


def number_units(
    model: PathName,
    *files: Path,
    number: Annotated[NumberOptions, Parameter(name="*", group="Number units")] = NumberOptions(),
    trees: Annotated[TreeOptions, Parameter(name="*", group="Syntax units")] = TreeOptions(),
    control: Control = True,
    gates: Path | None = None,
    seed: SampleSeed = 0,
    output: Analysis = ANALYSIS,
) -> None:
    """Find units that keep the number of a subject until its verb, and test whether the model needs them; with --trees,
    find units that encode the depth in the syntactic tree.

    After Lakretz et al. 2019. A long-range unit carries the subject's number at every word up to the verb, also past a
    noun of the other number; past such a noun, a short-range unit carries the number of that noun. Without a needed
    unit the model gets more verbs wrong than without any random unit. Without files, sentences such as 'The boys near
    the car know' are generated from common words.

        relmo analyse number-units small --plot number.png --gates gates.png
        relmo analyse number-units models/mine nounpp.txt --states c --every
        relmo analyse number-units small --trees en_ewt-ud-dev.conllu

    Args:
        model: The folder of a language model of words, bidirectional or not; or small, a bundled model.
        files: Minimal pairs of one kind, as for relmo analyse agreement. Conditions end with the numbers of the nouns,
            singular or plural, the subject's first.
        gates: Draw the states and gates of the first units over the sentence, by condition, to this .png or .svg file.
    """
    from relmo.analysis.syntax import number_units as library
    from relmo.analysis.syntax.agreement import ablate_together
    from relmo.analysis.syntax.gate_traces import draw_gates, gate_traces
    from relmo.analysis.syntax.syntax_units import MEASURES, syntax_units
    from relmo.text.minimal_pairs import noun_pp, read_pairs
    from relmo.text.trees import read_depths

    output.check()
    check_plot(gates, overwrite=output.overwrite)
    sentences = None if trees.trees is None else read_depths(trees.trees, trees.depth)
    loaded = output.load(model)
    per_condition = number.per_condition or None
    pairs = [pair for file in files for pair in read_pairs(file)]
    if not files:
        vocabulary = None if loaded.vocabulary is None else loaded.vocabulary.index
        pairs = noun_pp(per_condition=per_condition or 600, known=vocabulary, seed=seed)
    options: dict[str, Any] = vars(number) | {"states": number.states or None, "per_condition": per_condition}
    with output.notes():
        with output.progress("ablating units") as progress:
            report = library.number_units(loaded, pairs, control=control, seed=seed, progress=progress, **options)
        reports: dict[str, Any] = {"number": report}
        reports |= {f"together_{reach}": ablation for reach, ablation in report.together.items()}
        if sentences is not None:
            with output.progress("regressing depth") as progress:
                options = {"states": trees.tree_states, "measure": MEASURES[trees.depth], "words": trees.words}
                options |= {"control": control, "seed": seed, "progress": progress}
                reports["syntax"] = syntax_units(loaded, sentences, **options)
            sources = [unit.unit for unit in reports["syntax"].units]
            if sources:
                options = {"how": number.how, "draws": number.draws, "per_condition": per_condition, "seed": seed}
                reports["together_syntax"] = ablate_together(loaded, pairs, sources, **options)
            reports |= _connect(loaded, sources, report)
        if gates is not None:
            long_range = sorted(report.of("long"), key=lambda unit: not unit.needed)[:2] or report.of("none")[:1]
            units = [unit.unit for unit in [*long_range, *report.of("short")[:1]]]
            output.write(lambda path: draw_gates([gate_traces(loaded, pairs, unit) for unit in units], path), gates)
    output.write(report.plot, output.plot)
    _show_reports(output, model, files, reports)


def _connect(model: Any, sources: list[Any], number: Any) -> dict[str, Any]:
    """Return the weights from syntax units to the gates of up to three long-range units of the same layer."""
    from relmo.analysis.core.stack import build_stack
    from relmo.analysis.syntax.gate_traces import connections

    has_projection = build_stack(model.network).layers[0].projection is not None
    layers = {source.layer for source in sources}
    units = [unit.unit for unit in number.of("long")]
    targets = [unit for unit in units if unit.layer in layers and not (unit.state == "h" and has_projection)][:3]
    return {"connections": connections(model, sources, targets)} if targets else {}
