"""`relmo analyse meaning SENTENCE WORD --index DIR`"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.analyse.base import MODELS, PRINTING, Models, Printing, check_minimum
from relmo.cli.options import Overwrite
from relmo.errors import ModelError, SettingError, quote
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.analysis.core.show import Table
    from relmo.models.bilm import BiLM


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The corpus that is searched."""

    index: Path | None = None
    """The index folder of a corpus, written by --build."""
    build: tuple[Path, ...] = ()
    """Build the index folder from these files: one sentence per line, or .conllu."""
    overwrite: Overwrite = False
    dtype: Literal["int8", "float16"] = "int8"
    """The storage type of vectors for --build: int8, or float16, which is twice as large."""
    k: int = 10
    """The number of occurrences to show."""
    same_word: bool = False
    """Search only among other occurrences of the same word."""
    vectors: PathName | None = None
    """Static word vectors for comparison; by default the bundled ones."""

    @property
    def source(self) -> str | None:
        """Name or path of the model that the index was built with; None if there is no index yet or it does not say."""
        from relmo.analysis.meaning.occurrences import OccurrenceIndex

        return None if self.index is None or self.build else OccurrenceIndex.open(self.index).source


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Comparison of layers."""

    mix: tuple[str, ...] = ()
    """A trained task with ELMo: show its weight of each layer."""
    measure: tuple[Literal["wsd", "pos"], ...] = ()
    """Evaluate each layer: wsd for word sense disambiguation, pos for part-of-speech tagging."""
    data: Path | None = None
    """The data folder for --measure."""


def meaning(
    sentence: str | None = None,
    word: str | None = None,
    *,
    model: PathName | None = None,
    corpus: Annotated[CorpusOptions, Parameter(name="*", group="Corpus")] = CorpusOptions(),
    layers: Annotated[LayerOptions, Parameter(name="*", group="Layers")] = LayerOptions(),
    output: Printing = PRINTING,
    loading: Models = MODELS,
) -> None:
    """Find the nearest occurrences of a word of a sentence in a corpus, layer by layer, and the neighbours of its
    static vector. Also evaluate layers on senses and parts of speech, and show the layer weights of tasks.

    For example:

        relmo analyse meaning --index corpus.index --build corpus.txt

        relmo analyse meaning 'He made a spectacular play .' play --index corpus.index

        relmo analyse meaning --mix models/tagger --mix models/classifier

    Parameters
    ----------
    sentence
        A sentence; it is tokenised.
    word
        The word of the sentence to look up, or its position from 0.
    model
        A bidirectional language model; by default the one that --index was built with, or the bundled one.
    """
    if (sentence is None) != (word is None):
        raise SettingError("SENTENCE or WORD is missing: relmo analyse meaning SENTENCE WORD --index DIR")
    if (sentence is not None or corpus.build) and corpus.index is None:
        raise SettingError("--index is missing; give the index folder of the corpus: --index DIR")
    if sentence is None and not (corpus.build or layers.mix or layers.measure):
        raise SettingError("nothing to do; give SENTENCE and WORD, or --build, --mix or --measure")
    check_minimum(k=(corpus.k, 1))
    from relmo.analysis.meaning.lookup import meaning as look_up
    from relmo.analysis.meaning.occurrences import OccurrenceIndex
    from relmo.cli.terminal import print_json, print_tables
    from relmo.loading import load_vectors

    record: dict[str, Any] = {}
    tables: list[Table] = []
    needs_model = sentence is not None or corpus.build or layers.measure
    source = corpus.source if model is None else model
    loaded = loading.load(source, kinds="bilm") if needs_model else None
    with output.notes():
        if corpus.build and loaded is not None:
            record["index"] = _build_index(corpus, loaded, source, quiet=output.quiet)
            output.say(f"{corpus.index}: {record['index']['words']:,} words")
        if sentence is not None and word is not None and corpus.index is not None and loaded is not None:
            position = int(word) if word.isdecimal() and word not in loaded.tokens(sentence) else word
            options: dict[str, Any] = {"k": corpus.k, "same_word": corpus.same_word}
            options["vectors"] = load_vectors(corpus.vectors, output.say)
            result = look_up(loaded, OccurrenceIndex.open(corpus.index), sentence, position, **options)
            record["meaning"] = result.as_dict()
            tables += result.tables()
            looked_up = quote(result.words[result.position])
            if not any(result.layers):
                output.say(f"{corpus.index}: has no other occurrence of {looked_up}")
            if result.static == []:
                output.say(f"{looked_up} has no static vector to compare with")
        if layers.mix:
            mix_record, table = _read_mixes(layers.mix, loading.device)
            record["mix"] = mix_record
            tables.append(table)
    if not output.json:
        print_tables(*tables)
    if loaded is not None and layers.measure:
        record |= _evaluate_layers(loaded, layers, corpus.vectors, output)
    if output.json:
        print_json(record)


def _build_index(corpus: CorpusOptions, model: "BiLM", source: str | None, *, quiet: bool) -> dict[str, Any]:
    from relmo.analysis.meaning.occurrences import build_index
    from relmo.cli.terminal import count_bar
    from relmo.embedding.files import read_source
    from relmo.store.references import DEFAULT

    def sentences() -> Iterator[list[str]]:
        for file in corpus.build:
            yield from (list(sentence.tokens) for sentence in read_source(file, model))

    assert corpus.index is not None
    options: dict[str, Any] = {"dtype": corpus.dtype, "overwrite": corpus.overwrite, "source": source or DEFAULT}
    with count_bar("words", quiet=quiet) as progress:
        index = build_index(corpus.index, model, sentences(), progress=progress, **options)
    return {"folder": str(corpus.index), "words": len(index)}


def _read_mixes(sources: tuple[str, ...], device: str) -> "tuple[dict[str, Any], Table]":
    from relmo.analysis.meaning.lookup import mix_table, mix_weights
    from relmo.loading import load
    from relmo.settings.kinds import TASKS

    mixes = {}
    for source in sources:
        mixes[source] = mix_weights(load(source, kinds=TASKS, device=device))  # type: ignore[arg-type]
        if not mixes[source]:
            raise ModelError(f"{source}: was trained without ELMo and has no layer weights")
    record = {source: [mix._asdict() for mix in task_mixes] for source, task_mixes in mixes.items()}
    return record, mix_table(mixes)


def _evaluate_layers(model: "BiLM", layers: LayerOptions, vectors: str | None, output: Printing) -> dict[str, Any]:
    from relmo.analysis.core.published import Controls, data_folder
    from relmo.analysis.core.untrained import untrained
    from relmo.analysis.meaning import pos, wsd
    from relmo.cli.terminal import print_published_table
    from relmo.loading import load_vectors

    measures = {"pos": pos.make_table, "wsd": wsd.make_table}
    record: dict[str, Any] = {}
    for name in layers.measure:
        controls = Controls(untrained(model), load_vectors(vectors, output.say))
        with output.notes():
            table = measures[name](model, data=data_folder(layers.data), controls=controls, on_message=output.say)
        record[name] = table.summary()
        if not output.json:
            print_published_table(table)
    return record
