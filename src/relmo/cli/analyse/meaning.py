"""`relmo analyse meaning SENTENCE WORD --index DIR`"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.sources import Tokenizer
from relmo.errors import ModelError, SettingError, shown
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.analysis.core.show import Table
    from relmo.analysis.meaning.lookup import Meaning, Mix
    from relmo.models.bilm import BiLM


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The corpus that is searched."""

    index: Path | None = None
    """The folder of a corpus with its vectors, which --build writes."""
    build: tuple[Path, ...] = ()
    """Write the folder --index from these files: a sentence a line, or .conllu."""
    overwrite: Overwrite = False
    dtype: Literal["int8", "float16"] = "int8"
    """How --build stores vectors: int8, or float16, which is twice as large."""
    k: int = 10
    """How many occurrences to show."""
    same_word: bool = False
    """Look only among other occurrences of the same word."""
    vectors: PathName | None = None
    """Static word vectors to compare with; by default those that ship with relmo."""

    @property
    def source(self) -> str | None:
        """Name or path of the model that the index was built with; None if it is to be built or does not say."""
        from relmo.analysis.meaning.occurrences import OccurrenceIndex

        return None if self.index is None or self.build else OccurrenceIndex.open(self.index).source

    def look_up(self, model: "BiLM", sentence: str, word: str, say: Callable[[str], None]) -> "Meaning":
        """Looks a word of a sentence up in the index."""
        from relmo.analysis.meaning.lookup import meaning as found
        from relmo.analysis.meaning.occurrences import OccurrenceIndex
        from relmo.loading import load_vectors

        assert self.index is not None
        which = int(word) if word.isdecimal() and word not in model.tokens(sentence) else word
        options: dict[str, Any] = {"k": self.k, "same_word": self.same_word, "vectors": load_vectors(self.vectors, say)}
        result = found(model, OccurrenceIndex.open(self.index), sentence, which, **options)
        looked_up = shown(result.words[result.position])
        if not any(result.layers):
            say(f"{self.index}: has no other occurrence of {looked_up}")
        if result.static == []:
            say(f"{looked_up} has no static vector to compare with")
        return result


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What layers are good for."""

    mix: tuple[str, ...] = ()
    """A trained task with ELMo: show how much it takes of each layer."""
    measure: tuple[Literal["wsd", "pos"], ...] = ()
    """What each layer knows, as relmo reproduce measures it: wsd for word senses, pos for parts of speech."""
    data: Path | None = None
    """Where the data of --measure lies."""


def meaning(
    sentence: str | None = None,
    word: str | None = None,
    *,
    model: PathName | None = None,
    corpus: Annotated[CorpusOptions, Parameter(name="*", group="Corpus")] = CorpusOptions(),
    layers: Annotated[Layers, Parameter(name="*", group="Layers")] = Layers(),
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """What a word means in its sentence: its nearest occurrences in a corpus, layer by layer, and the neighbours of its
    static vector. Also which layers know senses and parts of speech, and which layers tasks have chosen.

    For example:

        relmo analyse meaning --index corpus.index --build corpus.txt

        relmo analyse meaning 'He made a spectacular play .' play --index corpus.index

        relmo analyse meaning --mix models/tagger --mix models/classifier

    Parameters
    ----------
    sentence
        A sentence, which is split into words.
    word
        The word of the sentence to look up, or its place from 0.
    model
        A bidirectional language model; by default the one that --index was built with, otherwise the one that ships
        with relmo.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.meaning.lookup import mix_table
    from relmo.cli.terminal import print_json, print_tables, sayer, warnings_said
    from relmo.loading import load

    _check(sentence, word, corpus, layers)
    say = sayer(quiet=quiet)
    done: dict[str, Any] = {}
    tables: list[Table] = []
    needed = sentence is not None or corpus.build or layers.measure
    source = corpus.source if model is None else model
    loaded = load(source, kinds="bilm", device=device).splitting(tokenizer) if needed else None
    with warnings_said(say):
        if corpus.build and loaded is not None:
            done["index"] = _build_from(corpus, loaded, source, quiet=quiet)
            say(f"{corpus.index}: {done['index']['words']:,} words")
        if sentence is not None and word is not None and loaded is not None:
            found = corpus.look_up(loaded, sentence, word, say)
            done["meaning"] = found.as_dict()
            tables += found.tables()
        if layers.mix:
            mixes = {name: _learnt(name, device) for name in layers.mix}
            done["mix"] = {name: [each._asdict() for each in some] for name, some in mixes.items()}
            tables.append(mix_table(mixes))
    if not json:
        print_tables(*tables)
    if loaded is not None:
        done |= _measured(loaded, layers, corpus.vectors, show=not json, say=say)
    if json:
        print_json(done)


def _check(sentence: str | None, word: str | None, corpus: CorpusOptions, layers: Layers) -> None:
    """Raises where what was given does not fit together."""
    if (sentence is None) != (word is None):
        raise SettingError("a sentence and a word of it are needed: relmo analyse meaning SENTENCE WORD --index DIR")
    if (sentence is not None or corpus.build) and corpus.index is None:
        raise SettingError("say where the corpus is, or where it goes: --index DIR")
    if sentence is None and not (corpus.build or layers.mix or layers.measure):
        raise SettingError("nothing is asked for: give a sentence and a word, or --build, --mix or --measure")
    if corpus.k < 1:
        raise SettingError(f"--k must be 1 or more, not {corpus.k}")


def _build_from(corpus: CorpusOptions, model: "BiLM", source: str | None, *, quiet: bool) -> dict[str, Any]:
    """Build an index of all sentences of files; return where it is, and how many words it has."""
    from relmo.analysis.meaning.occurrences import build_index
    from relmo.cli.terminal import count_bar
    from relmo.embedding.files import read_source
    from relmo.store.references import DEFAULT

    def sentences() -> Iterator[list[str]]:
        for file in corpus.build:
            yield from (list(sentence.tokens) for sentence in read_source(file, model))

    assert corpus.index is not None
    how: dict[str, Any] = {"dtype": corpus.dtype, "overwrite": corpus.overwrite, "source": source or DEFAULT}
    with count_bar("words", quiet=quiet) as progress:
        made = build_index(corpus.index, model, sentences(), progress=progress, **how)
    return {"folder": str(corpus.index), "words": len(made)}


def _learnt(source: str, device: str) -> "list[Mix]":
    from relmo.analysis.meaning.lookup import mix_weights
    from relmo.loading import load
    from relmo.settings.kinds import TASKS

    found = mix_weights(load(source, kinds=TASKS, device=device))  # type: ignore[arg-type]
    if not found:
        raise ModelError(f"{source}: was trained without ELMo and has no mix of layers")
    return found


def _measured(
    model: "BiLM", layers: Layers, vectors: str | None, *, show: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Tables that `relmo reproduce` makes, printed where `show` says so."""
    from relmo import reproduce as library
    from relmo.analysis.core.untrained import untrained
    from relmo.cli.terminal import print_reproduction, warnings_said
    from relmo.loading import load_vectors
    from relmo.reproduce.controls import Controls
    from relmo.reproduce.data import data_folder

    done: dict[str, Any] = {}
    for name in layers.measure:
        controls = Controls(untrained(model), load_vectors(vectors, say))
        with warnings_said(say):
            table = library.reproduce(name, model, data=data_folder(layers.data), controls=controls, say=say)
        done[name] = table.summary()
        if show:
            print_reproduction(table)
    return done
