"""Readers as a user has them: the answer to a question is found in a passage.

reader = relmo.load("models/squad")
passage = "The town was founded by two brothers in 1821, on the left bank of the river."
found = reader.predict([(passage, "When was the town founded?")])[0]
found.text, found.start, found.end, found.score                                     # ('1821', 40, 44, 0.93)
reader.predict([(passage, "Where is it?")], best=3)[0].spans
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import exp, inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from relmo.errors import CorpusError, SettingError
from relmo.models.saved import About
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.reader import ReadingBatch, ReadingNetwork, SpanReader, SpanScores, best_spans
from relmo.settings.arguments import check_whole, typed
from relmo.settings.reader import ReaderSettings, ReaderTextSettings
from relmo.tasks.answer_scores import answer_report
from relmo.tasks.features import EncodedSentences, Say, Words
from relmo.tasks.results import MarkedSpan, TextSpan, marked_html, shortened
from relmo.tasks.scores import TaskReport
from relmo.tasks.task import Task, Tokenized
from relmo.text.corpus import Errors
from relmo.text.readers.reading import PASSAGE, QUESTION, AnswerText, PassageQuestion, is_squad, read_questions
from relmo.text.readers.tables import is_jsonl
from relmo.text.tokenize import split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary

MOST_SPANS = 1000


class AskedQuestion(NamedTuple):
    """A passage, a question about it, its right answers, and its name in the file it is from."""

    passage: Tokenized
    question: Tokenized
    answers: tuple[AnswerText, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class FoundSpan(TextSpan):
    """A piece of the passage, where it begins and ends, and how probable it is: the probability of its first word times
    that of its last one."""

    score: float


@dataclass(frozen=True, repr=False)
class FoundAnswer:
    """What was asked, and the answers.

    spans    the best, of which no two share a word, the best first; none where the passage or the question is empty
    asked    how many were asked for
    key      the question's name in the file it is from
    shared   whether all questions are about one passage, which `to_dict` then leaves out
    """

    passage: str
    question: str
    spans: list[FoundSpan]
    asked: int = 1
    key: str = ""
    shared: bool = False

    @property
    def best(self) -> FoundSpan:
        """The best one; an empty one where there is none."""
        return self.spans[0] if self.spans else FoundSpan("", 0, 0, 0, 0, 0.0)

    @property
    def text(self) -> str:
        """The answer."""
        return self.best.text

    @property
    def start(self) -> int:
        """The character of the passage that it begins with."""
        return self.best.start

    @property
    def end(self) -> int:
        """The character behind it."""
        return self.best.end

    @property
    def score(self) -> float:
        """How probable it is."""
        return self.best.score

    def as_text(self) -> str:
        """The answer, where it begins and ends, and its score, with tabs between them. Where several were asked for, a
        line each and an empty line behind them."""
        lines = (
            f"{' '.join(span.text.split())}\t{span.start}\t{span.end}\t{span.score:.4f}"
            for span in (self.spans or [self.best])
        )
        return "".join(f"{line}\n" for line in lines) if self.asked > 1 else next(lines)

    def to_dict(self) -> dict[str, Any]:
        """The question, its passage unless that is the same for all, the answer, and where several were asked for all
        of them."""
        record = ({"id": self.key} if self.key else {}) | ({} if self.shared else {"passage": self.passage})
        record |= {"question": self.question} | asdict(self.best)
        return record | ({"best": [asdict(span) for span in self.spans]} if self.asked > 1 else {})

    def __repr__(self) -> str:
        """The question and the answer with its score."""
        found = f"{shortened(self.text, 60)!r} {self.score:.2f}" if self.spans else "nothing"
        return f"FoundAnswer({shortened(self.question)!r}: {found})"

    def _repr_html_(self) -> str:
        """For a notebook: the question, and the passage with its answers in colours."""
        marks = [MarkedSpan(each.start, each.end, f"{each.score:.2f}", 210) for each in self.spans]
        return f"<p><b>{escape(self.question)}</b></p>{marked_html(self.passage, marks)}"


@dataclass
class EncodedQuestions:
    """Questions as numbers, each distinct passage once, which of those a question is about (N,), and in training the
    first and the last word of each answer (N, 2)."""

    passages: EncodedSentences
    questions: EncodedSentences
    which: np.ndarray
    spans: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Those of the passages."""
        return self.passages.lengths[self.which]

    @property
    def predictions(self) -> int:
        """Two for each question: where the answer begins, where it ends."""
        return 0 if self.spans is None else self.spans.size

    def batch(self, which: np.ndarray) -> ReadingBatch:
        """The questions of these numbers."""
        distinct, places = np.unique(self.which[which], return_inverse=True)
        batch = ReadingBatch(self.passages.batch(distinct), self.questions.batch(which), torch.from_numpy(places))
        if self.spans is None:
            return batch
        return batch._replace(targets=torch.from_numpy(self.spans[which]), predictions=2 * len(which))


