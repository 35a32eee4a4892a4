"""`relmo embed [FILE] --out FILE`"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.sources import SourceOptions
from relmo.cli.terminal import EmbedReporter, duration, print_json, say
from relmo.errors import StorageError
from relmo.settings.embedding import EmbedOptions

if TYPE_CHECKING:
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
    """Of the LSTMs' products. bfloat16 and, on a CPU, int8 are faster; vectors then differ a little from float32's."""


def embed(
    file: str | None = None,
    /,
    *,
    out: Path,
    model: str = "small",
    options: Annotated[EmbedOptions, Parameter(name="*")] = EmbedOptions(),  # noqa: B008
    stored: Annotated[StoredVectors, Parameter(name="*")] = StoredVectors(),  # noqa: B008
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),  # noqa: B008
    tokenizer: Literal["words", "whitespace"] | None = None,
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

    Parameters
    ----------
    file
        Text (.gz, .xz, .zst too), a sentence a line; .conllu; or a table, .csv or .tsv. Standard input where it is not
        given.
    out
        Where to; its ending says the format: .h5, .parquet, .npz or .safetensors. Sentences are numbered from 0; .h5,
        .npz and .safetensors hold an array for each, .parquet has a row for each word. .h5 and .parquet have the words
        and where they stand, too.
    model
        A model's folder, or original ELMo files; small ships with relmo.
    tokenizer
        How lines are split into words; whitespace for text that is tokenised already. The model's own where not given.
    resume
        Go on with a run that was broken off.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print one JSON object: sentences, tokens, seconds, tokens_per_second, precision, out.
    quiet
        Show no progress.
    """
    from relmo.embedding.files import embed_file

    loaded = _load(model, tokenizer, device, stored.precision)
    reporter = EmbedReporter(quiet=quiet)
    resumable = options.state == "reset"
    try:
        summary = embed_file(
            loaded,
            file,
            out,
            options,
            pooling=stored.pooling,
            dtype=stored.dtype,
            **source.reading(),
            resume=resume,
            overwrite=overwrite,
            watch=reporter.show,
        )
    except KeyboardInterrupt:
        reporter.close()
        say(f"stopped; {_how_to_go_on(reporter, resumable=resumable)}")
        sys.exit(130)
    except StorageError as error:
        begun = reporter.progress is not None and resumable
        raise StorageError(f"{error}{', with --resume' if begun else ''}") from error
    finally:
        reporter.close()
    _report(summary, model, stored.precision, json=json, quiet=quiet)


def _load(source: str, tokenizer: Literal["words", "whitespace"] | None, device: str, precision: "Precision") -> "BiLM":
    """The model, which must be one that embeds; with another tokenizer where one is given."""
    from relmo.loading import load

    model = load(source, kinds="bilm", device=device, dtype=precision)
    if tokenizer is not None:
        model.settings = replace(model.settings, text=replace(model.settings.text, tokenizer=tokenizer))
    return model


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
