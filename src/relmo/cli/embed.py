"""`relmo embed [FILE] --out FILE`"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.errors import SettingError, StorageError

if TYPE_CHECKING:
    from relmo.embedding.files import EmbedProgress, Summary
    from relmo.models.bilm import BiLM
    from relmo.nn.quantize import Precision


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """What vectors are asked for, and how they are stored."""

    layers: str = "all"
    """all, top, average (of all), or a number: 0 for the words' own vectors, 1 and up for the LSTMs."""
    pooling: Literal["mean", "max"] | None = None
    """One vector a sentence instead: the mean or the maximum over its words."""
    state: Literal["reset", "carry", "warmup"] = "reset"
    """reset: every sentence starts from zero, and its vectors depend on nothing else. carry: a row of a batch goes on
    where that row of the batch before ended, as in the original tools. warmup: carry, after a first batch that is run
    twice."""
    batch_size: int | None = None
    """At most this many sentences side by side; to be given with carry and warmup."""
    tokens_per_batch: int | None = None
    """At most this many words side by side."""
    dtype: Literal["float32", "float16"] = "float32"
    """How numbers are stored."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """Of the LSTMs' products. bfloat16 and, on a CPU, int8 are faster; vectors then differ a little from float32's."""


def embed(
    file: str | None = None,
    /,
    *,
    out: Path,
    model: str = "small",
    vectors: Annotated[Vectors, Parameter(name="*")] = Vectors(),  # noqa: B008
    tokenizer: Literal["words", "whitespace"] | None = None,
    errors: Literal["strict", "replace"] = "strict",
    resume: Annotated[bool, Parameter(negative="")] = False,
    overwrite: Overwrite = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Contextual vectors of the words of a text, a sentence a line, into a file.

    While it goes on, what is done is kept in the folder OUT.partial; a run that was broken off goes on with --resume.

        relmo embed text.txt --out vectors.h5

        relmo embed text.txt --model models/mine --out vectors.h5

    Parameters
    ----------
    file
        Text (.gz, .xz, .zst too), a sentence a line, or .conllu; standard input where it is not given.
    out
        Where to; its ending says the format: .h5, .parquet, .npz or .safetensors. Sentences are numbered from 0; .h5,
        .npz and .safetensors hold an array for each, .parquet has a row for each word.
    model
        A model's folder, or original ELMo files; small ships with relmo.
    tokenizer
        How lines are split into words; whitespace for text that is tokenised already. The model's own where not given.
    errors
        What to do with bytes that are not UTF-8: stop with the place, or read them as U+FFFD.
    resume
        Go on with a run that was broken off.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print one JSON object: sentences, tokens, seconds, tokens_per_second, precision, out.
    quiet
        Show no progress.
    """
    from relmo.embedding.engine import EmbedOptions
    from relmo.embedding.files import check_out, embed_file

    check_out(out, resume=resume, overwrite=overwrite)
    asked = {"state": vectors.state, "batch_size": vectors.batch_size, "tokens_per_batch": vectors.tokens_per_batch}
    options = EmbedOptions(layers=_parse_layers(vectors.layers), **asked)  # type: ignore[arg-type]
    how: dict[str, Any] = {"pooling": vectors.pooling, "dtype": vectors.dtype, "errors": errors}
    how |= {"resume": resume, "overwrite": overwrite}
    loaded = load(model, tokenizer, device, vectors.precision)
    watch = Watcher(quiet=quiet)
    try:
        summary = embed_file(loaded, file, out, options, **how, watch=watch.show)
    except KeyboardInterrupt:
        watch.close()
        print(f"stopped; {watch.how_to_go_on(resumable=vectors.state == 'reset')}", file=sys.stderr)
        sys.exit(130)
    except StorageError as error:
        begun = watch.progress is not None and vectors.state == "reset"
        raise StorageError(f"{error}{', with --resume' if begun else ''}") from error
    finally:
        watch.close()
    report(summary, model, vectors.precision, json=json, quiet=quiet)


