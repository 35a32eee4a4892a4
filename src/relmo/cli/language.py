"""`relmo embed`, `relmo surprisal` and `relmo generate`: vectors, surprisal and text of language models"""

import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from msgspec import Meta

from relmo.cli.options import MODELS, Device, Models, Overwrite, Positive, Quiet, Seed, SourceOptions, Tokenizer
from relmo.cli.terminal import EmbedReporter, duration, make_console, print_json, print_message, progress_bar
from relmo.disk.outputs import refuse_existing
from relmo.errors import CorpusError, SettingError, StorageError
from relmo.settings.fields import FrozenSettings, PathName
from relmo.settings.options import EmbedOptions, SumOptions, SurprisalOptions

MAX_UNKNOWN_SHARE = 0.2  # above this the language of the text is questioned


class StoredVectors(FrozenSettings):
    """How vectors are computed and stored."""

    pooling: Literal["mean", "max"] | None = None
    """One vector per sentence: the mean or the maximum over its words."""
    dtype: Literal["float32", "float16"] = "float32"
    """Data type of the stored numbers."""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of the matrix products in the LSTMs. bfloat16 and, on a CPU, int8 are faster; the vectors then differ
    slightly from those of float32."""


class EngineOptions(FrozenSettings):
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
    options: Annotated[EmbedOptions, Parameter(name="*")] = EmbedOptions(),
    stored: Annotated[StoredVectors, Parameter(name="*")] = StoredVectors(),
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),
    engine: Annotated[EngineOptions, Parameter(name="*")] = EngineOptions(),
    tokenizer: Tokenizer = None,
    resume: Annotated[bool, Parameter(negative="")] = False,
    overwrite: Overwrite = False,
    device: Device = "auto",
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Write the contextual vectors of the words of a text to a file. Each line of the text is a sentence.

    Finished sentences are kept in the folder OUT.partial; --resume continues an interrupted run.

        echo "A bank lends money." | relmo embed --out vectors.h5
        relmo embed text.txt --out vectors.h5
        relmo embed text.txt --model models/mine --out vectors.h5
        relmo embed reviews.csv --column comment --pooling mean --out reviews.parquet
        relmo embed texts/ --engine ray --workers 8 --out vectors/

    Args:
        file: Text (also .gz, .xz, .zst), a sentence per line; .conllu; .csv, .tsv, .parquet; .fasta. By default
            standard input.
        out: The output file: .h5, .parquet, .npz or .safetensors. Sentences are numbered from 0. .h5, .npz and
            .safetensors have one array per sentence, .parquet one row per word. .h5 and .parquet also have the words
            and their offsets.
        model: A model folder, or original ELMo files; small is a bundled model.
        resume: Continue an interrupted run.
        json: Print one JSON object: sentences, tokens, seconds, tokens_per_second, precision, out.
    """
    if engine.engine == "here" and engine.workers is not None:
        raise SettingError("--workers needs --engine ray.")
    if len(source.id_column) > 1:
        raise SettingError("embed stores one identifier per row; give one --id.")
    if engine.engine == "ray":
        from relmo.compat.ray import ShardJob, embed_on_ray

        if file is None:
            raise SettingError("--engine ray reads files; give a file or a folder.")
        settings: Any = {"model": model, "tokenizer": tokenizer, "device": device, "options": options}
        job = ShardJob(**settings, **vars(stored), **source.to_keywords())
        embed_source: Callable[..., Any] = partial(embed_on_ray, job, file, out, workers=engine.workers)
    else:
        from relmo.embedding.files import embed_file
        from relmo.loading import load

        bilm = load(model, kinds="bilm", device=device, dtype=stored.precision).with_tokenizer(tokenizer)
        keywords: Any = {"pooling": stored.pooling, "dtype": stored.dtype, **source.to_keywords()}
        embed_source = partial(embed_file, bilm, file, out, options, **keywords)
    embed_source = partial(embed_source, resume=resume, overwrite=overwrite)
    summary, seconds = _run(embed_source, can_resume=options.state == "reset", quiet=quiet)
    if isinstance(summary.cut, int):  # of a `ShardedSummary`, with Ray
        num_cut, warning = summary.cut, f"{summary.cut:,} words were too long for the model and were truncated"
    else:
        num_cut, warning = summary.cut.count, summary.cut.message()
    if num_cut:
        print_message(f"warning: {warning}")
    rate = summary.tokens / max(seconds, 1e-9)
    if json:
        fields = {name: count for name, count in summary._asdict().items() if name not in ("out", "cut", "seconds")}
        timing = {"seconds": round(seconds, 3), "tokens_per_second": round(rate, 1), "precision": stored.precision}
        print_json({"out": str(summary.out), "model": model} | fields | timing | {"cut_words": num_cut})
    elif not quiet:
        resumed = f" ({summary.resumed:,} from the interrupted run)" if summary.resumed else ""
        files = f" in {summary.shards:,} files" if hasattr(summary, "shards") else ""
        suffix = "" if stored.precision == "float32" else f" in {stored.precision}"
        counts = f"{summary.sentences:,} sentences{resumed}{files}, {summary.tokens:,} tokens"
        print(f"{summary.out}: {counts} in {duration(seconds)}{suffix}, {rate:,.0f} tokens/s")


