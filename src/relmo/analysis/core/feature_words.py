"""Names of features, cells and classes of symbols in plain words, for readers who do not know the short names."""

from collections.abc import Mapping
from typing import NamedTuple

CHANGES = ("rises", "falls")


class FeatureWords(NamedTuple):
    """Description of a feature: what it is, the name of a cell for it, and where it is about to rise and to fall."""

    words: str
    cell: str
    rises: str
    falls: str


def _inside(place: str, cell: str, episode: str) -> FeatureWords:
    return FeatureWords(f"inside {place}", f"the {cell} cell", f"where {episode} begins", f"where {episode} ends")


def _amount(words: str, cell: str) -> FeatureWords:
    return FeatureWords(words, f"the {cell}", "where it becomes more", "where it becomes less")


WORDS: Mapping[str, FeatureWords] = {
    "quotes": _inside("quotation marks", "quotation", "a quotation"),
    "depth": FeatureWords("how many brackets are open", "the bracket counter", "where one opens", "where one closes"),
    "parentheses": _inside("round brackets", "round-bracket", "a bracket"),
    "square": _inside("square brackets", "square-bracket", "a bracket"),
    "curly": _inside("curly brackets", "curly-bracket", "a bracket"),
    "column": _amount("how far along the line the text is", "line counter"),
    "to_line_end": _amount("how much of the line is still to come", "line-end counter"),
    "indentation": _amount("how far the line is indented", "indentation cell"),
    "string": _inside("a string", "string", "a string"),
    "comment": _inside("a comment", "comment", "a comment"),
    "prose": _inside("a string or a comment", "string-or-comment", "one"),
    "if": _inside("the condition of an if", "if", "a condition"),
    "if_body": _inside("the body of an if", "if-body", "a body"),
    "word_position": _amount("how many letters of the word have been read", "word-length counter"),
    "sentence_position": _amount("how many words of the sentence have been read", "sentence-length counter"),
    "capitalised": _inside("a word with a capital", "capital-letter", "such a word"),
    "capitals": _inside("a word in capitals", "all-capitals", "such a word"),
    "number": _inside("a number", "digit", "a number"),
    "url": _inside("a web address", "web-address", "an address"),
    "tag": _inside("a tag", "tag", "a tag"),
    "vowel": FeatureWords("at a vowel", "the vowel cell", "before a vowel", "after vowels"),
    "surplus": _amount("how many more a’s than b’s have been read", "counting cell"),
    "tree_depth": _amount("how deep in the sentence's tree the word is", "tree-depth cell"),
    "open_dependencies": _amount("how many words still wait for others", "open-dependency counter"),
    "head_distance": _amount("how far away the word's head is", "head-distance cell"),
}
"""Descriptions of all built-in features."""


def describe_feature(feature: str) -> str:
    """Return a feature in words; a user's feature is described by its name."""
    return WORDS[feature].words if feature in WORDS else f"at “{feature}”"


def name_cell(feature: str) -> str:
    """Return the name of a cell for a feature."""
    return WORDS[feature].cell if feature in WORDS else f"the cell for “{feature}”"


def describe_class(name: str) -> str:
    """Return a class of symbols of an ablation in words: "quotes rises" is "where a quotation begins"."""
    feature, _, change = name.rpartition(" ")
    if change in CHANGES and feature:
        words = WORDS.get(feature)
        return getattr(words, change) if words else f"where “{feature}” {'begins' if change == 'rises' else 'ends'}"
    return "all symbols" if name == "all" else f"at every {name}"