def _parse_layers(text: str) -> Literal["all", "top", "average"] | int:
    """The layers as the library names them."""
    names: dict[str, Literal["all", "top", "average"]] = {"all": "all", "top": "top", "average": "average"}
    if text in names:
        return names[text]
    if text.isdecimal():
        return int(text)
    raise SettingError(f"--layers {text}: it can be all, top, average or a number from 0 on")


def load(source: str, tokenizer: Literal["words", "whitespace"] | None, device: str, precision: "Precision") -> "BiLM":
    """The model, which must be one that embeds; with another tokenizer where one is given."""
    from dataclasses import replace

    from relmo.loading import load as load_any

    model = load_any(source, kinds="bilm", device=device)
    model.precision = precision
    if tokenizer is not None:
        model.settings = replace(model.settings, text=replace(model.settings.text, tokenizer=tokenizer))
    return model


class Watcher:
    """Progress with rate and time left: a bar on a terminal, a plain line now and then where there is none."""

    def __init__(self, *, quiet: bool):
        from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        from relmo.cli.console import make_console, text_column

        self.console = make_console(quiet=quiet)
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            text_column("sentences  {task.fields[rate]} tokens/s"),
            TimeRemainingColumn(),
        )
        shown = self.console.is_terminal and not quiet
        self.bar = Bar(*columns, console=self.console, transient=True, disable=not shown)
        self.task = self.bar.add_task("", total=None, rate="")
        self.started = self.last = time.monotonic()
        self.progress: EmbedProgress | None = None
        if shown:
            self.bar.start()

    def show(self, progress: "EmbedProgress") -> None:
        """Called after every sentence."""
        from relmo.cli.report import PLAIN_EVERY, duration

        self.progress = progress
        now = time.monotonic()
        terminal = self.console.is_terminal
        if now - self.last < (0.1 if terminal else PLAIN_EVERY):
            return
        self.last = now
        rate = progress.tokens / (now - self.started)
        if terminal:
            self.bar.update(self.task, completed=progress.done, total=progress.total, rate=f"{rate:,.0f}")
            return
        of = left = ""
        if progress.total is not None:
            new = progress.done - progress.resumed
            seconds = (now - self.started) / new * (progress.total - progress.done)
            of, left = f" of {progress.total:,}", f"  {duration(seconds)} left"
        self.console.print(f"{progress.done:,}{of} sentences  {rate:,.0f} tokens/s{left}", soft_wrap=True)

    def how_to_go_on(self, *, resumable: bool) -> str:
        """What to do after Ctrl-C."""
        if not resumable:
            return "carried states are not kept, so the next run starts again"
        done = self.progress.done if self.progress is not None else 0
        return (
            f"{done:,} sentences are kept: go on with the same command and --resume" if done else "nothing was done yet"
        )

    def close(self) -> None:
        """Takes the bar off the screen."""
        self.bar.stop()


def report(summary: "Summary", model: str, precision: "Precision", *, json: bool, quiet: bool) -> None:
    """What was done, and words that were cut."""
    from relmo.cli.report import duration, print_json

    if summary.cut.count:
        print(f"warning: {summary.cut.message()}", file=sys.stderr)
    rate = summary.tokens / max(summary.seconds, 1e-9)
    if json:
        print_json(
            {
                "out": str(summary.out),
                "model": model,
                "sentences": summary.sentences,
                "resumed": summary.resumed,
                "tokens": summary.tokens,
                "seconds": round(summary.seconds, 3),
                "tokens_per_second": round(rate, 1),
                "precision": precision,
                "cut_words": summary.cut.count,
            }
        )
    elif not quiet:
        had = f" ({summary.resumed:,} were there)" if summary.resumed else ""
        how = "" if precision == "float32" else f" in {precision}"
        print(
            f"{summary.out}: {summary.sentences:,} sentences{had}, {summary.tokens:,} tokens in "
            f"{duration(summary.seconds)}{how}, {rate:,.0f} tokens/s"
        )
