"""`relmo analyse compare MODEL… --text FILE`"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from relmo.cli.analyse.base import MODELS, OUTPUT, Models, Output, check_minimum
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.lm import LanguageModel


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Baselines, samples and features."""

    train: PathName | None = None
    """The training text of the models. An n-gram model of it is compared too, and copies from it are counted."""
    order: int = 20
    """The order of the n-gram model, up to 20."""
    samples: int = 0
    """The number of texts sampled from every model, with the same seeds. The models' names are printed last."""
    prompt: str = ""
    """The beginning of these texts."""
    limit: int = 500
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
    seed: int = 0,
    output: Output = OUTPUT,
    loading: Models = MODELS,
) -> None:
    """Compare language models on the same text: their loss by class of symbol and by the distance to the bracket that a
    symbol closes. With --train, also compare them with an n-gram model of their training text.

    For example:

        relmo analyse compare models/lstm --text held-out.txt --train train.txt --samples 2

        relmo analyse compare models/lstm models/gru --text held-out.txt --plot losses.png

        relmo analyse compare models/epoch-1 models/epoch-2 --text held-out.txt --feature quotes

    Parameters
    ----------
    models
        Folders of language models that tokenise text alike.
    text
        A held-out text; - for standard input.
    symbols
        The number of symbols to read; 0 reads all.
    seed
        The random seed of the samples.
    """
    import numpy as np

    from relmo.analysis.core.features import read_document, tracks
    from relmo.analysis.core.show import Table, format_number
    from relmo.analysis.units import compare as library
    from relmo.analysis.units.ngram import ngram_like
    from relmo.text.encode import encode_file

    check_minimum(samples=(comparison.samples, 0), limit=(comparison.limit, 1))
    output.check()
    loaded = _load_models(models, loading)
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
    record = {name: report.as_dict() for name, report in reports.items()}
    tables = [report.table() for report in reports.values()]
    if comparison.train:
        lengths = library.COPY_LENGTHS[model.settings.text.unit]
        copies = {"the text given": library.copied(model.vocabulary.ids(document.symbols), training_ids, lengths)}
        for name in loaded:
            ids = [model.encode(sample.text) for _, sample in samples if sample.model == name]
            if ids:
                copies[f"samples of {name}"] = library.copied(np.concatenate(ids), training_ids, lengths)
        record["copies"] = {name: {str(n): share for n, share in shares.items()} for name, shares in copies.items()}
        rows = [[name, *(format_number(100 * shares[n], 1) for n in lengths)] for name, shares in copies.items()]
        columns = ["spans of n symbols, n =", *map(str, lengths)]
        tables.append(Table(columns, rows, "percent of spans that occur in the training text"))
    output.draw(reports["losses"].plot)
    texts = [{"seed": s, "model": sample.model, "text": sample.text} for s, sample in samples]
    output.print({"text": text} | record | {"samples": texts}, tables)
    if samples and not output.json:
        _print_samples(samples, len(loaded))


def _load_models(sources: tuple[str, ...], loading: Models) -> "dict[str, LanguageModel]":
    """Load language models by folder name, or by path where folder names are the same."""
    if not sources:
        raise SettingError("MODEL is missing: relmo analyse compare MODEL… --text FILE")
    names = [Path(source).name for source in sources]
    if len(set(names)) < len(names):
        names = list(sources)
    if len(set(names)) < len(names):
        raise SettingError("the same model is given twice")
    return {name: loading.load(source, kinds="lm") for name, source in zip(names, sources, strict=True)}


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
