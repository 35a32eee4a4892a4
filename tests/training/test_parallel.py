"""Several processes train as one would with their batches put together, resume to the bit, and end together.

The commands under torchrun are the real ones; where processes are killed, or made to fail, they are forked from a
server that has imported torch already, with the environment that torchrun gives.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import relmo
from relmo.cli import main
from relmo.errors import CorpusError, RelmoError, SettingError, StorageError
from relmo.networks.language_model import Loss
from relmo.runs.folder import CHECKPOINT, ENCODED
from relmo.runs.run import Metrics, read_metrics
from relmo.settings.sections import TrainSettings
from relmo.store.folder import read_tensors
from relmo.training.batch import Lanes
from relmo.training.loop import Trainer
from relmo.training.parallel import SINGLE_PROCESS, Team, get_local_device, get_world_size, join, open_start_store

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
PATIENCE = 600.0  # seconds that a process may take, and takes none of where all is well
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
ALWAYS = "--quiet --threads 1 --device cpu --log-every 1"
LM = f"{ALWAYS} --hidden 16 --embedding 8 --unroll 16"
BILM = f"{ALWAYS} --char-dim 4 --filters 1x4,2x8 --hidden 16 --projection 8 --unroll 8 --dropout 0 --vocabulary-size 99"
RANDOM = (
    f"{LM} --layers 2 --dropout 0.2 --word-dropout 0.1 --accumulate 2 --average 0.9 --batch 4 --epochs 0.6 "
    "--validate-every 7 --checkpoint-every 0 --snapshots 0.5"
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    return path


class Members:
    """Processes that were started as one team; what each says on standard error goes to a file."""

    def __init__(self, all_of_them: list[BaseProcess], folder: Path):
        self.all, self.folder = all_of_them, folder

    def end(self) -> list[int | None]:
        """Waits for them. -> their exit statuses"""
        for process in self.all:
            process.join(PATIENCE)
        codes = [process.exitcode for process in self.all]
        for process in self.all:
            process.kill()
        return codes

    def said(self) -> list[str]:
        """What each has said."""
        return [(self.folder / str(rank)).read_text() for rank in range(len(self.all))]


Start = Callable[..., Members]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """A function that starts a function in each of several new processes, which have imported everything already."""
    os.environ |= ONE_THREAD
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["relmo.runs.train_lm", "relmo.cli.terminal", "torch._dynamo", "pytest"])

    def start(size: int, function: Callable[..., None], *arguments: Any) -> Members:
        folder = tmp_path_factory.mktemp("said")
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
        started = [
            context.Process(target=member, args=(rank, size, port, folder, function, *arguments))
            for rank in range(size)
        ]
        for process in started:
            process.start()
        return Members(started, folder)

    return start


def member(rank: int, size: int, port: int, folder: Path, function: Callable[..., None], *arguments: Any) -> None:
    os.dup2(os.open(folder / str(rank), os.O_CREAT | os.O_WRONLY), 2)
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    if size > 1:
        os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "localhost"}
    import_module("relmo.cli.terminal").GRACE = 0.0  # type: ignore[attr-defined]  # nobody ends the first process here when another one fails
    function(*arguments)


def train(text: Path, out: Path, options: str, kind: str = "lm") -> list[str]:
    return ["train", kind, str(text), "--out", str(out), *options.split()]


def resume(out: Path) -> list[str]:
    return ["train", "lm", "--out", str(out), "--resume", "--quiet"]


def torchrun(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "relmo"]
    return subprocess.run(
        command + arguments, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def weights(out: Path) -> dict[str, torch.Tensor]:
    return read_tensors(out / "model.safetensors")[0]


def assert_close(out: Path, expected: Path) -> None:
    """The two runs took the same steps to the same weights, up to rounding."""
    found, wanted = (list(read_metrics(folder / "metrics.jsonl")) for folder in (out, expected))
    assert len(found) == len(wanted) >= 20
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - {"symbols_per_second"}:
            assert a[key] == pytest.approx(b[key], abs=1e-4), (a["step"], key)
    assert wanted[0]["loss"] - wanted[-1]["loss"] > 0.1, "nothing was learned that could differ"
    tensors, others = weights(out), weights(expected)
    assert tensors.keys() == others.keys()
    for name in others:
        torch.testing.assert_close(tensors[name], others[name], rtol=0, atol=1e-4)


def validations(out: Path) -> list[tuple[int, float | None]]:
    return [(record["step"], record.get("valid")) for record in read_metrics(out / "metrics.jsonl")]


def assert_same(out: Path, expected: Path) -> None:
    """The two runs ended with the same weights, to the bit."""
    tensors, others = weights(out), weights(expected)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in others)
    assert validations(out) == validations(expected)
    copies, others = weights(out / "snapshots" / "0.5"), weights(expected / "snapshots" / "0.5")
    assert all(torch.equal(copies[name], others[name]) for name in others)
    assert (out / "README.md").read_text() == (expected / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lm", f"{LM} --accumulate 2 --lr 0.01 --epochs 0.6 --validate-every 10 --json"),
        ("bilm", f"{BILM} --softmax full --state-dropout 0 --epochs 0.8 --validate-every 10 --json"),
    ],
)
def test_torchrun_with_two_processes_takes_the_steps_of_one_with_twice_the_batch(
    kind: str, options: str, text: Path, tmp_path: Path, team: Start
) -> None:
    alone = team(1, main, train(text, tmp_path / "one", f"{options} --batch 8", kind))
    done = torchrun(train(text, tmp_path / "two", f"{options} --batch 4", kind))
    assert alone.end() == [0], alone.said()
    assert done.returncode == 0, done.stderr
    assert_close(tmp_path / "two", tmp_path / "one")
    assert json.loads(done.stdout)["out"] == str(tmp_path / "two"), "one object, printed once"
    names = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_an_adaptive_softmax_whose_clusters_are_not_in_every_batch_takes_the_steps_of_one_process(
    text: Path, tmp_path: Path, team: Start
) -> None:
    options = f"{LM} --softmax adaptive --cutoffs 5 --cutoffs 50 --lr 0.01 --epochs 0.2"
    alone = team(1, main, train(text, tmp_path / "one", f"{options} --batch 6"))
    three = team(3, main, train(text, tmp_path / "three", f"{options} --batch 2"))
    assert (alone.end(), three.end()) == ([0], [0, 0, 0]), three.said()
    assert_close(tmp_path / "three", tmp_path / "one")


@pytest.fixture(scope="module")
def unbroken(text: Path, team: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that was never stopped."""
    out = tmp_path_factory.mktemp("unbroken") / "model"
    members = team(2, main, train(text, out, RANDOM))
    assert members.end() == [0, 0], members.said()
    return out


