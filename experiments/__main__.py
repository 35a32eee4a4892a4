"""Command line of the published tables: `python -m experiments …`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from msgspec import Meta

from experiments import TABLES, TRAINED_TABLES, check_name, reproduce
from relmo.cli import main as run_command
from relmo.cli.mistakes import check_numbers
from relmo.cli.options import Overwrite, Seed, check_plot, report_written
from relmo.cli.terminal import make_printer, print_json, print_tables, print_warnings
from relmo.errors import RelmoError, SettingError
from relmo.settings.fields import PathName

Device = Literal["auto", "cpu", "cuda"]

app = App(
    name="python -m experiments",
    help_format="markdown",
    suppress_keyboard_interrupt=False,
    version_flags=(),
    config=check_numbers,
)


@app.default
def tables(
    *names: str,
    model: PathName | None = None,
    vectors: PathName | None = None,
    data: Path | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Make published tables and figures again for a model. Without a name, list the tables.

    The model stands beside its controls: its own layer without context, static vectors, and the same network untrained.

        python -m experiments pos neighbours

        python -m experiments perplexity --model models/mine --data /data/relmo --json

    Parameters
    ----------
    names
        The tables to make, one after the other.
    model
        Folder of a bidirectional model, or original ELMo files; by default the model bundled with relmo.
    vectors
        Folder of static word vectors to compare with; by default those bundled with relmo.
    data
        Folder with the data; by default $RELMO_DATA, else data/ in the working directory.
    seed
        Seed of the untrained network's weights.
    device
        Device to compute on; auto uses a GPU if there is one.
    json
        Print one JSON object with all scores.
    quiet
        Show no progress.
    """
    if not names:
        descriptions = TABLES | TRAINED_TABLES
        if json:
            print_json(descriptions)
        else:
            width = 2 + max(map(len, descriptions))
            print(*(f"{name:<{width}}{description}" for name, description in descriptions.items()), sep="\n")
        return
    for name in names:
        check_name(name)

    from experiments.tables import Controls, print_published_table
    from relmo.explorer.extras import data_folder
    from relmo.loading import load, load_vectors
    from relmo.models.sequence_model import untrained

    say = make_printer(quiet=quiet)
    bilm = load(model, kinds="bilm", device=device)
    controls = Controls(untrained(bilm, seed), load_vectors(vectors, say))
    summaries = []
    for name in names:
        with print_warnings(say):
            table = reproduce(name, bilm, data=data_folder(data), controls=controls, on_message=say)
        summaries.append(table.summary())
        if not json:
            print_published_table(table)
    if json:
        print_json({"model": model or "bundled", "reproductions": summaries})


