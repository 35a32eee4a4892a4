"""Files that are looked into: plain text, source code (told by its name), or CoNLL-U."""

from itertools import islice

from relmo.analysis.core.code_features import Language, language_of
from relmo.analysis.core.features import Document, read
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.conllu import ConlluWord, read_conllu_sentences
from relmo.text.corpus import is_conllu, read_text


def read_given(file: str, sentences: int | None = None) -> str | list[list[ConlluWord]]:
    """The text of a file; of a CoNLL-U file its sentences, or the first ones."""
    return list(islice(read_conllu_sentences(file), sentences)) if is_conllu(file) else read_text(file)


def read_document(
    model: LanguageModel | BiLM, file: str, *, language: Language | None = None, symbols: int | None = None
) -> Document:
    """A file as a model reads it; its first `symbols`."""
    given = read_given(file, symbols)
    document = read(model, given, language=(language or language_of(file)) if isinstance(given, str) else None)
    return document if symbols is None else document.head(symbols)
