"""What a text truly shows: features drawn under it, and which of them suit it."""

from typing import TYPE_CHECKING

import numpy as np

from relmo.analysis.core.feature_words import in_words
from relmo.analysis.core.features import FEATURES, tracks
from relmo.errors import RelmoError, SettingError
from relmo.explorer.asked import Answer, Asked, rounded, text_of, whole_number
from relmo.models.bilm import BiLM

if TYPE_CHECKING:
    from relmo.explorer.session import Session

BEGINNING = 20_000  # symbols in which a feature has to change to be offered
COUNTED = "ab\n"  # the symbols of words that count
CODE = ("indentation", "depth", "column", "string", "comment", "if")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
WORDS = ("quotes", "sentence_position", "capitalised", "number")


def truth(session: "Session", asked: Asked) -> Answer:
    """What a feature truly is on a page, from 0 to 1."""
    reader, number = session.reader(text_of(asked)), whole_number(asked, "page")
    name = asked.get("feature", "")
    if name not in FEATURES:
        raise SettingError(f"there is no feature {name[:40]!r}")
    if not 0 <= number < len(reader):
        raise SettingError(f"page {number}: the text has the pages 0 to {len(reader) - 1}")
    track = _track(session, text_of(asked), name)
    first, last = reader.bounds[number : number + 2]
    low, size = float(track.min()), float(np.ptp(track))
    return {
        "values": rounded((track[first:last] - low) / (size or 1.0), 3),
        "changes": size > 0,
        "binary": {*np.unique(track).tolist()} <= {0.0, 1.0},
        "words": in_words(name),
    }


def _track(session: "Session", text: str, feature: str) -> np.ndarray:
    """A feature of a text; (T,). A feature that the text cannot have is 0."""
    document = session.reader(text).document
    try:
        return tracks(document, [feature])[feature]
    except RelmoError:
        return np.zeros(len(document), dtype=np.float32)


def features(session: "Session", asked: Asked) -> Answer:
    """The features that suit a text and change in it."""
    return {"usual": usual_features(session, text_of(asked))}


def usual_features(session: "Session", text: str) -> list[str]:
    """Features that suit a text, and change in its beginning: of code, of words, of prose, or of a's and b's."""
    passage, document = session.passage(text), session.reader(text).document.head(BEGINNING)
    names: tuple[str, ...] = CODE if passage.language else PROSE
    if {*document.text} <= {*COUNTED}:
        names = ("surplus",)
    elif isinstance(session.model, BiLM):
        names = WORDS
    return [name for name in names if np.ptp(tracks(document, [name])[name]) > 0]
