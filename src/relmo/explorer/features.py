"""Features of a text, drawn under it as the truth, and the choice of features that suit it."""

from typing import TYPE_CHECKING

import numpy as np

from relmo.analysis.core.feature_words import describe_feature
from relmo.analysis.core.features import FEATURES, Document, tracks
from relmo.errors import RelmoError, SettingError
from relmo.explorer.params import Answer, Params, get_index, get_text_name, round_values
from relmo.models.bilm import BiLM

if TYPE_CHECKING:
    from relmo.explorer.session import Session

NUM_SYMBOLS = 20_000  # in which a feature has to change to be offered
COUNTING_SYMBOLS = "ab\n"
CODE = ("indentation", "depth", "column", "string", "comment", "if")
PROSE = ("quotes", "column", "to_line_end", "word_position", "sentence_position", "capitalised", "number")
WORDS = ("quotes", "sentence_position", "capitalised", "number")


def truth(session: "Session", params: Params) -> Answer:
    """Return a feature's values on a page, scaled to 0 to 1."""
    reader, name = session.reader(get_text_name(params)), params.get("feature", "")
    if name not in FEATURES:
        raise SettingError(f"Unknown feature {name[:40]!r}.")
    page = reader.check_page(get_index(params, "page"))
    try:
        track = tracks(reader.document, [name])[name]
    except RelmoError:  # the text cannot have this feature
        track = np.zeros(len(reader.document), dtype=np.float32)
    begin, end = reader.bounds[page : page + 2]
    low, size = float(track.min()), float(np.ptp(track))
    return {
        "values": round_values((track[begin:end] - low) / (size or 1.0), 3),
        "changes": size > 0,
        "binary": {*np.unique(track).tolist()} <= {0.0, 1.0},
        "words": describe_feature(name),
    }


def list_features(session: "Session", params: Params) -> Answer:
    """Return the names of the features that suit a text."""
    return {"usual": suitable_features(session, get_text_name(params))}


def suitable_features(session: "Session", text: str) -> list[str]:
    """Return the features for this kind of text (code, words, prose, a's and b's) that change in its beginning."""
    language, document = session.texts.get_passage(text).language, session.reader(text).document.head(NUM_SYMBOLS)
    names: tuple[str, ...] = CODE if language else PROSE
    if {*document.text} <= {*COUNTING_SYMBOLS}:
        names = ("surplus",)
    elif isinstance(session.model, BiLM):
        names = WORDS
    return [name for name in names if np.ptp(tracks(document, [name])[name]) > 0]


def find_busiest(track: np.ndarray, size: int) -> int:
    """Return the start of the window of this size in which a feature changes most and is on about half of the time."""
    if len(track) <= size:
        return 0
    changes = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(track)) > 0)])
    changes_inside = changes[size - 1 :] - changes[: len(changes) - size + 1]
    level = np.convolve(track, np.ones(size), "valid") / size
    imbalance = np.abs(level - (track.min() + track.max()) / 2) / (np.ptp(track) or 1.0)
    return int(np.argmax(np.minimum(changes_inside, 8) - 10 * imbalance))


def cut_window(document: Document, values: np.ndarray, track: np.ndarray, begin: int, size: int) -> Answer:
    """Return the symbols, a unit's values and the scaled truth of a window of the text."""
    window = slice(begin, begin + size)
    return {
        "first": begin,
        "symbols": document.symbols[window],
        "values": np.round(values[window].astype(float), 3).tolist(),
        "truth": np.round((track[window] - track.min()) / (np.ptp(track) or 1.0), 3).tolist(),
    }
