"""Ray: embedding of the texts of many files by many workers, on one machine or on a cluster.

    relmo embed texts/ --engine ray --workers 8 --out vectors/

Ray Data reads the files and cuts each into shards of SHARD sentences. Every worker holds one model and writes one shard
at a time: FILE-00000.parquet, FILE-00001.parquet, … The shards of a file, concatenated, have the rows of `relmo embed
FILE --out FILE.parquet`, bit for bit. Output goes to OUT.partial, which is renamed to OUT at the end. If a worker dies,
Ray starts another one, which continues its shard. An interrupted run is resumed in the same way; an existing shard is
compared with the input by a digest. On a cluster OUT, the input and the model must be on a shared disk.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import import_pyarrow, read_parquet_metadata
from relmo.disk.outputs import check_replaceable, folder_lock, remove, storage_errors
from relmo.embedding.files import EmbedProgress, PartialFolder, Pooling, Tokenizer, check_note, make_note
from relmo.errors import CorpusError, RelmoError, SettingError, StorageError, optional_import
from relmo.loading import load
from relmo.nn.quantize import Precision
from relmo.settings.options import EmbedOptions
from relmo.store.folder import write_json
from relmo.text.sources import SourceText, TableColumns, read_texts

SHARD = 2000  # sentences per output file
OUTPUT_FILES = re.compile(r".*-\d{5,}\.parquet|note\.json")


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Settings of a worker: the model, how it embeds, how vectors are stored, how files are read."""

    model: str
    tokenizer: Tokenizer | None = None
    precision: Precision = "float32"
    device: str = "auto"
    options: EmbedOptions = EmbedOptions()  # noqa: RUF009
    pooling: Pooling | None = None
    dtype: str = "float32"
    columns: TableColumns = TableColumns()  # noqa: RUF009
    split: str = "lines"
    errors: str = "strict"

    def load(self, device: str | None = None) -> Any:
        """Load the model."""
        model = load(self.model, kinds="bilm", device=device or self.device, dtype=self.precision)
        return model.with_tokenizer(self.tokenizer)


class ShardedSummary(NamedTuple):
    """Counts of a run; `resumed` sentences were there already, `cut` words were truncated."""

    out: Path
    shards: int
    sentences: int
    resumed: int
    tokens: int
    cut: int


