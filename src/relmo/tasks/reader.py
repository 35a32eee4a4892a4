"""Reading comprehension: the answer to a question as a span of a passage.

reader = relmo.load("models/squad")
passage = "The town was founded by two brothers in 1821, on the left bank of the river."
answer = reader.predict([(passage, "When was the town founded?")])[0]
answer.text, answer.start, answer.end, answer.score                                 # ('1821', 40, 44, 0.93)
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

from relmo.errors import CorpusError
from relmo.models.saved import CardText
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.reader import ReadingBatch, ReadingNetwork, SpanReader, SpanScores, best_spans
from relmo.settings.arguments import check_integer
from relmo.settings.reader import ReaderSettings, ReaderTextSettings
from relmo.tasks.features import EncodedSentences, MessageCallback, Words
from relmo.tasks.results import MarkedSpan, TextSpan, render_html, shorten
from relmo.tasks.scores import TaskReport, answer_report
from relmo.tasks.task import PairTask, Tokenized
from relmo.text.corpus import Errors
from relmo.text.readers.reading import PASSAGE, QUESTION, AnswerText, PassageQuestion, is_squad, read_questions
from relmo.text.readers.tables import is_jsonl
from relmo.text.tokenize import split_whitespace, tokenize
from relmo.text.vocabulary import Vocabulary

MAX_SPANS = 1000
HUE = 210  # of answers in notebooks


class TokenizedQuestion(NamedTuple):
    """Passage, question, gold answers, and the id of the question in its file."""

    passage: Tokenized
    question: Tokenized
    answers: tuple[AnswerText, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class FoundSpan(TextSpan):
    """Span of a passage; `score` is the probability of its first word times that of its last word."""

    score: float


@dataclass(frozen=True, repr=False)
class FoundAnswer:
    """Question and its answers. `text`, `start`, `end` and `score` are those of the best span.

    spans       best spans, none of which overlap, best first; none if the passage or the question is empty
    max_spans   number of spans that were requested
    key         id of the question in its file
    shared      whether all questions are about one passage, which `to_dict` then leaves out
    """

    passage: str
    question: str
    spans: list[FoundSpan]
    max_spans: int = 1
    key: str = ""
    shared: bool = False

    @property
    def best(self) -> FoundSpan:
        """Best span; an empty one if there is none."""
        return self.spans[0] if self.spans else FoundSpan("", 0, 0, 0, 0, 0.0)

    @property
    def text(self) -> str:
        """Text of the best span."""
        return self.best.text

    @property
    def start(self) -> int:
        """Start of the best span in the passage, in characters."""
        return self.best.start

    @property
    def end(self) -> int:
        """End of the best span in the passage, in characters."""
        return self.best.end

    @property
    def score(self) -> float:
        """Probability of the best span."""
        return self.best.score

    def as_text(self) -> str:
        """Return text, start, end and score of the answer with tabs between them; of several, a line each and an
        empty line."""
        lines = [
            f"{' '.join(span.text.split())}\t{span.start}\t{span.end}\t{span.score:.4f}"
            for span in (self.spans or [self.best])
        ]
        return "".join(f"{line}\n" for line in lines) if self.max_spans > 1 else lines[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the question, its passage unless it is shared, the best span, and all spans if several were
        requested."""
        record = ({"id": self.key} if self.key else {}) | ({} if self.shared else {"passage": self.passage})
        record |= {"question": self.question} | asdict(self.best)
        return record | ({"best": [asdict(span) for span in self.spans]} if self.max_spans > 1 else {})

    def __repr__(self) -> str:
        answer = f"{shorten(self.text, 60)!r} {self.score:.2f}" if self.spans else "nothing"
        return f"FoundAnswer({shorten(self.question)!r}: {answer})"

    def _repr_html_(self) -> str:
        marks = [MarkedSpan(span.start, span.end, f"{span.score:.2f}", HUE) for span in self.spans]
        return f"<p><b>{escape(self.question)}</b></p>{render_html(self.passage, marks)}"