def wait_for_lines(out: Path, count: int, members: Members) -> None:
    while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_bytes().count(b"\n") < count:
        assert all(process.exitcode is None for process in members.all), members.said()
        time.sleep(0.002)


@pytest.mark.slow
def test_two_processes_killed_in_the_middle_and_resumed_end_with_the_weights_of_a_run_never_killed(
    text: Path, tmp_path: Path, team: Start, unbroken: Path
) -> None:
    out = tmp_path / "model"
    members = team(2, main, train(text, out, RANDOM))
    wait_for_lines(out, 12, members)
    for process in members.all:
        process.kill()
    assert members.end() == [-signal.SIGKILL] * 2
    tensors, values = read_tensors(out / CHECKPOINT)
    assert values["step"] >= 11
    assert not torch.equal(tensors["random.cpu"], tensors["rank1.random.cpu"]), "each has its own dropout"
    assert not torch.equal(tensors["carry.0"], tensors["rank1.carry.0"]), "each has its own text"
    for size, line in ((1, "with torchrun --nproc-per-node 2"), (3, "has 2 processes, not 3")):
        wrong = team(size, main, resume(out))
        assert wrong.end() == [2] * size
        assert line in wrong.said()[0]
        assert wrong.said()[1:] == [""] * (size - 1)
    members = team(2, main, resume(out))
    assert members.end() == [0, 0], members.said()
    assert_same(out, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_stops_both_with_a_checkpoint_from_which_both_go_on(
    rank: int, text: Path, tmp_path: Path, team: Start, unbroken: Path
) -> None:
    out = tmp_path / "model"
    members = team(2, main, train(text, out, RANDOM.replace("every 0", "every 1000")))
    wait_for_lines(out, 5, members)
    pid = members.all[rank].pid
    assert pid is not None
    assert not (out / CHECKPOINT).exists()
    os.kill(pid, signal.SIGINT)
    time.sleep(0.001)
    os.kill(pid, signal.SIGINT)  # as it comes from the terminal and from torchrun
    assert members.end() == [130, 130], members.said()
    command = f"torchrun --nproc-per-node 2 -m relmo train lm --out {out} --resume"
    assert members.said() == [f"stopped; continue with: {command}\n", ""]
    assert (out / CHECKPOINT).exists()
    members = team(2, main, resume(out))
    assert members.end() == [0, 0], members.said()
    assert_same(out, unbroken)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_leaves_none_waiting(victim: int, text: Path, tmp_path: Path, team: Start) -> None:
    members = team(2, main, train(text, tmp_path / "model", RANDOM.replace("0.6", "60")))
    wait_for_lines(tmp_path / "model", 5, members)
    members.all[victim].kill()
    codes = members.end()
    assert (codes[victim], codes[1 - victim]) == (-signal.SIGKILL, 2)
    leader, follower = members.said()
    assert follower == ""
    assert (leader == "") == (victim == 0)
    assert leader.count("--resume") == leader.count("\n") == victim


@pytest.mark.slow
def test_torchrun_restarts_a_killed_process_and_the_run_ends_with_the_weights_of_one_never_killed(
    text: Path, tmp_path: Path, unbroken: Path
) -> None:
    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    if not children.exists():
        pytest.skip("this system does not list the children of a process")
    out = tmp_path / "model"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["--max-restarts", "2", "-m", "relmo", *train(text, out, RANDOM), "--overwrite"]
    with subprocess.Popen(command + arguments, env=os.environ | ONE_THREAD, stderr=subprocess.PIPE, text=True) as agent:
        while not (out / CHECKPOINT).exists():
            assert agent.poll() is None
            time.sleep(0.002)
        workers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        said = agent.communicate(timeout=PATIENCE)[1]
    assert agent.returncode == 0, said
    assert len(workers) == 2
    assert "exitcode: -9" in said
    assert_same(out, unbroken)


def test_processes_that_start_again_do_not_read_what_dead_ones_left_in_the_store() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        for start in range(3):  # the others come before the first process, and find the names of earlier starts
            others = [pool.submit(open_start_store, store, rank, 3) for rank in (2, 1)]
            time.sleep(0.05)
            first = open_start_store(store, 0, 3)
            first.set("start", str(start))
            assert [int(other.result(PATIENCE).get("start")) for other in others] == [start, start]


@pytest.mark.slow
def test_a_mistake_under_torchrun_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = torchrun(train(tmp_path / "none.txt", tmp_path / "model", LM))
    assert done.returncode == 1, "torchrun's own"
    assert done.stderr.count("error: ") == 1
    assert f"error: {tmp_path}/none.txt: no such file" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (f"lm TEXT {LM} --batch 4000", "fewer than one window of 8000 lanes x 16 steps"),
        (f"lm TEXT {LM} --bogus", "--bogus"),
        ("lm TEXT --cell ngram --device cpu", "an n-gram model runs in one process, and there are 2"),
        ("skipgram TEXT --device cpu", "relmo train skipgram runs in one process, and there are 2"),
        (
            f"lm TEXT {LM} --batch 4 --lr 1e6 --cell elman --nonlinearity relu --clip-norm 0 --epochs 1",
            "lower --lr or --clip-norm",
        ),
    ],
)
def test_a_mistake_that_all_processes_meet_is_told_once(
    arguments: str, line: str, text: Path, tmp_path: Path, team: Start
) -> None:
    given = ["train", *arguments.replace("TEXT", str(text)).split(), "--out", str(tmp_path / "model")]
    members = team(2, main, given)
    assert members.end() == [2, 2]
    first, second = members.said()
    assert first.startswith("error: ")
    assert line in first
    assert (first.count("\n"), second) == (1, "")
    assert list(tmp_path.iterdir()) == []


