"""Reading comprehension: the answer to a question as a span of a passage."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from math import exp, inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError
from relmo.networks.inputs import TaskBatch
from relmo.networks.reader import SpanReader, SpanScores, best_spans
from relmo.settings.fields import check_integer
from relmo.settings.tasks import ReaderSettings, ReaderTextSettings
from relmo.tasks.features import MessageCallback, Words
from relmo.tasks.results import MarkedSpan, Prediction, TextSpan, render_html, shorten
from relmo.tasks.scores import TaskReport, answer_report
from relmo.tasks.task import EncodedExamples, PairTask, Tokenized
from relmo.text.corpus import Errors
from relmo.text.readers.reading import PASSAGE, QUESTION, AnswerText, PassageQuestion, is_squad, read_questions
from relmo.text.readers.tables import is_jsonl
from relmo.text.tokenize import SPLITTERS
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
class FoundAnswer(FoundSpan, Prediction):
    """Best span of a passage as the answer to a question; an empty one if there is none."""

    passage: str
    question: str
    spans: list[FoundSpan]  # best first, none of which overlap; none if the passage or the question is empty
    max_spans: int = 1  # number of spans that were requested
    key: str = ""  # id of the question in its file
    shared: bool = False  # whether all questions are about one passage, which `to_dict` then leaves out

    def as_text(self) -> str:
        """Return text, start, end and score with tabs between them; of several answers, a line each."""
        lines = [
            f"{' '.join(span.text.split())}\t{span.start}\t{span.end}\t{span.score:.4f}"
            for span in (self.spans or [self])
        ]
        return "".join(f"{line}\n" for line in lines) if self.max_spans > 1 else lines[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the question, its passage unless it is shared, and the best span or all that were requested."""
        record = ({"id": self.key} if self.key else {}) | ({} if self.shared else {"passage": self.passage})
        best = {field.name: getattr(self, field.name) for field in fields(FoundSpan)}
        record |= {"question": self.question} | best
        return record | ({"best": [asdict(span) for span in self.spans]} if self.max_spans > 1 else {})

    def __repr__(self) -> str:
        answer = f"{shorten(self.text, 60)!r} {self.score:.2f}" if self.spans else "nothing"
        return f"FoundAnswer({shorten(self.question)!r}: {answer})"

    def _repr_html_(self) -> str:
        marks = [MarkedSpan(span.start, span.end, f"{span.score:.2f}", HUE) for span in self.spans]
        return f"<p><b>{escape(self.question)}</b></p>{render_html(self.passage, marks)}"