def _run(embed_source: Callable[..., Any], *, can_resume: bool, quiet: bool) -> tuple[Any, float]:
    """Embed and show the progress; return the summary and the seconds. Explain how to resume after an interruption."""
    reporter = EmbedReporter(quiet=quiet)
    try:
        summary = embed_source(watch=reporter.on_progress)
    except KeyboardInterrupt:
        reporter.bar.stop()
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
        reporter.bar.stop()
    return summary, getattr(summary, "seconds", time.monotonic() - reporter.start_time)


def surprisal(
    model: PathName,
    file: PathName | None = None,
    *,
    out: Path | None = None,
    options: Annotated[SurprisalOptions, Parameter(name="*")] = SurprisalOptions(),
    rows: Annotated[SumOptions, Parameter(name="*")] = SumOptions(),
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),
    overwrite: Overwrite = False,
    loading: Models = MODELS,
    json: bool = False,
    quiet: Quiet = False,
) -> None:
    """Compute the surprisal of each word of a text under a language model: a table with one row per word.

    The columns are line, position, word, start and end (character offsets in the line), surprisal in bits, entropy in
    bits before the word, entropy_reduction (its fall after the word; negative if it rises), and unknown (1 for words
    outside the vocabulary). Lines and positions count from 1. Tables add their columns and the number of the row.

        echo "The old man the boat." | relmo surprisal small
        relmo surprisal models/mine story.txt --out story.tsv
        relmo surprisal small stimuli.csv --column sentence --context sentence --out stimuli.parquet
        relmo surprisal small stimuli.csv --context sentence --region critical --out regions.tsv
        echo "The horse raced past the barn fell." | relmo surprisal small

    Args:
        model: The folder of a language model of any kind, or small, a bundled model.
        file: Text (also .gz, .xz, .zst), a sentence per line; .conllu; .csv, .tsv, .parquet. By default standard input.
        out: The output file: .tsv, .csv or .parquet. By default the table is printed, separated by tabs.
        json: Print one JSON object: words, unknown, word_bits, end_bits, bits, bits_per_word, out or rows, differences.
    """
    from relmo.models.regions import compare_conditions, mark_regions
    from relmo.models.surprisal import check_table, sum_lines, table_lines, write_table
    from relmo.text.corpus import STDIN
    from relmo.text.sources import read_texts

    rows.check()
    if out is not None:
        check_table(out)
        refuse_existing(out, overwrite=overwrite)
    if options.reset == "text" and source.split == "sentences" and not source.id_column:
        raise SettingError("--reset text with --split sentences needs a table with --id; empty lines end paragraphs.")
    loaded = loading.load(model)
    path = STDIN if file is None else file
    texts = read_texts(path, **source.to_keywords())
    texts = texts if rows.region is None else mark_regions(texts, rows)
    record: dict[str, Any] = {} if out is None else {"out": str(out)}
    totals: dict[str, Any] = {"words": 0, "unknown": 0, "word_bits": 0.0, "end_bits": 0.0}

    def count_rows() -> Iterator[Any]:
        for row in loaded.surprisal_rows(texts, options):
            totals["end_bits" if row.is_end else "word_bits"] += row.surprisal
            if not row.is_end:
                totals["words"] += 1
                totals["unknown"] += row.unknown
            on_progress(totals["words"])
            if options.ends or not row.is_end:
                yield row
        if not totals["words"]:  # raised before an empty table is written
            raise CorpusError(f"{path}: the text has no words")

    has_sums = rows.totals or rows.region is not None
    records = sum_lines(count_rows()) if has_sums else (row.to_record() for row in count_rows())
    with progress_bar(unit="words", quiet=quiet or out is None) as on_progress:
        if rows.region is not None:
            records = iter(regions := list(records))
            record["differences"] = compare_conditions(regions, rows)
        if out is not None:
            write_table(out, records)
        elif json:
            record["rows"] = list(records)
        else:
            csv.writer(sys.stdout, delimiter="\t", lineterminator="\n").writerows(table_lines(records))
    if rows.region is not None and options.context == "text":
        print_message("The state is carried from sentence to sentence; use --context sentence for unrelated ones.")
    bits = totals["word_bits"] + totals["end_bits"]  # the negative log-likelihood of `evaluate`
    means = {"bits": bits, "bits_per_word": totals["word_bits"] / totals["words"]}
    _report_surprisal({"model": model} | totals | means | record, json=json, quiet=quiet)


