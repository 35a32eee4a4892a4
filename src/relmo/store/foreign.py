"""Whether a source is a model that another tool wrote: original ELMo files, ELMoForManyLangs, AllenNLP."""

from pathlib import Path

from relmo.store.allennlp import is_saved
from relmo.store.many_langs import is_many_langs
from relmo.store.original import PairOrPath, locate


def is_foreign(source: PairOrPath) -> bool:
    """Whether another tool wrote it."""
    if locate(source) is not None:
        return True
    return isinstance(source, str | Path) and (is_many_langs(source) or is_saved(source))
