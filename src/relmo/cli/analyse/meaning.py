"""`relmo analyse meaning SENTENCE WORD --index DIR`"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import MODELS, PRINTING, Models, Overwrite, Positive, Printing
from relmo.cli.terminal import progress_bar
from relmo.errors import ModelError, SettingError, quote
from relmo.settings.fields import FrozenSettings, PathName
from relmo.settings.kinds import TASKS


class CorpusOptions(FrozenSettings):
    """The corpus that is searched."""

    index: Path | None = None
    """The index folder of a corpus, written by --build."""
    build: tuple[Path, ...] = ()
    """Build the index folder from these files: one sentence per line, or .conllu."""
    overwrite: Overwrite = False
    dtype: Literal["int8", "float16"] = "int8"
    """The storage type of vectors for --build: int8, or float16, which is twice as large."""
    k: Positive = 10
    """The number of occurrences to show."""
    same_word: bool = False
    """Search only among other occurrences of the same word."""
    vectors: PathName | None = None
    """Static word vectors for comparison; by default the bundled ones."""


def meaning(
    sentence: str | None = None,
    word: str | None = None,
    *,
    model: PathName | None = None,
    corpus: Annotated[CorpusOptions, Parameter(name="*", group="Corpus")] = CorpusOptions(),
    mix: tuple[str, ...] = (),
    output: Printing = PRINTING,
    loading: Models = MODELS,
) -> None:
    """Find the nearest occurrences of a word of a sentence in a corpus, layer by layer, and the neighbours of its
    static vector. Also show the layer weights of tasks.

    For example:

        relmo analyse meaning --index corpus.index --build corpus.txt
        relmo analyse meaning 'He made a spectacular play .' play --index corpus.index
        relmo analyse meaning --mix models/tagger --mix models/classifier

    Args:
        sentence: A sentence; it is tokenised.
        word: The word of the sentence to look up, or its position from 0.
        model: A bidirectional language model; by default the one that --index was built with, or the bundled one.
        mix: A trained task with ELMo: show its weight of each layer.
    """
    if (sentence is None) != (word is None):
        raise SettingError("SENTENCE or WORD is missing: relmo analyse meaning SENTENCE WORD --index DIR")
    if (sentence is not None or corpus.build) and corpus.index is None:
        raise SettingError("--index is missing; give the index folder of the corpus: --index DIR")
    if sentence is None and not (corpus.build or mix):
        raise SettingError("nothing to do; give SENTENCE and WORD, --build or --mix")
    from relmo.analysis.meaning.occurrences import OccurrenceIndex, mix_table, mix_weights
    from relmo.analysis.meaning.occurrences import meaning as look_up
    from relmo.loading import load, load_vectors

    record: dict[str, Any] = {}
    tables: list[Any] = []
    needs_model = sentence is not None or corpus.build
    source = model
    if model is None and corpus.index is not None and not corpus.build:
        source = OccurrenceIndex.open(corpus.index).source
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
        if mix:
            mixes: dict[str, Any] = {}
            for name in mix:
                mixes[name] = mix_weights(load(name, kinds=TASKS, device=loading.device))  # type: ignore[arg-type]
                if not mixes[name]:
                    raise ModelError(f"{name}: was trained without ELMo and has no layer weights")
            record["mix"] = {name: [mix._asdict() for mix in task_mixes] for name, task_mixes in mixes.items()}
            tables.append(mix_table(mixes))
    output.show(record, *tables)


def _build_index(corpus: CorpusOptions, model: Any, source: str | None, *, quiet: bool) -> dict[str, Any]:
    from relmo.analysis.meaning.occurrences import build_index
    from relmo.embedding.files import read_source
    from relmo.store.references import DEFAULT

    def sentences() -> Iterator[list[str]]:
        for file in corpus.build:
            yield from (list(sentence.tokens) for sentence in read_source(file, model))

    assert corpus.index is not None
    options: dict[str, Any] = {"dtype": corpus.dtype, "overwrite": corpus.overwrite, "source": source or DEFAULT}
    with progress_bar(unit="words", quiet=quiet) as progress:
        index = build_index(corpus.index, model, sentences(), progress=progress, **options)
    return {"folder": str(corpus.index), "words": len(index)}