def _report_surprisal(record: dict[str, Any], *, json: bool, quiet: bool) -> None:
    """Print the summary of a table, as one JSON object or, if it is in a file, as text; warn of unknown words."""
    unknown_share, out = record["unknown"] / record["words"], record.get("out")
    if unknown_share > MAX_UNKNOWN_SHARE:
        print_message(f"{unknown_share:.0%} of the words are unknown to this model. Is the text in its language?")
    if json:
        print_json(record)
        return
    if out is not None and not quiet:
        words = f"{record['words']:,} words, {unknown_share:.2%} unknown"
        ends = f"{record['bits']:,.1f} bits including line ends"
        print(f"{out}: {words}; {record['bits_per_word']:.3f} bits per word, {ends}")
    for row in record.get("differences", []):
        interval = "" if row["low"] is None else f" (95% interval {row['low']:.3f} to {row['high']:.3f})"
        line = f"region {row['region']}, {row['conditions']}: {row['mean']:.3f} bits{interval}, {row['items']} items"
        print(line, file=sys.stderr if out is None else sys.stdout)


class DecodingOptions(FrozenSettings):
    """How the next symbol is chosen."""

    temperature: float = 1.0
    """Below 1 favours probable symbols, above 1 flattens the distribution; 0 is greedy."""
    greedy: bool = False
    """Always choose the most probable symbol, like --temperature 0."""
    top_k: int | None = None
    """Sample from the k most probable symbols."""
    top_p: float | None = None
    """Sample from the most probable symbols that together have probability p."""
    beams: Positive | None = None
    """Beam search with this many beams instead of sampling; prints the --samples best texts."""
    unknown: bool = False
    """Allow `<unk>`."""


def generate(
    model: PathName,
    *,
    prompt: str = "",
    limit: Positive = 500,
    samples: Annotated[int, Meta(ge=1, le=1_000_000)] = 1,
    decoding: Annotated[DecodingOptions, Parameter(name="*")] = DecodingOptions(),
    seed: Seed = 0,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Generate text with a language model, up to the end-of-text symbol or a limit.

    For example:

        relmo generate prose --prompt "The Prince " --limit 200 --temperature 0.5
        relmo generate models/mine --prompt "ROMEO:" --limit 300 --temperature 0.8 --seed 7

    Args:
        model: A model folder, or a bundled model.
        prompt: Beginning of the text.
        limit: Maximum number of symbols (characters or words).
        samples: Number of texts.
        seed: The same seed gives the same text.
        json: Print one JSON object: the texts with their log-probabilities.
        quiet: Print the texts without headings when they are complete.
    """
    if decoding.beams and (decoding.greedy or decoding.top_k or decoding.top_p or decoding.temperature != 1.0):
        raise SettingError("--beams does not sample; omit --greedy, --temperature, --top-k and --top-p.")
    if decoding.beams and samples > decoding.beams:
        raise SettingError(f"--samples {samples} is more than --beams {decoding.beams}.")
    from relmo.loading import load

    loaded = load(model, kinds="lm", device=device)
    if decoding.beams:
        results = loaded.search(prompt, beams=decoding.beams, limit=limit, unknown=decoding.unknown)
        stream = iter([results[:samples]])
    else:
        sampling: dict[str, Any] = {"top_k": decoding.top_k, "top_p": decoding.top_p}
        sampling["temperature"] = 0.0 if decoding.greedy else decoding.temperature
        stream = loaded.stream(prompt, limit=limit, samples=samples, seed=seed, unknown=decoding.unknown, **sampling)
    if json:
        *_, texts = stream
        print_json({"model": model, "texts": [asdict(text) for text in texts]})
    elif samples == 1 and not quiet:  # printed while it is generated
        printed = ""
        for (text,) in stream:
            sys.stdout.write(text.text[len(printed) :] if text.text.startswith(printed) else f"\n{text.text}")
            sys.stdout.flush()
            printed = text.text
        print()
    elif (console := make_console(stderr=False)).is_terminal and not quiet:
        from rich.console import Group
        from rich.live import Live
        from rich.panel import Panel
        from rich.text import Text

        with Live(console=console, refresh_per_second=8, vertical_overflow="visible") as live:
            for texts in stream:
                panels = [Panel(Text(t.text), title=f"{t.log_prob:.1f}", title_align="right") for t in texts]
                live.update(Group(*panels))
    else:
        *_, texts = stream
        for number, text in enumerate(texts, start=1):
            if not quiet:
                print(f"--- {number}  log-probability {text.log_prob:.2f}  {text.symbols} symbols")
            print(text.text)
