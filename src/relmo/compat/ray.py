"""Ray: the texts of many files embedded by many workers, on one machine or on a cluster.

    relmo embed texts/ --engine ray --workers 8 --out vectors/

- Ray Data reads the files and cuts each into shards of SHARD sentences. Every worker holds one model, takes a shard at
  a time, and writes it as a .parquet file: FILE-00000.parquet, FILE-00001.parquet, … All shards of a file, one after
  another, have the rows that `relmo embed FILE --out FILE.parquet` writes, to the bit.
- While it goes on, all is in OUT.partial, which becomes OUT in the end. A shard is in a folder of its own while it is
  computed, as the file of a run without Ray is (`relmo.embedding.files`). So a worker that dies costs a few seconds of
  its shard: Ray starts another, which goes on in it. The same is true of a run that is broken off and resumed.
- A shard that is there already is compared with the input by a digest.

On a cluster OUT, the input and the model must be on a disk that all machines see.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.digests import read_json
from relmo.disk.outputs import check_replaceable, locked, remove, storage_errors
from relmo.disk.parquet import import_pyarrow, read_metadata
from relmo.embedding.files import (
    EmbedProgress,
    Filling,
    PartialFolder,
    Pooling,
    Tokenizer,
    layout_of,
    note,
)
from relmo.errors import CorpusError, RelmoError, SettingError, StorageError
from relmo.loading import load
from relmo.nn.quantize import Precision
from relmo.settings.embedding import EmbedOptions
from relmo.store.folder import write_json
from relmo.text.sources import SourceText, TableColumns, read_texts

SHARD = 2000  # sentences in a file of the output
OURS = re.compile(r".*-\d{5,}\.parquet|note\.json")  # what is in OUT


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """All that a worker must know: the model, how it embeds, how vectors are stored, how files are read."""

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
        """The model."""
        model = load(self.model, kinds="bilm", device=device or self.device, dtype=self.precision)
        return model.splitting(self.tokenizer)

    def texts(self, file: Path) -> Iterator[SourceText]:
        """The texts of a file."""
        return read_texts(file, columns=self.columns, split=self.split, errors=self.errors)  # type: ignore[arg-type]

    def note(self, model: Any) -> dict[str, Any]:
        """What the result depends on, beside the input."""
        return note(model, self.options, self.pooling, layout_of(model, self.options, self.pooling, self.dtype))


class ShardedSummary(NamedTuple):
    """What was done in this run; `resumed` sentences were there already, of cut words there is an example."""

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
    """Embeds a file, or all files of a folder, into the folder `out`.

    It takes part in the cluster that RAY_ADDRESS names, or in one that was started on this machine (`ray start`);
    where there is none, this machine is one for as long as it takes. `workers` is how many there are: all GPUs or all
    CPUs where it is not given.
    """
    _import_ray()
    import_pyarrow()
    files, out = _files_of(Path(source)), Path(out).absolute()
    if resume and overwrite:
        raise SettingError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    if job.options.state != "reset":
        raise SettingError(f"state '{job.options.state}' needs sentences one after another; leave out --engine ray")
    if Path(job.model).exists():
        job = replace(job, model=str(Path(job.model).absolute()))
    partial = out.with_name(out.name + ".partial")
    _open_partial(job, out, partial, resume=resume, overwrite=overwrite)
    with locked(partial):
        counts = _run(job, files, partial, workers, shard, watch)
        if not counts["sentences"]:
            raise CorpusError(f"{source}: there is nothing in it; give a file with a sentence a line")
        with storage_errors(out):
            (partial / "note.json").unlink()
            if out.exists():
                remove(out)
            partial.rename(out)
    return ShardedSummary(out, **counts)


def _import_ray() -> Any:
    """The package, told to send nothing anywhere and to be quiet."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        import ray.data
    except ImportError as error:
        raise SettingError("--engine ray needs the package ray; try: pip install 'relmo[ray]'") from error
    for name in ("ray", "ray.data", "ray.data.dataset"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


def _files_of(source: Path) -> list[Path]:
    """A file, or those of a folder by name, hidden ones aside."""
    if not source.is_dir():
        return [source.absolute()]
    files = sorted(path.absolute() for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise CorpusError(f"{source}: there is no file in this folder")
    return files


def _open_partial(job: ShardJob, out: Path, partial: Path, *, resume: bool, overwrite: bool) -> None:
    """The folder OUT.partial, new or as an earlier run with the same settings left it."""
    wanted = job.note(job.load("cpu"))
    with storage_errors(partial):
        begun = (partial / "note.json").exists()
        if not (resume and begun):
            check_replaceable(out, overwrite=overwrite, ours=OURS)
        if begun and not (resume or overwrite):
            raise StorageError(f"{partial}: an earlier run was broken off here; add --resume, or --overwrite")
        if begun and resume:
            again = f"remove {partial} to start again"
            found = read_json(partial / "note.json", again, StorageError)
            changed = next((name for name in wanted | found if wanted.get(name) != found.get(name)), None)
            if changed is not None:
                what = "another model" if changed == "model" else f"{changed:.40} {found.get(changed)!r:.40}"
                raise StorageError(f"{partial}: was begun with {what}; resume it as it was begun, or {again}")
            return
        remove(partial)
        partial.mkdir(parents=True)
        write_json(partial / "note.json", wanted)


def _run(
    job: ShardJob,
    files: list[Path],
    partial: Path,
    workers: int | None,
    shard: int,
    watch: Callable[[EmbedProgress], object] | None,
) -> dict[str, int]:
    """Reads, embeds and writes all shards; -> what was done."""
    ray = _import_ray()
    begun = not ray.is_initialized()
    if begun:
        ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:
        return _gather(_pipeline(ray, job, files, partial, workers, shard), watch)
    except RelmoError:
        raise
    except Exception as error:
        raise _cause(error) from None
    finally:
        if begun:
            ray.shutdown()


def _pipeline(ray: Any, job: ShardJob, files: list[Path], partial: Path, workers: int | None, shard: int) -> Any:
    """The shards as a dataset of Ray's: a row a shard, read, cut and embedded when it is asked for."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = 1  # bytes: so each row, a shard, is a block, which is what workers are given
    gpu, workers = _workers(ray, job.device, workers)
    rows = ray.data.from_items([{"file": str(file)} for file in files], override_num_blocks=len(files))
    readers = max(1, workers // 4)  # reading is far faster than embedding
    rows = rows.map_batches(
        _cut, fn_args=(job, str(partial), shard), batch_size=1, num_cpus=0, compute=ray.data.TaskPoolStrategy(readers)
    )
    placed = {"num_gpus": 1} if gpu else {"num_cpus": 1}
    pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2)
    arguments = (job, str(partial), "cuda" if gpu else "cpu")
    return rows.map(ShardWorker, fn_constructor_args=arguments, compute=pool, **placed)


def _workers(ray: Any, device: str, workers: int | None) -> tuple[bool, int]:
    """Whether they compute on GPUs, and how many there are."""
    there = ray.cluster_resources()
    gpu = device == "cuda" or (device == "auto" and there.get("GPU", 0) >= 1)
    kind = "GPU" if gpu else "CPU"
    most = int(there.get(kind, 0))
    if not most or (workers or 1) > most:
        raise SettingError(f"--workers {workers or 1}: the cluster has {most} {kind}s, and each worker takes one")
    return gpu, workers or most


def _cut(batch: dict[str, Any], job: ShardJob, partial: str, shard: int) -> Iterator[dict[str, list[Any]]]:
    """The shards of a file that are not there yet; of the others, how many sentences they have."""
    (name,) = batch["file"]
    file = Path(str(name))
    texts, first = job.texts(file), 0
    for number in range(1 << 62):
        part = [[text.text, text.words, text.name] for text in islice(texts, shard)]
        if not part:
            return
        data = json.dumps(part)
        digest = blake2b(data.encode(), digest_size=16).hexdigest()
        out = Path(partial) / f"{file.name}-{number:05}.parquet"
        done = _is_done(out, digest, file, first)
        row = {"out": str(out), "source": str(file), "first": first, "count": len(part), "digest": digest}
        yield {key: [value] for key, value in (row | {"texts": "" if done else data}).items()}
        first += len(part)


def _is_done(out: Path, digest: str, file: Path, first: int) -> bool:
    """Whether a shard is there already; another one than the input has is an error."""
    if not out.exists():
        return False
    found = json.loads(read_metadata(out).get("relmo", "{}")).get("input")
    if found != digest:
        raise CorpusError(
            f"{file}: what follows its sentence {first} is not what {out} was made of; give the same input, or remove "
            f"{out.parent} to start again"
        )
    return True


class ShardWorker:
    """One model, and shard after shard."""

    def __init__(self, job: ShardJob, partial: str, device: str):
        self.job, self.model = job, job.load(device)
        self.layout = layout_of(self.model, job.options, job.pooling, job.dtype)
        self.note = job.note(self.model)

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        """Writes a shard; -> what was done."""
        count = int(row["count"])
        if not row["texts"]:
            return {"shards": 1, "sentences": count, "resumed": count, "tokens": 0, "cut": 0}
        parts = json.loads(row["texts"])
        texts = (SourceText(text, words, name=name) for text, words, name in parts)
        about = self.note | {"input": str(row["digest"])}
        partial = PartialFolder(Path(str(row["out"])), self.layout, about, keep=True, first=int(row["first"]))
        filling = Filling(partial, self.job.options, self.job.pooling)
        done = filling.run(self.model, texts, str(row["source"]), resume=True, forget=False)
        return {
            "shards": 1,
            "sentences": count,
            "resumed": done.resumed,
            "tokens": done.tokens,
            "cut": done.cut.count,
        }


def _gather(rows: Any, watch: Callable[[EmbedProgress], object] | None) -> dict[str, int]:
    """Waits for all shards, in the order in which they are done."""
    counts = dict.fromkeys(("shards", "sentences", "resumed", "tokens", "cut"), 0)
    for row in rows.iter_rows():
        for name in counts:
            counts[name] += int(row[name])
        if watch is not None:
            watch(EmbedProgress(counts["sentences"], None, counts["tokens"], counts["resumed"]))
    return counts


def _cause(error: BaseException) -> BaseException:
    """The error of ours that Ray wraps in its own, or else Ray's."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, RelmoError):
            return found
        found = getattr(found, "cause", None) or found.__cause__
    return error