@app.command
def elmo_table(
    *,
    data: Path | None = None,
    out: Path = Path("out/elmo-table"),
    model: tuple[str, ...] = ("small",),
    rows: str | None = None,
    tables: str | None = None,
    seeds: Annotated[int, Meta(ge=1, le=1000)] | None = None,
    jobs: Annotated[int, Meta(ge=0, le=1000)] = 1,
    minutes: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None,
    fine_tune: Annotated[bool, Parameter(negative="")] = False,
    reduced: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Train six tasks with and without ELMo and compare them with the tables of Peters et al. 2018: what ELMo adds,
    which layers, where, and the weights of the layers. Finished trainings are kept: the same command resumes the
    others.

    For example:

        python -m experiments elmo-table --data data --model small --model large=models/original --jobs 4

        python -m experiments elmo-table --rows ner,sst5 --tables 1 --seeds 3 --minutes 8

        python -m experiments elmo-table --tables 1 --fine-tune --jobs 4

        python -m experiments elmo-table --dry-run

    Parameters
    ----------
    data
        Folder with the data; by default $RELMO_DATA, else data/ in the working directory.
    out
        Folder for models, results, tables and figures.
    model
        A biLM, or NAME=FOLDER to name its column; may be given several times.
    rows
        Comma-separated tasks among squad, snli, srl, coref, ner, sst5; by default all.
    tables
        Comma-separated tables among 1, 2, placement, weights; by default all.
    seeds
        Number of seeds per network. By default cheap networks are trained with more seeds.
    jobs
        Number of networks trained at a time; 0 trains nothing and shows finished results.
    minutes
        Stop after this time. The same command resumes what is not finished.
    fine_tune
        Also fine-tune each biLM on the text of each task's training file, without labels, and train the networks with
        it: a column NAME-tuned, and a table of perplexities.
    reduced
        Train tiny networks on the beginning of each file, to test that everything runs; minutes on a CPU.
    dry_run
        Print the training commands, one per line, and stop.
    device
        Device to compute on; auto uses a GPU if there is one.
    json
        Print one JSON object with all scores.
    quiet
        Show no progress.
    """
    from experiments.elmo_table.plan import TABLES, TablePlan, name_bilms, select_names
    from experiments.elmo_table.report import make_tables, training_commands
    from experiments.elmo_table.rows import ROWS
    from experiments.elmo_table.tables import TEXT_COLUMNS
    from relmo.explorer.extras import data_folder

    sources = name_bilms(model, fine_tune=fine_tune)
    plan = TablePlan(
        select_names("--tables", tables, TABLES),
        select_names("--rows", rows, ROWS),
        list(sources),
        seeds,
        reduced,
        fine_tune,
    )
    folder = data_folder(data)
    if dry_run:
        print(*training_commands(plan, sources, folder, out, device), sep="\n")
        return
    say = make_printer(quiet=quiet)
    seconds = None if minutes is None else 60 * minutes
    try:
        report, outcome = make_tables(
            plan, sources, folder, out, jobs=jobs, device=device, seconds=seconds, on_message=say
        )
    except KeyboardInterrupt:
        say("run the same command to resume the unfinished trainings")
        raise
    if json:
        print_json(report.summary() | {"failed": outcome.failed, "unfinished": outcome.unfinished})
    else:
        print_tables(*report.tables(), words=TEXT_COLUMNS)
    if outcome.unfinished:
        say(f"{len(outcome.unfinished)} trainings are not finished; run the same command to resume them")
    if outcome.failed:
        name, message = next(iter(outcome.failed.items()))
        raise RelmoError(f"{len(outcome.failed)} trainings failed, such as {name}: {message}")


@app.command
def reading_times(
    *,
    model: Annotated[list[str] | None, Parameter(negative="")] = None,
    corpus: Literal["natural-stories", "ucl"] = "natural-stories",
    adapt: str | None = None,
    train: bool = True,
    keep: Path | None = None,
    data: Path | None = None,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Test whether surprisal explains how long people read a word: the gain in log-likelihood of a linear model of
    reading times when surprisal is added to length, frequency and position. Compared are a 5-gram, an LSTM, the bundled
    model and published predictors. Regressions are linear, with smooth effects, and with random intercepts.

    The times are those of Natural Stories (Futrell et al. 2021): every natural_stories*.tsv in tasks/reading_times of
    the data folder; or of the UCL sentences (Frank et al. 2013, 2015): self-paced reading, four eye-tracking measures
    and the N400. The 5-gram and the LSTM are trained first, on 20 MB of text, which takes about eight minutes on one
    core.

        python -m experiments reading-times --keep out/reading-times --plot out/reading-times.png

        python -m experiments reading-times --no-train --model models/lstm --model models/5-gram

        python -m experiments reading-times --corpus ucl --keep out/reading-times

        python -m experiments reading-times --keep out/reading-times --adapt 0.03,0.1

    Parameters
    ----------
    model
        Folder of a language model of any kind; may be given several times. By default the bundled model.
    corpus
        Words that were read: natural-stories or ucl.
    adapt
        Comma-separated learning rates: also compare each neural model adapted to the text while it reads, after each
        sentence, at each rate (van Schijndel & Linzen 2018).
    train
        Train the 5-gram and the LSTM. Otherwise only the given models are compared with the published predictors.
    keep
        Keep the 5-gram and the LSTM in this folder. If they exist, they are not trained again.
    data
        Folder with the data; by default $RELMO_DATA, else data/ in the working directory.
    plot
        Draw the gains of Natural Stories with their intervals: a .png or .svg file.
    seed
        Seed of the untrained network's weights.
    device
        Device to compute on; auto uses a GPU if there is one.
    json
        Print one JSON object with all scores and the differences between all pairs of models.
    quiet
        Show no progress.
    """
    check_plot(plot, overwrite=overwrite)
    if plot is not None and corpus == "ucl":
        raise SettingError("--plot draws Natural Stories only.")

    from experiments import ucl_sentences
    from experiments.reading_times import draw_gains, make_table, parse_rates, read_data, train_baselines
    from relmo.explorer.extras import data_folder
    from relmo.loading import FORWARD_KINDS, load

    say = make_printer(quiet=quiet)
    rates = [] if adapt is None else parse_rates(adapt)
    words = read_data(data_folder(data)) if corpus == "natural-stories" else None
    sentences = ucl_sentences.read_sentences(data_folder(data)) if corpus == "ucl" else None
    models = {name: load(name, kinds=FORWARD_KINDS, device=device) for name in model or ["small"]}
    baselines = train_baselines(data_folder(data), keep, device=device, on_message=say) if train else {}
    if sentences is not None:
        report = ucl_sentences.compare_models(sentences, baselines | models, rates=rates, seed=seed, on_message=say)
        if json:
            print_json({"models": [*baselines, *models]} | report)
        else:
            print_tables(*ucl_sentences.make_tables(report))
        return
    assert words is not None
    table = make_table(words, baselines | models, rates=rates, seed=seed, on_message=say)
    if plot is not None:
        draw_gains(plot, table.rows)
        report_written(plot, quiet=quiet)
    if json:
        print_json({"models": [*baselines, *models], "reproductions": [table.summary()]})
    else:
        from experiments.tables import print_published_table

        print_published_table(table)


@app.command
def cells(
    *,
    cells: str | None = None,
    tasks: str | None = None,
    out: Path = Path("out/cells"),
    report: Path | None = None,
    plot: Path | None = None,
    data: Path | None = None,
    jobs: Annotated[int, Meta(ge=1, le=1000)] = 1,
    seeds: Annotated[int, Meta(ge=1, le=1000)] | None = None,
    steps: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None,
    batch: Annotated[int, Meta(ge=1, le=100_000)] | None = None,
    layers: Annotated[int, Meta(ge=1, le=100)] | None = None,
    characters: Annotated[int, Meta(ge=1, le=10**12)] | None = None,
    words: Annotated[int, Meta(ge=1, le=10**12)] | None = None,
    pairs: Annotated[int, Meta(ge=1, le=1000)] | None = None,
    hidden: Annotated[int, Meta(ge=8, le=10_000)] | None = None,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Measure what recurrent cells can and cannot do with equal numbers of weights: formal tasks, trained short and
    tested long; language models on a fixed budget; reach of the gradient; speed. Finished measurements are kept: the
    same command resumes the others.

    For example:

        python -m experiments cells --cells lstm,gru --tasks parity,anbn --jobs 2

        python -m experiments cells --report out/cells --plot docs/cells.png

    Parameters
    ----------
    cells
        Comma-separated cells; by default all registered ones, and irnn.
    tasks
        Comma-separated measurements among the formal tasks, shakespeare, wikitext, speed and speed-cuda; by default
        all.
    out
        Folder for records and models.
    report
        Measure nothing; print the table of this folder's records.
    plot
        Draw the formal tasks as a heat map: a .png or .svg file. By default cells.png in the folder of the records.
    data
        Folder with the data; by default $RELMO_DATA, else data/ in the working directory.
    jobs
        Number of measurements at a time, each in its own process. Speed is measured last, by itself.
    seeds
        Formal tasks: number of seeds.
    steps
        Formal tasks: number of training steps.
    batch
        Formal tasks: number of sequences per seed and step.
    layers
        Formal tasks: number of recurrent layers.
    characters
        Shakespeare: number of characters read in training.
    words
        WikiText-2: number of words read in training.
    pairs
        BLiMP: number of pairs per paradigm.
    hidden
        Language models: hidden size of the LSTM with whose weights the others agree in number.
    device
        Device to compute on; auto uses a GPU if there is one.
    json
        Print one JSON object with all results.
    quiet
        Show no progress.
    """
    from dataclasses import replace

    import torch

    from experiments.cells.jobs import MEASUREMENTS, Plan, default_cells, read_results, run_jobs, select
    from experiments.cells.table import draw_heat_map, make_tables
    from experiments.cells.tasks import TASKS
    from experiments.elmo_table.tables import to_markdown
    from relmo.explorer.extras import data_folder

    say = make_printer(quiet=quiet)
    failures: dict[str, str] = {}
    if report is None:
        plan = Plan(select(cells, default_cells(), "--cells"), select(tasks, MEASUREMENTS, "--tasks"))
        protocol = {"seeds": seeds, "steps": steps, "batch": batch, "layers": layers}
        budget = {"characters": characters, "words": words, "pairs": pairs, "hidden": hidden}
        plan = replace(
            plan,
            protocol=replace(plan.protocol, **{k: value for k, value in protocol.items() if value is not None}),
            language=replace(plan.language, **{k: value for k, value in budget.items() if value is not None}),
            device=device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu",
        )
        failures = run_jobs(plan, out, data_folder(data), processes=jobs, on_message=say)
    results = read_results(report or out)
    if json:
        print_json({"results": results, "failed": failures})
    elif results:
        print(to_markdown(make_tables(results)))
    if any(set(records) & set(TASKS) for records in results.values()):
        picture = plot or (report or out) / "cells.png"
        draw_heat_map(results, picture)
        report_written(picture, quiet=quiet)
    if failures:
        name, message = next(iter(failures.items()))
        raise RelmoError(f"{len(failures)} measurements failed, such as {name}: {message}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 0, 2 (usage or data error) or 130 (Ctrl-C)."""
    run_command(arguments, app)


if __name__ == "__main__":
    main()
