"""Bulk embedding on a real Ray cluster of two workers."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.compat.ray import ShardJob, embed_on_ray
from relmo.embedding.files import embed_file
from relmo.errors import CorpusError, SettingError, StorageError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.options import EmbedOptions

ray = pytest.importorskip("ray", reason="needs relmo[ray]")
pytest.importorskip("ray.data", reason="needs relmo[ray]")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SENTENCES = [" ".join(f"w{i * k % 113}" for k in range(i % 23)) for i in range(900)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster on this machine; a folder with a model and three files of text, one of each kind."""
    folder = tmp_path_factory.mktemp("ray")
    torch.manual_seed(1)
    model = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8"), hidden=256, projection=16)
    BiLM(BiLMNetwork(model, vocab_size=None), BiLMSettings(model=model)).save_pretrained(folder / "model")
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "texts" / "b.csv").write_text("id,text\n" + "".join(f'k{i},"a bank, {i}"\n' for i in range(50)))
    table = {"text": [f"a river {i}" for i in range(120)], "n": list(range(120))}
    parquet.write_table(pyarrow.table(table), folder / "texts" / "c.parquet")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield folder
    ray.shutdown()


def shards_of(out: Path, name: str) -> Any:
    """The rows of all shards of a file."""
    found = sorted(out.glob(f"{name}-*.parquet"))
    assert found
    return pyarrow.concat_tables([parquet.read_table(path) for path in found])


def assert_as_in_one_process(place: Path, out: Path, name: str) -> None:
    whole = place / f"{name}.whole.parquet"
    embed_file(load(place / "model", kinds="bilm"), place / "texts" / name, whole, overwrite=True)
    expected, found = parquet.read_table(whole), shards_of(out, name)
    assert found.column_names == expected.column_names
    for column in expected.column_names:
        mine, theirs = found[column].combine_chunks(), expected[column].combine_chunks()
        if column == "vector":
            assert np.array_equal(mine.flatten().to_numpy(), theirs.flatten().to_numpy())
        else:
            assert mine.to_pylist() == theirs.to_pylist()


def kill_one_worker(partial: Path, killed: list[int]) -> None:
    """Kills the first worker that is seen at work on a shard."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            busy = [name for name in opened if name.startswith(str(partial)) and name.endswith("vectors.bin")]
            if busy and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
                killed.append(int(process.name))
                return
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the worker in /proc")
def test_two_workers_one_of_them_killed_write_what_one_process_writes(place: Path) -> None:
    out, killed = place / "vectors", []
    killer = threading.Thread(target=kill_one_worker, args=(place / "vectors.partial", killed))
    killer.start()
    done = embed_on_ray(ShardJob(model=str(place / "model")), place / "texts", out, workers=2, shard=300)
    killer.join()
    assert killed
    assert (done.shards, done.sentences) == (5, 1070)
    assert sorted(path.name for path in out.iterdir()) == [
        *(f"a.txt-{i:05}.parquet" for i in range(3)),
        "b.csv-00000.parquet",
        "c.parquet-00000.parquet",
    ]
    for name in ("a.txt", "b.csv", "c.parquet"):
        assert_as_in_one_process(place, out, name)


def test_a_run_that_was_broken_off_goes_on_with_the_shards_it_lacks(place: Path) -> None:
    job, text, out = ShardJob(model=str(place / "model")), place / "texts" / "a.txt", place / "again"

    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_on_ray(job, text, out, workers=1, shard=300, watch=stop)
    first = place / "again.partial" / "a.txt-00000.parquet"
    before = first.stat().st_mtime_ns
    with pytest.raises(StorageError, match="--resume"):
        embed_on_ray(job, text, out)
    with pytest.raises(StorageError, match="layers 'all'"):
        embed_on_ray(ShardJob(model=job.model, options=EmbedOptions(layers="top")), text, out, resume=True)
    other = place / "other" / "a.txt"
    other.parent.mkdir()
    other.write_text("another sentence\n" * 900)
    with pytest.raises(CorpusError, match=r"a\.txt"):
        embed_on_ray(job, other, out, workers=1, shard=300, resume=True)
    done = embed_on_ray(job, text, out, workers=1, shard=300, resume=True)
    assert done.sentences == 900
    assert done.resumed >= 300
    assert (out / first.name).stat().st_mtime_ns == before
    assert_as_in_one_process(place, out, "a.txt")


def test_what_cannot_be_done_is_said_in_one_line(place: Path) -> None:
    job, text = ShardJob(model=str(place / "model")), place / "texts" / "a.txt"
    carried = ShardJob(model=job.model, options=EmbedOptions(state="carry", batch_size=2))
    with pytest.raises(SettingError, match="--engine ray"):
        embed_on_ray(carried, text, place / "x")
    with pytest.raises(SettingError, match="2 CPUs"):
        embed_on_ray(job, text, place / "y", workers=3)
    with pytest.raises(CorpusError, match=r"nowhere\.txt"):
        embed_on_ray(job, place / "nowhere.txt", place / "z", workers=1)
    (place / "mine").mkdir()
    (place / "mine" / "letter.txt").write_text("kept")
    with pytest.raises(StorageError, match=r"letter\.txt"):
        embed_on_ray(job, text, place / "mine", overwrite=True)