def embed_on_ray(
    job: ShardJob,
    source: str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    shard: int = SHARD,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[EmbedProgress], object] | None = None,
) -> ShardedSummary:
    """Embed a file, or all files of a folder, into the folder `out`.

    Uses the cluster of RAY_ADDRESS or one started on this machine (`ray start`); otherwise starts one for the duration
    of the run. `workers` defaults to the number of GPUs, or of CPUs if there are none. `watch` receives the progress.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with optional_import("--engine ray needs the package ray", "ray"):
        import ray.data
    for name in ("ray", "ray.data", "ray.data.dataset"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import_pyarrow()
    source, out = Path(source), Path(out).absolute()
    files = [source.absolute()]
    if source.is_dir():
        files = sorted(path.absolute() for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise CorpusError(f"{source}: the folder has no files")
    if resume and overwrite:
        raise SettingError("--resume and --overwrite cannot be used together")
    if job.options.state != "reset":
        raise SettingError(f"state '{job.options.state}' needs consecutive sentences; leave out --engine ray")
    if Path(job.model).exists():
        job = replace(job, model=str(Path(job.model).absolute()))
    partial = out.with_name(out.name + ".partial")
    _open_partial(job, out, partial, resume=resume, overwrite=overwrite)
    with folder_lock(partial):
        is_local = not ray.is_initialized()
        if is_local:
            ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False, configure_logging=False)
        counts = dict.fromkeys(("shards", "sentences", "resumed", "tokens", "cut"), 0)
        try:
            for row in _build_pipeline(ray, job, files, partial, workers, shard).iter_rows():
                for name in counts:
                    counts[name] += int(row[name])
                if watch is not None:
                    watch(EmbedProgress(counts["sentences"], None, counts["tokens"], counts["resumed"]))
        except RelmoError:
            raise
        except Exception as error:
            cause: BaseException | None = error  # Ray wraps errors of workers
            while cause is not None and not isinstance(cause, RelmoError):
                cause = getattr(cause, "cause", None) or cause.__cause__
            raise (cause or error) from None
        finally:
            if is_local:
                ray.shutdown()
        if not counts["sentences"]:
            raise CorpusError(f"{source}: has no sentences; expected a file with one sentence per line")
        with storage_errors(out):
            (partial / "note.json").unlink()
            if out.exists():
                remove(out)
            partial.rename(out)
    return ShardedSummary(out, **counts)


def _open_partial(job: ShardJob, out: Path, partial: Path, *, resume: bool, overwrite: bool) -> None:
    """Create the folder OUT.partial, or check that an earlier run there had the same settings."""
    expected = make_note(job.load("cpu"), job.options, job.pooling, job.dtype)
    with storage_errors(partial):
        exists = (partial / "note.json").exists()
        if not (resume and exists):
            check_replaceable(out, overwrite=overwrite, ours=OUTPUT_FILES)
        if exists and not (resume or overwrite):
            raise StorageError(f"{partial}: an earlier run was interrupted here; add --resume or --overwrite")
        if exists and resume:
            check_note(partial, expected)
            return
        remove(partial)
        partial.mkdir(parents=True)
        write_json(partial / "note.json", expected)


def _build_pipeline(ray: Any, job: ShardJob, files: list[Path], partial: Path, workers: int | None, shard: int) -> Any:
    """Return a lazy Ray dataset with one row per shard, which is read, cut and embedded on demand."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = 1  # bytes: each row, a shard, becomes a block, the unit of scheduling
    resources = ray.cluster_resources()
    on_gpu = job.device == "cuda" or (job.device == "auto" and resources.get("GPU", 0) >= 1)
    kind = "GPU" if on_gpu else "CPU"
    max_workers = int(resources.get(kind, 0))
    if not max_workers or (workers or 1) > max_workers:
        message = f"--workers {workers or 1}: the cluster has {max_workers} {kind}s, and each worker takes one"
        raise SettingError(message)
    workers = workers or max_workers
    rows = ray.data.from_items([{"file": str(file)} for file in files], override_num_blocks=len(files))
    readers = ray.data.TaskPoolStrategy(max(1, workers // 4))  # reading is far faster than embedding
    rows = rows.map_batches(_cut_shards, fn_args=(job, str(partial), shard), batch_size=1, num_cpus=0, compute=readers)
    pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2)
    arguments = (job, "cuda" if on_gpu else "cpu")
    requirements = {"num_gpus": 1} if on_gpu else {"num_cpus": 1}
    return rows.map(ShardWorker, fn_constructor_args=arguments, compute=pool, **requirements)


def _cut_shards(batch: dict[str, Any], job: ShardJob, partial: str, shard: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the shards of a file; a shard that exists already comes without its texts."""
    file, start = Path(str(batch["file"][0])), 0
    texts = read_texts(file, columns=job.columns, split=job.split, errors=job.errors)  # type: ignore[arg-type]
    for number in count():
        sentences = [[text.text, text.words, text.name] for text in islice(texts, shard)]
        if not sentences:
            return
        data = json.dumps(sentences)
        digest = blake2b(data.encode(), digest_size=16).hexdigest()
        out = Path(partial) / f"{file.name}-{number:05}.parquet"
        if out.exists():
            if json.loads(read_parquet_metadata(out).get("relmo", "{}")).get("input") != digest:
                raise CorpusError(
                    f"{file}: the text after sentence {start} differs from that of {out}; use the same input or remove "
                    f"{out.parent} to start again"
                )
            data = ""
        row = {"out": str(out), "source": str(file), "first": start, "count": len(sentences), "digest": digest}
        yield {key: [value] for key, value in (row | {"texts": data}).items()}
        start += len(sentences)


class ShardWorker:
    """A Ray worker that holds one model and writes one shard at a time."""

    def __init__(self, job: ShardJob, device: str):
        self.job, self.model = job, job.load(device)
        self.note = make_note(self.model, job.options, job.pooling, job.dtype)

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        """Write a shard and return its counts."""
        num_sentences = int(row["count"])
        counts = {"shards": 1, "sentences": num_sentences, "resumed": num_sentences, "tokens": 0, "cut": 0}
        if not row["texts"]:
            return counts
        texts = (SourceText(text, words, name=name) for text, words, name in json.loads(row["texts"]))
        shard_note = self.note | {"input": str(row["digest"])}
        out, start = Path(str(row["out"])), int(row["first"])
        partial = PartialFolder(out, self.model, self.job.options, shard_note, start=start)
        summary = partial.fill(texts, str(row["source"]), resume=True, forget=False)
        return counts | {"resumed": summary.resumed, "tokens": summary.tokens, "cut": summary.cut.count}