class PassageReader(Task[AskedQuestion, FoundAnswer]):
    """A network that finds answers in passages, with its vocabulary and settings.

    best      how many spans it gives for a question
    passage   what all questions are about, where that is one passage (`about_passage`)
    """

    kind = "reader"
    input_type = tuple[str | list[str], str | list[str]]
    line_pattern = r"^\s*$|^[^\t]*\t[^\t]*$"
    settings: ReaderSettings
    best: int = 1
    passage: Tokenized | None = None

    def predict(self, questions: Iterable[tuple[str | Words, str | Words]], *, best: int = 1) -> list[FoundAnswer]:
        """The answers to questions, each a passage and a question: strings, split as `tokens` splits them, or lists of
        words. With `best` the so many best spans of each."""
        if not isinstance(questions, Iterable):
            raise SettingError(f"predict takes a list of passages with questions, not {typed(questions)}")
        model = self.giving(best)
        return list(model.answer(map(model.ask, questions)))

    @property
    def counted(self) -> str:
        """Two for each question: where its answer begins, where it ends."""
        return "answer ends"

    def giving(self, best: int) -> Self:
        """The same model, which gives so many spans for a question."""
        check_whole("best", best, most=MOST_SPANS)
        return self.copy(best=best)

    def about_passage(self, passage: str) -> Self:
        """The same model for one passage: each line that it then reads is a question."""
        return self.copy(passage=self.split(passage))

    @classmethod
    def read(cls, path: str | Path, text: ReaderTextSettings, *, training: bool = False) -> list[AskedQuestion]:
        """The questions of a file."""
        found = read_questions(path, layout=text.format, column=text.column, errors=text.errors)
        return _split(found, tokenized=text.tokenizer == "whitespace")

    @staticmethod
    def texts(example: AskedQuestion) -> Sequence[Words]:
        return example.passage, example.question

    @classmethod
    def vocabulary_types(cls, settings: ReaderSettings) -> dict[str, type[Vocabulary]]:
        """None: answers are pieces of passages."""
        return {}

    @classmethod
    def make_vocabularies(cls, settings: ReaderSettings, examples: Sequence[AskedQuestion]) -> dict[str, Vocabulary]:
        return {}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        model = self.settings.model
        body = SpanReader(
            input_size=inputs.size,
            hidden=model.hidden,
            cell=model.cell,
            again_size=inputs.again_size,
            dropout=model.dropout,
        )
        return ReadingNetwork(inputs, body)

    def encode(
        self, examples: Sequence[AskedQuestion], *, answers: bool = False, say: Say = lambda _: None
    ) -> EncodedQuestions:
        """Questions as numbers. With `answers`, passages are cut, and questions that nothing can be learned from are
        left out, which `say` is told of."""
        spans, most = None, None
        if answers:
            most = self.settings.text.max_words
            examples, spans = _learned(examples, most, say)
        passages: dict[tuple[str, ...], int] = {}
        which = [passages.setdefault(tuple(example.passage[:most]), len(passages)) for example in examples]
        return EncodedQuestions(
            self.features.encode(list(passages), say),
            self.features.encode([example.question for example in examples], say),
            np.array(which, dtype=np.int64),
            spans,
        )

    def decode(self, output: SpanScores, examples: Sequence[AskedQuestion]) -> list[FoundAnswer]:
        lengths = torch.tensor([len(example.passage) if example.question else 0 for example in examples])
        spans = best_spans(output, lengths, longest=self.settings.model.max_answer, count=self.best)
        rows = zip(*(part.tolist() for part in spans), strict=True)
        return [
            FoundAnswer(
                example.passage.text,
                example.question.text,
                [
                    FoundSpan(*example.passage.stretch(first, last + 1), first, last + 1, exp(score))
                    for first, last, score in zip(*row, strict=True)
                    if score > -inf
                ],
                self.best,
                example.key,
                shared=self.passage is not None,
            )
            for example, row in zip(examples, rows, strict=True)
        ]

    def score(self, examples: Sequence[AskedQuestion], predictions: Sequence[FoundAnswer]) -> TaskReport:
        """F1 and exact match."""
        right = [[answer.text for answer in example.answers] for example in examples]
        return answer_report([found.text for found in predictions], right)

    def ask(self, given: tuple[str | Words, str | Words], *, tokenized: bool = False) -> AskedQuestion:
        """A passage and a question, which two words or letters of one text are not."""
        if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != 2:
            raise SettingError("predict takes several: put a single one into a list, predict([(passage, question)])")
        passage, question = given
        return AskedQuestion(self.split(passage, tokenized=tokenized), self.split(question, tokenized=tokenized))

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        """A passage and a question; or a question about the one passage."""
        return (PASSAGE, QUESTION) if self.passage is None else (QUESTION,)

    def read_line(self, line: str, *, tokenized: bool = False) -> AskedQuestion:
        """A question about the one passage; or a passage and a question, with a tab between them, of a blank line two
        empty ones."""
        if self.passage is not None:
            return AskedQuestion(self.passage, self.split(line, tokenized=tokenized))
        texts = line.split("\t") if line.strip() else ["", ""]
        if len(texts) != 2:
            raise CorpusError(
                f"expected a passage and a question with a tab between them, found {len(texts)}: '{line[:60]}'; "
                "or give the passage as a file with --passage"
            )
        return self.ask((texts[0], texts[1]), tokenized=tokenized)

    def read_whole(self, path: str, *, errors: Errors) -> list[AskedQuestion] | None:
        """The questions of a file in SQuAD's format, or of JSON lines."""
        if not (is_squad(path) or is_jsonl(path)) or self.passage is not None:
            return None
        found = read_questions(path, errors=errors, answers=False)
        return _split(found, tokenized=self.settings.text.tokenizer == "whitespace")

    def about(self, name: str) -> About:
        """As every task's, with a passage in the example."""
        command = f'echo "Who founded the town?" | relmo predict {name} --passage town.txt --best 3'
        return super().about(name)._replace(example=["```", command, "```"])


