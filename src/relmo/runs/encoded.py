"""The corpus of a run as numbers, in the run's folder: read from the files once, from there ever after.

run/encoded.json   what else there is to know of it, and the digests of its files; the corpus is whole once this is
                   there
run/train.ids …    ids, and vocab.txt: of language models and word vectors
run/train.words …  numbers of words, and lexicon.txt: of bidirectional language models
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from relmo.config import build
from relmo.disk.digests import check_file, fingerprint, read_sealed, sealed
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, StorageError
from relmo.runs.folder import AGAIN, ENCODED, SCRATCH
from relmo.settings.bilm import BiLMSettings, check_bilm_model
from relmo.settings.lm import TextSettings
from relmo.store.folder import VOCABULARY, write_json
from relmo.text.encode import Corpus, Stream, check_numbers, encode_corpus, open_stream
from relmo.text.sentences import SentenceCorpus, Sentences, check_sentences, encode_sentence_corpus, open_sentences
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from relmo.training.parallel import ALONE, Team

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

LEXICON = "lexicon.txt"
Encoded = TypeVar("Encoded")


class BiLMCorpus(NamedTuple):
    """The corpus of a bidirectional model; the run's settings, with all that follows from the model it begins from; and
    whether it has a fresh output layer in place of another vocabulary's or none."""

    corpus: SentenceCorpus
    settings: BiLMSettings
    fresh: bool


def encoded_corpus(files: Sequence[str], text: TextSettings, out: Path, team: Team = ALONE) -> Corpus:
    """The corpus of a language model, or of word vectors."""
    return _encoded_once(out, team, write=lambda: _write_corpus(files, text, out), read=_read_corpus)


def encoded_sentences(
    files: Sequence[str], settings: BiLMSettings, start: "BiLM | None", out: Path, team: Team
) -> BiLMCorpus:
    """The corpus of a bidirectional model, which may begin from another, `start`."""
    return _encoded_once(out, team, write=lambda: _write_sentences(files, settings, start, out), read=_read_sentences)


def new_vocabulary(settings: BiLMSettings) -> bool:
    """Whether the settings ask for a vocabulary of their own."""
    text = settings.text
    return text.vocabulary is not None or text.vocabulary_size is not None or text.min_count != 1


def _encoded_once(out: Path, team: Team, *, write: Callable[[], None], read: Callable[[Path], Encoded]) -> Encoded:
    """The first process writes, unless an earlier run has; then every process reads."""
    with team.together():
        if team.leads and not _found(out):
            write()
    with team.together():
        if not (out / ENCODED).exists():
            raise StorageError(
                f"--out {out}: process {team.rank} does not see what process 0 wrote there; give a folder that all "
                "machines of the run share"
            )
        return read(out)


def _found(out: Path) -> bool:
    """Whether the corpus is encoded already, in an earlier run; then its files must be as they were written."""
    if not (out / ENCODED).exists():
        return False
    with _as_written(out / ENCODED):
        for name, known in read_sealed(out / ENCODED, AGAIN)["files"].items():
            check_file(out / SCRATCH / name, known, AGAIN)
    return True


def _write_note(out: Path, values: dict[str, Any], files: Sequence[str]) -> None:
    """Notes that the corpus is encoded: some values, and the digests of its files in out/run."""
    write_json(out / ENCODED, sealed(values | {"files": {name: fingerprint(out / SCRATCH / name) for name in files}}))


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Around the reading of a note whose checksum is right: one that still has not what it must have was forged."""
    try:
        yield
    except (AttributeError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is not the note of a run, though its checksum is right; {AGAIN}") from error


def _write_corpus(files: Sequence[str], text: TextSettings, out: Path) -> None:
    corpus = encode_corpus(files, text, out / SCRATCH)
    with atomic(out / SCRATCH / VOCABULARY) as temporary:
        corpus.vocabulary.save(temporary)
    parts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    figures = {name: (part.characters, part.unknown) for name, part in parts.items() if part}
    _write_note(out, {"parts": figures}, [VOCABULARY, *(f"{name}.ids" for name in figures)])


def _read_corpus(out: Path) -> Corpus:
    note = read_sealed(out / ENCODED, AGAIN)
    vocabulary = Vocabulary.load(out / SCRATCH / VOCABULARY)
    streams: dict[str, Stream] = {}
    with _as_written(out / ENCODED):
        for name, (characters, unknown) in note["parts"].items():
            path = out / SCRATCH / f"{name}.ids"
            streams[name] = Stream(open_stream(path, len(vocabulary)), int(characters), int(unknown))
            check_numbers(path, streams[name].ids, 0, len(vocabulary) - 1)
        return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))


def _write_sentences(files: Sequence[str], settings: BiLMSettings, start: "BiLM | None", out: Path) -> None:
    scratch = out / SCRATCH
    old = None if start is None else start.vocabulary
    corpus = encode_sentence_corpus(files, settings.text, scratch, None if new_vocabulary(settings) else old)
    fresh = start is not None and (old is None or old.symbols != corpus.vocabulary.symbols)
    with atomic(scratch / LEXICON) as temporary:
        SentenceVocabulary(corpus.lexicon).save(temporary)
    unknown = {name: part.unknown for name, part in (("train", corpus.train), ("valid", corpus.valid)) if part}
    values = {
        "vocab_size": len(corpus.vocabulary),
        "unknown": unknown,
        "settings": dataclasses.asdict(settings),
        "fresh": fresh,
    }
    _write_note(out, values, [LEXICON, *(f"{name}.words" for name in unknown)])


def _read_sentences(out: Path) -> BiLMCorpus:
    scratch = out / SCRATCH
    note = read_sealed(out / ENCODED, AGAIN)
    lexicon = SentenceVocabulary.load(scratch / LEXICON).symbols
    parts: dict[str, Sentences] = {}
    with _as_written(out / ENCODED):
        for name, unknown in note["unknown"].items():
            path = scratch / f"{name}.words"
            parts[name] = Sentences(open_sentences(path), int(unknown))
            check_sentences(path, parts[name].words, len(lexicon))
        vocabulary = SentenceVocabulary(lexicon[: note["vocab_size"]])
        if not vocabulary.index.keys() >= {*vocabulary.specials}:
            raise ValueError("its vocab_size leaves out marks of sentences")
        corpus = SentenceCorpus(lexicon, vocabulary, parts["train"], parts.get("valid"))
        settings = build(BiLMSettings, note["settings"], source=str(out / ENCODED))
        check_bilm_model(settings.model)
        return BiLMCorpus(corpus, settings, bool(note["fresh"]))