class PassageReader(PairTask[TokenizedQuestion, FoundAnswer]):
    """Network that finds answers in passages, with its vocabulary and settings."""

    kind = "reader"
    pair_names = text_fields = ("passage", "question")
    column_names = (PASSAGE, QUESTION)
    example_type = TokenizedQuestion
    prediction_unit = "answer ends"
    settings: ReaderSettings
    best: int = 1  # number of spans to return for a question
    passage: Tokenized | None = None  # passage of all questions, if there is only one (`with_passage`)

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
        return self.copy(passage=self.split(passage), column_names=(QUESTION,))

    @classmethod
    def read(cls, path: str | Path, text: ReaderTextSettings, *, training: bool = False) -> list[TokenizedQuestion]:
        questions = read_questions(path, layout=text.format, column=text.column, errors=text.errors)
        return _tokenize_questions(questions, text.tokenizer)

    @classmethod
    def vocabulary_types(cls, settings: ReaderSettings) -> dict[str, type[Vocabulary]]:
        return {}

    def make_body(self, **sizes: int) -> nn.Module:
        return SpanReader(self.settings.model, **sizes)

    def encode(
        self,
        examples: Sequence[TokenizedQuestion],
        *,
        answers: bool = False,
        on_message: MessageCallback = lambda _: None,
    ) -> EncodedExamples:
        """Encode questions; with `answers`, truncate passages, leave out and report questions without an answer."""
        spans, max_words = None, None
        if answers:
            max_words = self.settings.text.max_words
            answerable = [example for example in examples if example.answers]
            located = []  # with the first and the last word of the first answer, including words that it overlaps
            for example in answerable:
                tokens, answer = example.passage.tokens, example.answers[0]
                start = bisect_right(tokens, answer.start, key=lambda token: token.end)
                last = bisect_left(tokens, answer.start + len(answer.text), key=lambda token: token.start) - 1
                if start <= last < max_words:
                    located.append((example, (start, last)))
            total = f"of {len(examples):,} questions"
            if num_unanswerable := len(examples) - len(answerable):
                on_message(f"{num_unanswerable:,} {total} have no answer and are left out")
            if num_beyond := len(answerable) - len(located):
                on_message(f"{num_beyond:,} {total} have no answer in the first {max_words:,} words and are left out")
            if not located:
                raise CorpusError(
                    f"no question has an answer in the first {max_words:,} words of its passage; see --max-words"
                )
            examples, spans = [example for example, _ in located], np.array([span for _, span in located], np.int64)
        indices_by_passage: dict[tuple[str, ...], int] = {}  # each passage is encoded once
        passage_index = np.array(
            [
                indices_by_passage.setdefault(tuple(example.passage[:max_words]), len(indices_by_passage))
                for example in examples
            ],
            dtype=np.int64,
        )
        passages = self.features.encode(list(indices_by_passage), on_message)
        questions = self.features.encode([example.question for example in examples], on_message)

        def make_batch(indices: np.ndarray) -> TaskBatch:
            distinct, inverse = np.unique(passage_index[indices], return_inverse=True)
            texts = [passages.batch(distinct), questions.batch(indices)]
            batch = TaskBatch(texts, extra=(torch.from_numpy(inverse),))
            if spans is None:
                return batch
            return batch._replace(targets=torch.from_numpy(spans[indices]), predictions=2 * len(indices))

        num_predictions = 0 if spans is None else spans.size  # the first and the last word of each answer, (N, 2)
        return EncodedExamples(passages.lengths[passage_index], num_predictions, make_batch)

    def decode(self, output: SpanScores, examples: Sequence[TokenizedQuestion]) -> list[FoundAnswer]:
        lengths = torch.tensor([len(example.passage) if example.question else 0 for example in examples])
        batch_spans = best_spans(output, lengths, longest=self.settings.model.max_answer, count=self.best)
        predictions = []
        rows = zip(*(part.tolist() for part in batch_spans), strict=True)
        for example, row in zip(examples, rows, strict=True):
            passage, question = example.passage, example.question.text
            spans = [
                FoundSpan(*passage.span(start, last + 1), exp(score))
                for start, last, score in zip(*row, strict=True)
                if score > -inf
            ]
            best = spans[0] if spans else FoundSpan("", 0, 0, 0, 0, 0.0)
            answer = FoundAnswer(
                **vars(best),
                passage=passage.text,
                question=question,
                spans=spans,
                max_spans=self.best,
                key=example.key,
                shared=self.passage is not None,
            )
            predictions.append(answer)
        return predictions

    def score(self, examples: Sequence[TokenizedQuestion], predictions: Sequence[FoundAnswer]) -> TaskReport:
        """Compute F1 and exact match."""
        references = [[answer.text for answer in example.answers] for example in examples]
        return answer_report([prediction.text for prediction in predictions], references)

    def read_line(self, line: str, *, tokenized: bool = False) -> TokenizedQuestion:
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
        return _tokenize_questions(questions, self.settings.text.tokenizer)


def _tokenize_questions(questions: Iterable[PassageQuestion], tokenizer: str) -> list[TokenizedQuestion]:
    split = SPLITTERS[tokenizer]
    passages: dict[str, Tokenized] = {}  # each passage is split once
    examples = []
    for passage, question, answers, key in questions:
        if passage not in passages:
            passages[passage] = Tokenized(passage, split(passage))
        examples.append(TokenizedQuestion(passages[passage], Tokenized(question, split(question)), answers, key))
    return examples
