"""Subwords: learned by sentencepiece and applied here, so that a model does not need the library.

A text is split at whitespace, and each word begins with ▁. Its joined pieces, with spaces for ▁, are the text again.
Pieces are an ordered list. Characters in no piece are pieces of their own.

bpe        the neighbours whose union has the lowest rank are merged, leftmost first, until no union is in the list
unigram    the segmentation of a word with the largest sum of log-probabilities

Sennrich, Haddow & Birch 2016, Neural machine translation of rare words with subword units
Kudo 2018, Subword regularization;  Kudo & Richardson 2018, SentencePiece
"""

import io
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from relmo.errors import CorpusError, SettingError, VocabularyError, quote
from relmo.text.vocabulary import Vocabulary

SPACE = "▁"
UNKNOWN_COST = 10.0  # of sentencepiece: score of an unknown character below that of the worst piece
MAX_WORD_LENGTH = 200  # characters; longer words are cut, since merging takes quadratic time
CACHE_SIZE = 200_000  # words

Cut = Callable[[str], list[str]]


class Pieces(Vocabulary):
    """Pieces of BPE in the order of merging, or of a unigram model, each followed by a space and its
    log-probability."""

    specials = ()


class Subwords:
    """Conversion of text to pieces and back."""

    def __init__(self, pieces: Pieces, kind: Literal["bpe", "unigram"]):
        self.pieces, self.kind = pieces, kind
        if kind == "bpe":
            self.ranks = pieces.index
            self.cut: Cut = self._merge
        else:
            self.scores = dict(map(_parse_piece, pieces.symbols))
            self.max_piece_length = max(map(len, self.scores), default=1)
            self.unknown = min(self.scores.values(), default=0.0) - UNKNOWN_COST
            self.cut = self._segment
        self.cache: dict[str, list[str]] = {}

    def split(self, text: str) -> list[str]:
        """Split a text into pieces."""
        return [piece for word in text.split() for piece in self.word(SPACE + word)]

    def word(self, word: str) -> list[str]:
        """Split a word that begins with ▁ into pieces."""
        pieces = self.cache.get(word)
        if pieces is None:
            parts = [word[i : i + MAX_WORD_LENGTH] for i in range(0, len(word), MAX_WORD_LENGTH)]
            pieces = [piece for part in parts for piece in self.cut(part)]
            if len(self.cache) >= CACHE_SIZE:
                self.cache = {}  # replaced, not cleared: other threads may be reading
            self.cache[word] = pieces
        return pieces

    @staticmethod
    def join(pieces: Sequence[str]) -> str:
        """Join pieces to a text."""
        return "".join(pieces).replace(SPACE, " ").strip()

    def _merge(self, word: str) -> list[str]:
        """Segment a word by BPE."""
        parts, never = list(word), len(self.ranks)
        while len(parts) > 1:
            ranks = [self.ranks.get(a + b, never) for a, b in pairwise(parts)]
            best = min(ranks)
            if best == never:
                break
            i = ranks.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def _segment(self, word: str) -> list[str]:
        """Segment a word by Viterbi: best[i] is the largest sum of the first i characters, starts[i] the start of its
        last piece."""
        best, starts = [0.0], [0]
        for end in range(1, len(word) + 1):
            choices = (
                (best[start] + self.scores.get(word[start:end], -float("inf")), start)
                for start in range(max(0, end - self.max_piece_length), end)
            )
            score, start = max(choices, key=lambda choice: choice[0])
            if score == -float("inf"):
                score, start = best[end - 1] + self.unknown, end - 1
            best.append(score)
            starts.append(start)
        pieces, end = [], len(word)
        while end:
            pieces.append(word[starts[end] : end])
            end = starts[end]
        return pieces[::-1]


def _parse_piece(symbol: str) -> tuple[str, float]:
    """Split a symbol into a piece of a unigram model and its log-probability."""
    piece, _, score = symbol.rpartition(" ")
    try:
        value = float(score)
    except ValueError:
        value = float("nan")
    if not piece or not abs(value) < float("inf"):
        raise VocabularyError(f"{quote(symbol)} is not a piece followed by its log-probability")
    return piece, value


def learn_subwords(texts: Iterable[str], *, kind: Literal["bpe", "unigram"], size: int) -> Pieces:
    """Learn about `size` pieces from texts."""
    try:
        import sentencepiece
    except ImportError as error:
        raise SettingError(f"{kind} needs the sentencepiece package: pip install 'relmo[translate]'") from error
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(" ".join(text.split()) for text in texts),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # with more, the order of summation varies
            minloglevel=2,
        )
    except RuntimeError as error:  # for example, fewer pieces than requested
        raise CorpusError(f"{size} subwords cannot be learned from these texts ({error}); use fewer") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    scored_pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(1, len(processor))]
    return Pieces([piece if kind == "bpe" else f"{piece} {score:.6g}" for piece, score in scored_pieces])