class EncodedQuestions:
    """Questions as arrays.

    passages        distinct passages
    passage_index   (N,): index of the passage of each question
    spans           (N, 2): first and last word of each answer, in training
    """

    def __init__(
        self,
        passages: EncodedSentences,
        questions: EncodedSentences,
        passage_index: np.ndarray,
        spans: np.ndarray | None = None,
    ):
        self.passages, self.questions, self.passage_index, self.spans = passages, questions, passage_index, spans
        self.lengths = passages.lengths[passage_index]
        self.predictions = 0 if spans is None else spans.size

    def batch(self, indices: np.ndarray) -> ReadingBatch:
        """Return the batch of the questions with these indices."""
        distinct, inverse = np.unique(self.passage_index[indices], return_inverse=True)
        batch = ReadingBatch(self.passages.batch(distinct), self.questions.batch(indices), torch.from_numpy(inverse))
        if self.spans is None:
            return batch
        return batch._replace(targets=torch.from_numpy(self.spans[indices]), predictions=2 * len(indices))


class PassageReader(PairTask[TokenizedQuestion, FoundAnswer]):
    """Network that finds answers in passages, with its vocabulary and settings.

    best      number of spans to return for a question
    passage   passage of all questions, if there is only one (`with_passage`)
    """

    kind = "reader"
    pair_names = ("passage", "question")
    prediction_unit = "answer ends"
    settings: ReaderSettings
    best: int = 1
    passage: Tokenized | None = None

    def predict(self, questions: Iterable[tuple[str | Words, str | Words]], *, best: int = 1) -> list[FoundAnswer]:
        """Answer questions, each a passage and a question: strings, split as by `tokens`, or lists of words. `best` is
        the number of spans to return for each."""
        return super(PassageReader, self.with_best(best)).predict(questions)

    def with_best(self, best: int) -> Self:
        """Return a copy that returns this number of spans for a question."""
        check_integer("best", best, most=MAX_SPANS)
        return self.copy(best=best)

    def with_passage(self, passage: str) -> Self:
        """Return a copy for one passage; each line that it reads is a question."""
        return self.copy(passage=self.split(passage))

    @classmethod
    def read(cls, path: str | Path, text: ReaderTextSettings, *, training: bool = False) -> list[TokenizedQuestion]:
        questions = read_questions(path, layout=text.format, column=text.column, errors=text.errors)
        return _tokenize_questions(questions, tokenized=text.tokenizer == "whitespace")

    @staticmethod
    def texts(example: TokenizedQuestion) -> Sequence[Words]:
        return example.passage, example.question

    @classmethod
    def vocabulary_types(cls, settings: ReaderSettings) -> dict[str, type[Vocabulary]]:
        return {}

    @classmethod
    def make_vocabularies(
        cls, settings: ReaderSettings, examples: Sequence[TokenizedQuestion]
    ) -> dict[str, Vocabulary]:
        return {}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        body = SpanReader(self.settings.model, input_size=inputs.size, elmo_size=inputs.elmo_size)
        return ReadingNetwork(inputs, body)

    def encode(
        self,
        examples: Sequence[TokenizedQuestion],
        *,
        answers: bool = False,
        on_message: MessageCallback = lambda _: None,
    ) -> EncodedQuestions:
        """Encode questions as arrays. With `answers`, passages are truncated, and questions without an answer in them
        are left out, which is reported."""
        spans, max_words = None, None
        if answers:
            max_words = self.settings.text.max_words
            examples, spans = _locate_answers(examples, max_words, on_message)
        passages: dict[tuple[str, ...], int] = {}
        passage_index = [passages.setdefault(tuple(example.passage[:max_words]), len(passages)) for example in examples]
        return EncodedQuestions(
            self.features.encode(list(passages), on_message),
            self.features.encode([example.question for example in examples], on_message),
            np.array(passage_index, dtype=np.int64),
            spans,
        )

    def decode(self, output: SpanScores, examples: Sequence[TokenizedQuestion]) -> list[FoundAnswer]:
        lengths = torch.tensor([len(example.passage) if example.question else 0 for example in examples])
        batch_spans = best_spans(output, lengths, longest=self.settings.model.max_answer, count=self.best)
        predictions = []
        rows = zip(*(part.tolist() for part in batch_spans), strict=True)
        for example, row in zip(examples, rows, strict=True):
            passage, question = example.passage, example.question.text
            spans = [
                FoundSpan(*passage.span(start, last + 1), start, last + 1, exp(score))
                for start, last, score in zip(*row, strict=True)
                if score > -inf
            ]
            shared = self.passage is not None
            predictions.append(FoundAnswer(passage.text, question, spans, self.best, example.key, shared=shared))
        return predictions

    def score(self, examples: Sequence[TokenizedQuestion], predictions: Sequence[FoundAnswer]) -> TaskReport:
        """Compute F1 and exact match."""
        references = [[answer.text for answer in example.answers] for example in examples]
        return answer_report([prediction.text for prediction in predictions], references)

    def make_example(self, inputs: tuple[str | Words, str | Words], *, tokenized: bool = False) -> TokenizedQuestion:
        return TokenizedQuestion(*self.split_pair(inputs, tokenized=tokenized))

    @property
    def text_columns(self) -> tuple[tuple[str, ...], ...]:
        return (PASSAGE, QUESTION) if self.passage is None else (QUESTION,)

    def read_line(self, line: str, *, tokenized: bool = False) -> TokenizedQuestion:
        """Convert a line to an example: a question about the passage of the model, or a passage and a question with a
        tab between them."""
        if self.passage is not None:
            return TokenizedQuestion(self.passage, self.split(line, tokenized=tokenized))
        try:
            return super().read_line(line, tokenized=tokenized)
        except CorpusError as error:
            raise CorpusError(f"{error}; or give the passage as a file with --passage") from None

    def read_file(self, path: str, *, errors: Errors) -> list[TokenizedQuestion] | None:
        """Read the questions of a file in SQuAD's format or of JSON lines; None for other files."""
        if not (is_squad(path) or is_jsonl(path)) or self.passage is not None:
            return None
        questions = read_questions(path, errors=errors, answers=False)
        return _tokenize_questions(questions, tokenized=self.settings.text.tokenizer == "whitespace")

    def card_text(self, name: str) -> CardText:
        command = f'echo "Who founded the town?" | relmo predict {name} --passage town.txt --best 3'
        return super().card_text(name)._replace(example=["```", command, "```"])


