"""`relmo embed [FILE] --out FILE`"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.sources import SourceOptions, Tokenizer
from relmo.cli.terminal import EmbedReporter, duration, print_json, say
from relmo.errors import SettingError, StorageError
from relmo.settings.arguments import PathName
from relmo.settings.embedding import EmbedOptions

if TYPE_CHECKING:
    from relmo.compat.ray import ShardedSummary, ShardJob
    from relmo.embedding.files import Summary
    from relmo.models.bilm import BiLM
    from relmo.nn.quantize import Precision


@dataclass(frozen=True, kw_only=True)
class StoredVectors:
    """How vectors are computed and stored."""

    pooling: Literal["mean", "max"] | None = None
    """One vector a sentence instead: the mean or the maximum over its words."""
    dtype: Literal["float32", "float16"] = "float32"
    """How numbers are stored."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """The precision of the LSTMs' products. bfloat16 and, on a CPU, int8 are faster; the vectors then differ a little
    from those of float32."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Who computes."""

    engine: Literal["here", "ray"] = "here"
    """here: this process. ray: workers on this machine or on a cluster (needs relmo[ray]). With ray FILE may be a
    folder of files, and OUT is a folder of .parquet files."""
    workers: int | None = None
    """Ray only: how many workers. The default is one for each CPU, or for each GPU."""


def embed(
    file: PathName | None = None,
    /,
    *,
    out: Path,
    model: PathName = "small",
    options: Annotated[EmbedOptions, Parameter(name="*")] = EmbedOptions(),  # noqa: B008
    stored: Annotated[StoredVectors, Parameter(name="*")] = StoredVectors(),
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),  # noqa: B008
    engine: Annotated[EngineOptions, Parameter(name="*")] = EngineOptions(),
    tokenizer: Tokenizer = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    overwrite: Overwrite = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Write the contextual vectors of a text's words to a file. Each line of the text is a sentence.

    What is done so far is kept in the folder OUT.partial. A run that was interrupted continues with --resume.

        echo "A bank lends money." | relmo embed --out vectors.h5

        relmo embed text.txt --out vectors.h5

        relmo embed text.txt --model models/mine --out vectors.h5

        relmo embed reviews.csv --column comment --pooling mean --out reviews.parquet

        relmo embed texts/ --engine ray --workers 8 --out vectors/

    Parameters
    ----------
    file
        Text (.gz, .xz, .zst too), a sentence a line; .conllu; or a table, .csv, .tsv or .parquet. By default standard
        input is read.
    out
        The file to write. Its ending says the format: .h5, .parquet, .npz or .safetensors. Sentences are numbered from
        0. .h5, .npz and .safetensors have an array for each sentence, .parquet has a row for each word. .h5 and
        .parquet also have the words and their places.
    model
        A model's folder, or original ELMo files; small ships with relmo.
    resume
        Go on with a run that was stopped.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object: sentences, tokens, seconds, tokens_per_second, precision, out.
    quiet
        Show no progress.
    """
    from relmo.loading import load

    if engine.engine == "ray":
        job = _shard_job(model, tokenizer, device, options, stored, source)
        return _embed_on_ray(job, file, out, engine.workers, resume, overwrite, json=json, quiet=quiet)
    if engine.workers is not None:
        raise SettingError("--workers is for --engine ray only; leave it out, or add --engine ray")
    asked = {"pooling": stored.pooling, "dtype": stored.dtype, **source.reading()}
    asked |= {"resume": resume, "overwrite": overwrite}
    loaded = load(model, kinds="bilm", device=device, dtype=stored.precision).splitting(tokenizer)
    summary = _embed_here(loaded, file, out, options, asked, quiet=quiet)
    return _report(summary, model, stored.precision, json=json, quiet=quiet)


def _embed_here(
    model: "BiLM", file: str | None, out: Path, options: EmbedOptions, asked: dict[str, Any], *, quiet: bool
) -> "Summary":
    """Embeds in this process, and says how to go on where that is broken off; `asked` are keywords of `embed_file`."""
    from relmo.embedding.files import embed_file

    reporter = EmbedReporter(quiet=quiet)
    resumable = options.state == "reset"
    try:
        return embed_file(model, file, out, options, **asked, watch=reporter.show)
    except KeyboardInterrupt:
        reporter.close()
        say(f"stopped; {_how_to_go_on(reporter, resumable=resumable)}")
        sys.exit(130)
    except StorageError as error:
        begun = reporter.progress is not None and resumable
        raise StorageError(f"{error}{', with --resume' if begun else ''}") from error
    finally:
        reporter.close()


def _shard_job(
    model: str,
    tokenizer: Literal["words", "whitespace"] | None,
    device: str,
    options: EmbedOptions,
    stored: StoredVectors,
    source: SourceOptions,
) -> "ShardJob":
    """What each worker is told."""
    from relmo.compat.ray import ShardJob

    given = {"model": model, "tokenizer": tokenizer, "device": device, "options": options}
    return ShardJob(**given | vars(stored) | source.reading())


def _embed_on_ray(
    job: "ShardJob",
    file: str | None,
    out: Path,
    workers: int | None,
    resume: bool,
    overwrite: bool,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """The same by workers of Ray, into a folder."""
    from relmo.compat.ray import embed_on_ray

    if file is None:
        raise SettingError("--engine ray reads files; give a file or a folder")
    reporter = EmbedReporter(quiet=quiet)
    try:
        summary = embed_on_ray(job, file, out, workers=workers, resume=resume, overwrite=overwrite, watch=reporter.show)
    except KeyboardInterrupt:
        say("stopped; go on with the same command and --resume")
        sys.exit(130)
    finally:
        reporter.close()
    _report_shards(summary, job, time.monotonic() - reporter.started, json=json, quiet=quiet)


def _report_shards(summary: "ShardedSummary", job: "ShardJob", seconds: float, *, json: bool, quiet: bool) -> None:
    """What workers did."""
    if summary.cut:
        say(f"warning: {summary.cut:,} words were too long for the model and were cut")
    rate = summary.tokens / max(seconds, 1e-9)
    if json:
        counts = {name: value for name, value in summary._asdict().items() if name not in ("out", "cut")}
        timed = {"seconds": round(seconds, 3), "tokens_per_second": round(rate, 1), "precision": job.precision}
        print_json({"out": str(summary.out), "model": job.model} | counts | timed | {"cut_words": summary.cut})
    elif not quiet:
        had = f" ({summary.resumed:,} were there)" if summary.resumed else ""
        print(
            f"{summary.out}: {summary.sentences:,} sentences{had} in {summary.shards:,} files, "
            f"{summary.tokens:,} tokens in {duration(seconds)}, {rate:,.0f} tokens/s"
        )


def _how_to_go_on(reporter: EmbedReporter, *, resumable: bool) -> str:
    """What to do after Ctrl-C."""
    if not resumable:
        return "carried states are not kept, so the next run starts again"
    done = reporter.progress.done if reporter.progress is not None else 0
    return f"{done:,} sentences are kept: go on with the same command and --resume" if done else "nothing was done yet"


def _report(summary: "Summary", model: str, precision: "Precision", *, json: bool, quiet: bool) -> None:
    """What was done, and words that were cut."""
    if summary.cut.count:
        say(f"warning: {summary.cut.message()}")
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