def with_a_full_disk(arguments: list[str]) -> None:
    """Runs the command; only the first process may write, and cannot any more after a while."""
    write = Metrics.write

    def fails(self: Metrics, record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise StorageError("the disk is full")
        write(self, record)

    Metrics.write = fails  # type: ignore[method-assign]
    main(arguments)


def test_a_disk_that_is_full_for_the_first_process_ends_all(text: Path, tmp_path: Path, team: Start) -> None:
    members = team(2, with_a_full_disk, train(text, tmp_path / "model", RANDOM))
    assert members.end() == [2, 2]
    go_on = f"continue with: torchrun --nproc-per-node 2 -m relmo train lm --out {tmp_path / 'model'} --resume"
    assert members.said() == [f"error: the disk is full; {go_on}\n", ""]
    assert (tmp_path / "model" / CHECKPOINT).exists()


def without_a_shared_folder(arguments: list[str]) -> None:
    """Runs the command; the second process does not see what the first one has written."""
    exists = Path.exists
    if os.environ["RANK"] == "1":
        Path.exists = lambda self, **more: exists(self) and not str(self).endswith(ENCODED)  # type: ignore[method-assign]
    main(arguments)


def test_a_mistake_that_only_another_process_meets_is_told_by_the_first(
    text: Path, tmp_path: Path, team: Start
) -> None:
    members = team(2, without_a_shared_folder, train(text, tmp_path / "model", RANDOM))
    assert members.end() == [2, 2]
    assert "process 1 does not see the files of process 0" in members.said()[0]
    assert members.said()[1] == ""


@contextmanager
def raising(error: Exception) -> Iterator[None]:
    yield
    raise error


def talk() -> None:
    with join() as team:
        rank, size = team.rank, team.world_size
        assert (size, team.is_leader) == (3, rank == 0)
        assert team.any([rank == 2, False, True]) == [True, False, True]
        assert team.broadcast({"é": [rank, 0.1, None]}) == {"é": [0, 0.1, None]}
        assert team.broadcast(rank, source=2) == 2
        own = torch.tensor(float(rank))
        assert (team.mean(own), own) == (1.0, float(rank))
        odd = {"a": torch.full((2, 3), rank / 3, dtype=torch.bfloat16).T, "b": torch.tensor(rank), "c": torch.zeros(0)}
        for other, tensors in enumerate(team.all_gather(odd)):
            assert torch.equal(tensors["a"], torch.full((3, 2), other / 3, dtype=torch.bfloat16))
            assert tensors["b"] == other
            assert tensors["c"].shape == (0,)
        with team.barrier():
            pass
        mistakes = [nullcontext(), raising(CorpusError("early")), raising(CorpusError("late"))]
        with pytest.raises(RelmoError, match="late" if rank == 2 else "early"), team.barrier(), mistakes[rank]:
            pass
    assert not dist.is_initialized()


class Products(nn.Module):
    """Two numbers, each multiplied with the batch, so that the batch is the gradient of both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))

    def loss(self, batch: float, carry: Any) -> Loss:
        return Loss((self.a + self.b) * batch, 1, ())


class Numbers:
    """Batches from a list."""

    def __init__(self, *numbers: float):
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def get(self, epoch: int, index: int) -> float:
        return self.numbers[index]


def take_steps() -> None:
    """Gradients are the means over both processes, also where they were frozen before."""
    settings = TrainSettings(optimizer="sgd", lr=1.0, decay="constant", warmup=0, clip_norm=0.0, epochs=1)
    with join() as team:
        model = Products()
        numbers = Numbers(1.0, 3.0, 5.0) if team.is_leader else Numbers(3.0, 5.0, 11.0)
        trainer = Trainer(model, numbers, settings, frozen=lambda epoch: [] if epoch > 0.5 else [model.b], team=team)
        steps = list(trainer.steps())
        assert [float(step.norm) for step in steps] == pytest.approx([2.0, 4.0, 8.0 * 2**0.5])
        assert [step.predictions for step in steps] == [2, 2, 2]
        assert [float(step.loss) for step in steps] == [2 * 2.0, 4 * 0.0, 8 * -4.0]
        assert [float(model.a), float(model.b)] == [1.0 - 2 - 4 - 8, 1.0 - 8]


def test_a_step_goes_down_the_mean_gradient_of_all_processes_but_for_what_is_frozen(team: Start) -> None:
    members = team(2, take_steps)
    assert members.end() == [0, 0], members.said()


def test_a_dry_run_prints_one_plan_that_names_the_processes_and_leaves_nothing(
    text: Path, tmp_path: Path, team: Start
) -> None:
    members = team(2, main, train(text, tmp_path / "model", f"{LM.replace('--quiet', '--dry-run')} --batch 4"))
    assert members.end() == [0, 0], members.said()
    first, second = members.said()
    assert first.count("\n") == 7
    assert first.splitlines()[1].split() == ["processes", "2"]
    assert second == ""
    assert list(tmp_path.iterdir()) == []


def test_what_three_processes_tell_each_other(team: Start) -> None:
    members = team(3, talk)
    assert members.end() == [0, 0, 0], members.said()


def test_a_process_by_itself_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with join() as team:
        assert team == SINGLE_PROCESS == Team(rank=0, world_size=1)
    tensors = {"a": torch.zeros(2)}
    assert SINGLE_PROCESS.all_gather(tensors)[0] is tensors
    assert SINGLE_PROCESS.any([True, False]) == [True, False]
    value = object()
    assert SINGLE_PROCESS.broadcast(value) is value
    with pytest.raises(OSError, match="mine"), SINGLE_PROCESS.barrier():
        raise OSError("mine")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with join() as team:
        assert team is SINGLE_PROCESS
    assert not dist.is_initialized()


def test_a_torch_without_its_distributed_part_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(SettingError, match="torchrun"), join():
        pass


def test_more_processes_than_gpus_is_an_error_that_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert get_world_size() == 8
    with pytest.raises(SettingError, match="--nproc-per-node 3"):
        get_local_device(torch.device("cuda"))
    assert get_local_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert get_local_device(torch.device("cuda")) == torch.device("cuda", 2) == chosen[0]


@pytest.mark.parametrize("size", [2, 3])
def test_the_lanes_of_all_processes_are_those_of_one_with_as_many(size: int) -> None:
    stream = np.random.default_rng(1).integers(0, 99, size=1000).astype(np.uint16)
    whole = Lanes(stream, batch=4 * size, unroll=7)
    parts = [Lanes(stream, batch=4, unroll=7, rank=rank, world_size=size) for rank in range(size)]
    assert {len(part) for part in parts} == {len(whole)}
    for index in range(len(whole)):
        for side in (0, 1):
            together = torch.cat([part.get(0, index)[side] for part in parts])
            assert torch.equal(together, whole.get(0, index)[side])