def _tokenize_questions(questions: Iterable[PassageQuestion], *, tokenized: bool) -> list[TokenizedQuestion]:
    split = split_whitespace if tokenized else tokenize
    passages: dict[str, Tokenized] = {}  # each passage is split once
    examples = []
    for passage, question, answers, key in questions:
        if passage not in passages:
            passages[passage] = Tokenized(passage, split(passage))
        examples.append(TokenizedQuestion(passages[passage], Tokenized(question, split(question)), answers, key))
    return examples


def _locate_answers(
    examples: Sequence[TokenizedQuestion], max_words: int, on_message: MessageCallback
) -> tuple[list[TokenizedQuestion], np.ndarray]:
    """Return the questions with an answer within the first `max_words` words of the passage, and the first and last
    words of the answers (N, 2)."""
    answerable = [example for example in examples if example.answers]
    located = [(example, span) for example in answerable if (span := find_span(example)) and span[1] < max_words]
    total = f"of {len(examples):,} questions"
    if num_unanswerable := len(examples) - len(answerable):
        on_message(f"{num_unanswerable:,} {total} have no answer and are left out")
    if num_beyond := len(answerable) - len(located):
        on_message(f"{num_beyond:,} {total} have no answer in the first {max_words:,} words and are left out")
    if not located:
        raise CorpusError(f"no question has an answer in the first {max_words:,} words of its passage; see --max-words")
    return [example for example, _ in located], np.array([span for _, span in located], dtype=np.int64)


def find_span(example: TokenizedQuestion) -> tuple[int, int] | None:
    """Return the first and the last word of the first answer; words that it overlaps in part are included."""
    tokens, answer = example.passage.tokens, example.answers[0]
    start = bisect_right(tokens, answer.start, key=lambda token: token.end)
    last = bisect_left(tokens, answer.start + len(answer.text), key=lambda token: token.start) - 1
    return (start, last) if start <= last else None
