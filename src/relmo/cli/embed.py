"""`relmo embed [FILE] --out FILE`"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.options import Device, Overwrite, SourceOptions, Tokenizer
from relmo.cli.terminal import EmbedReporter, duration, print_json, print_message
from relmo.errors import SettingError, StorageError
from relmo.settings.arguments import PathName
from relmo.settings.options import EmbedOptions


@dataclass(frozen=True, kw_only=True)
class StoredVectors:
    """How vectors are computed and stored."""

    pooling: Literal["mean", "max"] | None = None
    """One vector per sentence: the mean or the maximum over its words."""
    dtype: Literal["float32", "float16"] = "float32"
    """Data type of the stored numbers."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of the matrix products in the LSTMs. bfloat16 and, on a CPU, int8 are faster; the vectors then differ
    slightly from those of float32."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Process or cluster that computes the vectors."""

    engine: Literal["here", "ray"] = "here"
    """here: this process. ray: workers on this machine or on a cluster (needs relmo[ray]); FILE may then be a folder
    of files, and OUT is a folder of .parquet files."""
    workers: int | None = None
    """Ray only: number of workers. By default one per CPU, or per GPU."""


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
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Write the contextual vectors of the words of a text to a file. Each line of the text is a sentence.

    Finished sentences are kept in the folder OUT.partial; --resume continues an interrupted run.

        echo "A bank lends money." | relmo embed --out vectors.h5

        relmo embed text.txt --out vectors.h5

        relmo embed text.txt --model models/mine --out vectors.h5

        relmo embed reviews.csv --column comment --pooling mean --out reviews.parquet

        relmo embed texts/ --engine ray --workers 8 --out vectors/

    Parameters
    ----------
    file
        Text (.gz, .xz, .zst too), one sentence per line; .conllu; or a table, .csv, .tsv or .parquet. By default
        standard input.
    out
        The output file: .h5, .parquet, .npz or .safetensors. Sentences are numbered from 0. .h5, .npz and .safetensors
        have one array per sentence, .parquet one row per word. .h5 and .parquet also have the words and their offsets.
    model
        A model folder, or original ELMo files; small is a bundled model.
    resume
        Continue an interrupted run.
    json
        Print one JSON object: sentences, tokens, seconds, tokens_per_second, precision, out.
    quiet
        Show no progress.
    """
    if engine.engine == "here" and engine.workers is not None:
        raise SettingError("--workers needs --engine ray.")
    embed_source: Callable[..., Any]
    if engine.engine == "ray":
        from relmo.compat.ray import ShardJob, embed_on_ray

        if file is None:
            raise SettingError("--engine ray reads files; give a file or a folder.")
        settings: Any = {"model": model, "tokenizer": tokenizer, "device": device, "options": options}
        job = ShardJob(**settings, **vars(stored), **source.to_keywords())
        embed_source = partial(embed_on_ray, job, file, out, workers=engine.workers)
    else:
        from relmo.embedding.files import embed_file
        from relmo.loading import load

        bilm = load(model, kinds="bilm", device=device, dtype=stored.precision).with_tokenizer(tokenizer)
        keywords: Any = {"pooling": stored.pooling, "dtype": stored.dtype, **source.to_keywords()}
        embed_source = partial(embed_file, bilm, file, out, options, **keywords)
    embed_source = partial(embed_source, resume=resume, overwrite=overwrite)
    summary, seconds = _run(embed_source, can_resume=options.state == "reset", quiet=quiet)
    _report(summary, seconds, model, stored.precision, json=json, quiet=quiet)


def _run(embed_source: Callable[..., Any], *, can_resume: bool, quiet: bool) -> tuple[Any, float]:
    """Embed and show the progress; return the summary and the seconds. Explain how to resume after an interruption."""
    reporter = EmbedReporter(quiet=quiet)
    try:
        summary = embed_source(watch=reporter.on_progress)
    except KeyboardInterrupt:
        reporter.close()
        num_done = reporter.progress.done if reporter.progress is not None else 0
        advice = f"{num_done:,} sentences are saved; continue with the same command and --resume"
        if not can_resume:
            advice = "carried states are not saved, so the next run starts from the beginning"
        print_message(f"stopped; {advice}" if num_done else "stopped")
        sys.exit(130)
    except StorageError as error:
        has_started = reporter.progress is not None and can_resume
        raise StorageError(f"{error}{', with --resume' if has_started else ''}") from error
    finally:
        reporter.close()
    return summary, getattr(summary, "seconds", time.monotonic() - reporter.start_time)


def _report(summary: Any, seconds: float, model: str, precision: str, *, json: bool, quiet: bool) -> None:
    """Print the counts of a run; `summary` is a `Summary` or, with Ray, a `ShardedSummary`."""
    if isinstance(summary.cut, int):
        num_cut, warning = summary.cut, f"{summary.cut:,} words were too long for the model and were truncated"
    else:
        num_cut, warning = summary.cut.count, summary.cut.message()
    if num_cut:
        print_message(f"warning: {warning}")
    rate = summary.tokens / max(seconds, 1e-9)
    if json:
        counts = {name: count for name, count in summary._asdict().items() if name not in ("out", "cut", "seconds")}
        timing = {"seconds": round(seconds, 3), "tokens_per_second": round(rate, 1), "precision": precision}
        print_json({"out": str(summary.out), "model": model} | counts | timing | {"cut_words": num_cut})
    elif not quiet:
        resumed = f" ({summary.resumed:,} from the interrupted run)" if summary.resumed else ""
        files = f" in {summary.shards:,} files" if hasattr(summary, "shards") else ""
        suffix = "" if precision == "float32" else f" in {precision}"
        print(
            f"{summary.out}: {summary.sentences:,} sentences{resumed}{files}, {summary.tokens:,} tokens in "
            f"{duration(seconds)}{suffix}, {rate:,.0f} tokens/s"
        )