def _split(questions: Iterable[PassageQuestion], *, tokenized: bool) -> list[AskedQuestion]:
    """Questions and passages in words, those of one passage once."""
    split = split_whitespace if tokenized else tokenize
    passages: dict[str, Tokenized] = {}
    found = []
    for passage, question, answers, key in questions:
        if passage not in passages:
            passages[passage] = Tokenized(passage, split(passage))
        found.append(AskedQuestion(passages[passage], Tokenized(question, split(question)), answers, key))
    return found


def _learned(examples: Sequence[AskedQuestion], most: int, say: Say) -> tuple[list[AskedQuestion], np.ndarray]:
    """The questions whose (first) answer lies within the first `most` words of the passage, and its first and last
    words (N, 2); how many are left out is said."""
    answered = [example for example in examples if example.answers]
    placed = [(example, span) for example in answered if (span := span_of(example)) and span[1] < most]
    if without := len(examples) - len(answered):
        say(f"{without:,} of {len(examples):,} questions have no answer and are left out")
    if beyond := len(answered) - len(placed):
        say(f"{beyond:,} of {len(examples):,} questions have no answer in the first {most:,} words and are left out")
    if not placed:
        raise CorpusError(f"no question has an answer within the first {most:,} words of its passage; see --max-words")
    return [example for example, _ in placed], np.array([span for _, span in placed], dtype=np.int64)


def span_of(example: AskedQuestion) -> tuple[int, int] | None:
    """The first and the last word of the (first) answer; a word of which it is a part belongs to it."""
    tokens, answer = example.passage.tokens, example.answers[0]
    first = bisect_right(tokens, answer.start, key=lambda token: token.end)
    last = bisect_left(tokens, answer.start + len(answer.text), key=lambda token: token.start) - 1
    return (first, last) if first <= last else None
