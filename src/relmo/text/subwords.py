"""Subwords: pieces of words, learned from text by sentencepiece and applied here, so that a model needs no library.

A text is cut at white space, and each word begins with ▁. Its pieces put together, with spaces for ▁, are the text
again. A piece is one of a list, in an order. Characters that no piece has are pieces by themselves.

bpe        the two neighbours whose union comes first in the list are joined, the left ones first, until none is in it
unigram    of all ways to cut a word the one whose pieces have the largest sum of log-probabilities

Sennrich, Haddow & Birch 2016, Neural machine translation of rare words with subword units
Kudo 2018, Subword regularization;  Kudo & Richardson 2018, SentencePiece
"""

import io
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from relmo.errors import CorpusError, SettingError, VocabularyError, shown
from relmo.text.vocabulary import Vocabulary

SPACE = "▁"
UNKNOWN_COST = 10.0  # sentencepiece's: so much below the worst piece is a character that no piece has
LONGEST_WORD = 200  # characters; what is longer is cut, since joining takes quadratic time
CACHED = 200_000  # words whose pieces are remembered

Cut = Callable[[str], list[str]]


class Pieces(Vocabulary):
    """The pieces of BPE in the order of joining, or those of a unigram model, each with a space and its log-probability
    behind it."""

    specials = ()


class Subwords:
    """Text to pieces and back."""

    def __init__(self, pieces: Pieces, kind: Literal["bpe", "unigram"]):
        self.pieces, self.kind = pieces, kind
        if kind == "bpe":
            self.ranks = pieces.index
            self.cut: Cut = self._joined
        else:
            self.scores = dict(map(_scored, pieces.symbols))
            self.longest = max(map(len, self.scores), default=1)
            self.unknown = min(self.scores.values(), default=0.0) - UNKNOWN_COST
            self.cut = self._best
        self.known: dict[str, list[str]] = {}

    def split(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [piece for word in text.split() for piece in self.word(SPACE + word)]

    def word(self, word: str) -> list[str]:
        """The pieces of a word that begins with ▁."""
        found = self.known.get(word)
        if found is None:
            parts = [word[i : i + LONGEST_WORD] for i in range(0, len(word), LONGEST_WORD)]
            found = [piece for part in parts for piece in self.cut(part)]
            if len(self.known) >= CACHED:
                self.known = {}  # replaced as a whole: other threads may be reading
            self.known[word] = found
        return found

    @staticmethod
    def join(pieces: Sequence[str]) -> str:
        """The text of pieces."""
        return "".join(pieces).replace(SPACE, " ").strip()

    def _joined(self, word: str) -> list[str]:
        """BPE."""
        parts, never = list(word), len(self.ranks)
        while len(parts) > 1:
            ranks = [self.ranks.get(a + b, never) for a, b in pairwise(parts)]
            best = min(ranks)
            if best == never:
                break
            i = ranks.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return parts

    def _best(self, word: str) -> list[str]:
        """Viterbi: best[i] is the largest sum of the first i characters, from[i] where its last piece begins."""
        best, begins = [0.0], [0]
        for end in range(1, len(word) + 1):
            choices = (
                (best[start] + self.scores.get(word[start:end], -float("inf")), start)
                for start in range(max(0, end - self.longest), end)
            )
            score, start = max(choices, key=lambda choice: choice[0])
            if score == -float("inf"):
                score, start = best[end - 1] + self.unknown, end - 1
            best.append(score)
            begins.append(start)
        pieces, end = [], len(word)
        while end:
            pieces.append(word[begins[end] : end])
            end = begins[end]
        return pieces[::-1]


def _scored(symbol: str) -> tuple[str, float]:
    """A piece of a unigram model, and its log-probability."""
    piece, _, score = symbol.rpartition(" ")
    try:
        value = float(score)
    except ValueError:
        value = float("nan")
    if not piece or not abs(value) < float("inf"):
        raise VocabularyError(f"{shown(symbol)} is not a piece followed by its log-probability")
    return piece, value


def learn_subwords(texts: Iterable[str], *, kind: Literal["bpe", "unigram"], size: int) -> Pieces:
    """Learns about `size` pieces from texts."""
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
            num_threads=1,  # with more, sums are added in another order each time
            minloglevel=2,
        )
    except RuntimeError as error:  # such as more pieces than the texts have
        raise CorpusError(f"{size} subwords cannot be learned from these texts ({error}); ask for fewer") from error
    learnt = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    found = [(learnt.id_to_piece(i), learnt.get_score(i)) for i in range(1, len(learnt))]
    return Pieces([piece if kind == "bpe" else f"{piece} {score:.6g}" for piece, score in found])
