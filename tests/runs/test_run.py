"""A run that is killed goes on to the same weights, bit for bit; and what a run leaves in its folder, or does not.

Processes are really killed. Most are forked from a server that has imported torch already, which takes milliseconds
where a new interpreter takes seconds; a few are the command itself.
"""

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import relmo
from relmo.cli import main
from relmo.disk.files import seal
from relmo.disk.outputs import folder_lock
from relmo.errors import CorpusError, RelmoError, SettingError, StorageError
from relmo.runs import run
from relmo.runs.folder import CHECKPOINT, RUN, read_run
from relmo.runs.progress import Reporter, TrainingReporter
from relmo.runs.run import read_metrics
from relmo.runs.train_lm import train_lm
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.sections import TrainSettings
from relmo.store.folder import read_tensors, write_json
from relmo.training.loop import Plan, Step, peak_memory
from relmo.training.parallel import SINGLE_PROCESS

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
NETWORK = "--hidden 16 --embedding 8 --batch 8 --unroll 16 --threads 1 --device cpu"
LONG = "--dropout 0.2 --epochs 0.6 --snapshots 0.2,0.45 --validate-every 7 --log-every 3 --checkpoint-every 0"
AVERAGED = (
    "--cell gru --layers 2 --dropout 0.1 --word-dropout 0.1 --weight-drop 0.1 --average 0.9 --accumulate 2 "
    "--optimizer adam --weight-decay 0.01 --epochs 0.8 --snapshots 0.1,0.8 --validate-every 5 --log-every 2 "
    "--checkpoint-every 0.05"
)
TRIGGERED = (
    "--layers 2 --dropout 0.1 --variational --activation-penalty 2 --temporal-penalty 1 --softmax mixture --mixtures 2 "
    "--mixture-dropout 0.1 --optimizer sgd --lr 20 --decay constant --average-after 1 --vary-unroll --epochs 0.8 "
    "--validate-every 3 --log-every 2 --checkpoint-every 0"
)
BRIEF = "--dropout 0.2 --epochs 0.01 --snapshots 0.005 --validate-every 1 --log-every 1 --checkpoint-every 0"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def forked() -> Callable[..., BaseProcess]:
    """A function that starts a function in a new process, which has imported everything already."""
    os.environ |= ONE_THREAD
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["relmo.runs.train_lm", "relmo.cli.terminal", "torch._dynamo", "pytest"])

    def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = context.Process(target=function, args=arguments)
        process.start()
        return process

    return start


def test_a_run_of_minutes_ends_by_the_pace_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first step of 20 s, then 0.5 s a step and 3 s of validation at every tenth."""
    clock = [100.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])
    ends: list[int] = []
    trainer = SimpleNamespace(
        settings=TrainSettings(minutes=60.0), number=0, team=SINGLE_PROCESS, set_total_steps=ends.append
    )
    deadline = run.Deadline(trainer)  # type: ignore[arg-type]
    for number in range(1, 301):
        validating = 3.0 if number % 10 == 0 else 0.0
        clock[0] += (20.0 if number == 1 else 0.5) + validating
        deadline.validation_seconds += validating
        if number % 5 == 0:
            deadline.update(SimpleNamespace(number=number))  # type: ignore[arg-type]
    assert ends == [110 + int((3600 - (20 + 0.5 * 109)) / 0.5)], "once, when a fiftieth of the hour is over"
    trainer.number = 5
    assert run.Deadline(trainer).is_settled, "a run that goes on has what it had"  # type: ignore[arg-type]
    assert run.Deadline(SimpleNamespace(settings=TrainSettings(), number=0)).is_settled  # type: ignore[arg-type]


def test_a_run_of_minutes_is_trained_and_saved(text: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(train(text, tmp_path / "out", "--minutes 0.02 --log-every 1"))
    records = list(read_metrics(tmp_path / "out" / "metrics.jsonl"))
    assert records[-1]["valid"] > 0
    assert records[-1]["lr"] < records[0]["lr"] or len(records) < 3, "the rate falls to the end"


def train(text: Path, out: Path, options: str) -> list[str]:
    return ["train", "lm", str(text), "--out", str(out), "--quiet", *NETWORK.split(), *options.split()]


def resume(out: Path) -> list[str]:
    return ["train", "lm", "--out", str(out), "--resume", "--quiet"]


@pytest.fixture(scope="module")
def unbroken(
    text: Path, tmp_path_factory: pytest.TempPathFactory, forked: Callable[..., BaseProcess]
) -> Callable[[str], Path]:
    """A function from options to the folder of a run that was never stopped."""
    done: dict[str, Path] = {}

    def folder(options: str) -> Path:
        if options not in done:
            out = tmp_path_factory.mktemp("unbroken") / "model"
            process = forked(main, train(text, out, options))
            process.join()
            assert process.exitcode == 0
            done[options] = out
        return done[options]

    return folder


def assert_same(out: Path, expected: Path) -> None:
    """The two folders hold the same model, to the bit, and the same record of how it came about; and nothing else."""
    names = [sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) for folder in (out, expected)]
    assert names[0] == names[1]
    for copy in expected.glob("snapshots/*"):
        assert contents(out / "snapshots" / copy.name) == contents(copy)
    tensors, _ = read_tensors(out / "model.safetensors")
    wanted, _ = read_tensors(expected / "model.safetensors")
    assert tensors.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(tensors[name], wanted[name]), name
    for name in ("config.json", "vocabulary.txt", "settings.toml", "README.md"):
        assert (out / name).read_text() == (expected / name).read_text(), name
    found, written = list(read_metrics(out / "metrics.jsonl")), list(read_metrics(expected / "metrics.jsonl"))
    fixed = ("step", "epoch", "lr", "gradient_norm", "clipped", "valid")  # the rest is time, or a mean since the start
    assert [[r.get(key) for key in fixed] for r in found] == [[r.get(key) for key in fixed] for r in written]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.002)


def command(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "relmo", *arguments],
        env=os.environ | ONE_THREAD,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_the_command_killed_in_the_middle_and_resumed_ends_with_the_weights_of_a_run_never_killed(
    text: Path, unbroken: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    process = command(train(text, out, LONG))
    wait_for(lambda: lines(out / "metrics.jsonl") >= 5, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = command(resume(out))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert_same(out, unbroken(LONG))


@pytest.mark.slow
@pytest.mark.parametrize("options", [LONG, AVERAGED, TRIGGERED], ids=["every step", "now and then", "averaged SGD"])
def test_kills_at_random_moments_change_nothing(
    options: str,
    text: Path,
    unbroken: Callable[[str], Path],
    forked: Callable[..., BaseProcess],
    tmp_path: Path,
) -> None:
    expected = unbroken(options)
    out = tmp_path / "model"
    chance = random.Random(1)
    kills = 0
    for _ in range(8):
        process = forked(main, resume(out) if (out / "run" / "run.json").exists() else train(text, out, options))
        process.join(chance.uniform(0.0, 0.35))
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode == 0:
            break
        kills += 1
    assert kills >= 2
    if not (out / "config.json").exists() or (out / "run" / "run.json").exists():
        begun = (out / "run" / "run.json").exists()
        process = forked(main, resume(out) if begun else train(text, out, options))
        process.join()
        assert process.exitcode == 0
    assert_same(out, expected)


def killed_at_rename(arguments: list[str], number: int, after: bool) -> None:
    """Runs the command and dies for good right before (or after) the file of that number is put in its place."""
    replace, rename, unlink, remove = Path.replace, Path.rename, Path.unlink, os.unlink
    calls = itertools.count(1)

    def die(happens: Callable[[], Any]) -> Any:
        now = next(calls) == number
        try:
            return None if now and not after else happens()
        finally:  # also if there was nothing to rename
            if now:
                os.kill(os.getpid(), signal.SIGKILL)

    Path.replace = lambda self, target: die(lambda: replace(self, target))  # type: ignore[method-assign]
    Path.rename = lambda self, target: die(lambda: rename(self, target))  # type: ignore[method-assign]
    Path.unlink = lambda self, **options: self.exists() and die(lambda: unlink(self))  # type: ignore[method-assign]
    os.unlink = lambda *path, **options: die(lambda: remove(*path, **options))  # type: ignore[assignment]
    main(arguments)


@pytest.mark.slow
def test_a_kill_at_every_single_change_of_the_folder_can_be_resumed(
    text: Path, unbroken: Callable[[str], Path], forked: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    expected = unbroken(BRIEF)
    deaths = 0
    for number in itertools.count(1):
        out = tmp_path / str(number) / "model"
        first = forked(killed_at_rename, train(text, out, BRIEF), number, bool(number % 2))
        first.join()
        if first.exitcode == 0:
            break
        assert first.exitcode == -signal.SIGKILL
        deaths += 1
        finished = (out / "config.json").exists() and not (out / "run").exists()
        begun = finished or (out / "run" / "run.json").exists()
        second = forked(main, resume(out) if begun else train(text, out, BRIEF))
        second.join()
        assert second.exitcode == (2 if finished else 0), number  # then there is nothing to do, but to tidy up
        assert_same(out, expected)
        shutil.rmtree(out.parent)
    assert deaths > 20


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_says_in_one_line_how_to_go_on(
    text: Path, unbroken: Callable[[str], Path], forked: Callable[..., BaseProcess], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    options = LONG.replace("every 0", "every 1000")
    process = command(train(text, out, options))
    wait_for(lambda: lines(out / "metrics.jsonl") >= 3, process)
    assert not (out / CHECKPOINT).exists()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == f"stopped; continue with: relmo train lm --out {out} --resume\n"
    _, values = read_tensors(out / CHECKPOINT)
    assert values["step"] >= 7
    again = forked(main, ["train", "lm", "--out", str(out), "--resume", "--quiet"])
    again.join()
    assert again.exitcode == 0
    assert_same(out, unbroken(options))


SMALL = LMSettings(
    text=TextSettings(),
    model=LanguageModelSettings(hidden=8, embedding=4, dropout=0.1),
    train=TrainSettings(batch=8, unroll=16, epochs=0.05, validate_every=3, log_every=2, threads=1, device="cpu"),
)


class Recorder(Reporter):
    """Keeps all it is told, in order."""

    def __init__(self, stop_after: int | None = None):
        self.events: list[Any] = []
        self.stop_after = stop_after

    def on_plan(self, plan: Plan) -> None:
        self.events.append(plan)

    def on_step(self, step: Step, total: int) -> None:
        self.events.append(step.number)
        if step.number == self.stop_after:
            raise InterruptedError

    def on_message(self, message: str) -> None:
        self.events.append(message)


def changed(**train: Any) -> LMSettings:
    return LMSettings(text=SMALL.text, model=SMALL.model, train=TrainSettings(**(vars(SMALL.train) | train)))


def test_the_plan_comes_before_the_first_step_and_names_the_steps_there_will_be(text: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    train_lm([str(text)], SMALL, tmp_path / "model", reporter=recorder)
    plan, *steps = recorder.events
    assert isinstance(plan, Plan)
    assert steps == list(range(1, plan.steps + 1))
    assert plan.predictions == 19_000
    assert plan.parameters == sum(
        p.numel() for p in relmo.LanguageModel.from_pretrained(tmp_path / "model").network.parameters()
    )


def test_the_plan_does_not_change_the_run(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_lm([str(text)], SMALL, tmp_path / "planned" / "model")
    monkeypatch.setattr("relmo.runs.train_lm.make_plan", lambda trainer, predictions, unit: None)
    train_lm([str(text)], SMALL, tmp_path / "unplanned" / "model")
    assert_same(tmp_path / "planned" / "model", tmp_path / "unplanned" / "model")


def test_a_dry_run_tells_the_plan_and_leaves_nothing(text: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    assert train_lm([str(text)], SMALL, tmp_path / "not" / "there", dry_run=True, reporter=recorder) == {}
    assert len(recorder.events) == 1
    assert not (tmp_path / "not" / "there").exists()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("mine")
    train_lm([str(text)], SMALL, tmp_path / "here", dry_run=True)
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["mine.txt"]


def test_a_dry_run_of_a_run_that_could_go_on_keeps_its_checkpoint(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(checkpoint_every=0.0), out, reporter=Recorder(stop_after=4))
    before = sorted(p.relative_to(out) for p in out.rglob("*"))
    train_lm([str(text)], changed(checkpoint_every=0.0), out, resume=True, dry_run=True)
    assert sorted(p.relative_to(out) for p in out.rglob("*")) == before


def test_resuming_goes_on_after_the_last_step_of_the_checkpoint(text: Path, tmp_path: Path) -> None:
    out, settings = tmp_path / "model", changed(checkpoint_every=0.0)
    with pytest.raises(InterruptedError):
        train_lm([str(text)], settings, out, reporter=Recorder(stop_after=4))
    recorder = Recorder()
    train_lm([str(text)], settings, out, resume=True, reporter=recorder)
    plan, said, *steps = recorder.events
    assert "step 4" in said
    assert steps == list(range(5, plan.steps + 1))
    assert [r["step"] for r in read_metrics(out / "metrics.jsonl")] == [2, 3, 4, 6, 8]


def test_a_checkpoint_is_written_no_more_often_than_asked(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(checkpoint_every=1000.0), out, reporter=Recorder(stop_after=7))
    assert not (out / CHECKPOINT).exists()


def test_a_damaged_checkpoint_is_one_clear_line(text: Path, tmp_path: Path) -> None:
    out, settings = tmp_path / "model", changed(checkpoint_every=0.0)
    with pytest.raises(InterruptedError):
        train_lm([str(text)], settings, out, reporter=Recorder(stop_after=4))
    data = bytearray((out / CHECKPOINT).read_bytes())
    data[-100] ^= 1
    (out / CHECKPOINT).write_bytes(data)
    with pytest.raises(RelmoError, match="damaged"):
        train_lm([str(text)], settings, out, resume=True)


def test_resuming_with_other_settings_or_files_is_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(checkpoint_every=0.0), out, reporter=Recorder(stop_after=4))
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(SettingError, match="other files or settings"):
        train_lm([str(text)], changed(checkpoint_every=0.0, lr=0.5), out, resume=True)
    with pytest.raises(SettingError, match="other files or settings"):
        train_lm([str(text), str(text)], changed(checkpoint_every=0.0), out, resume=True)
    with pytest.raises(SettingError, match="add --resume"):
        train_lm([str(text)], changed(checkpoint_every=0.0), out)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_run_of_a_version_without_a_setting_resumes_with_its_default(text: Path, tmp_path: Path) -> None:
    out, settings = tmp_path / "model", changed(checkpoint_every=0.0)
    with pytest.raises(InterruptedError):
        train_lm([str(text)], settings, out, reporter=Recorder(stop_after=4))
    note = read_run(out)
    assert note["settings"]["model"].pop("cell_options") == []
    del note["digest"]
    write_json(out / RUN, seal(note))
    other = replace(settings, model=replace(settings.model, cell="lstm", cell_options=("peephole=true",)))
    with pytest.raises(SettingError, match="other files or settings"):
        train_lm([str(text)], other, out, resume=True)
    train_lm([str(text)], settings, out, resume=True)


def test_a_folder_with_a_finished_model_and_a_file_are_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    train_lm([str(text)], SMALL, out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for again in (False, True):
        with pytest.raises(SettingError, match="finished"):
            train_lm([str(text)], SMALL, out, resume=again)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    with pytest.raises(SettingError, match="is a file; give a folder"):
        train_lm([str(text)], SMALL, out / "config.json")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_model_and_a_run_are_replaced_when_asked_to(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    train_lm([str(text)], SMALL, tmp_path / "other" / "model")
    train_lm([str(text)], changed(seed=7), out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(SettingError, match="holds a finished model; add --overwrite to replace it, or choose another"):
        train_lm([str(text)], SMALL, out)
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(checkpoint_every=0.0), out, overwrite=True, reporter=Recorder(stop_after=4))
    with pytest.raises(SettingError, match=r"--resume .*--overwrite"):
        train_lm([str(text)], SMALL, out)
    with pytest.raises(SettingError, match="--overwrite"):
        train_lm([str(text)], SMALL, out, overwrite=True, resume=True)
    train_lm([str(text)], SMALL, out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    assert_same(out, tmp_path / "other" / "model")


def test_what_was_to_be_replaced_is_back_after_a_mistake_and_a_dry_run(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    train_lm([str(text)], SMALL, out)
    before = contents(out)
    with pytest.raises(CorpusError, match="no such file"):
        train_lm([str(tmp_path / "alcie.txt")], SMALL, out, overwrite=True)
    assert contents(out) == before
    train_lm([str(text)], SMALL, out, overwrite=True, dry_run=True)
    assert contents(out) == before
    (tmp_path / "link").symlink_to(out)
    train_lm([str(text)], changed(seed=7), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert contents(out).keys() == before.keys()
    assert contents(out) != before


def test_a_second_process_in_one_folder_is_told_so_and_changes_nothing(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(checkpoint_every=0.0), out, reporter=Recorder(stop_after=4))
    before = contents(out)
    with folder_lock(out):
        for how in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(StorageError, match=r"model: .*another process"):
                train_lm([str(text)], changed(checkpoint_every=0.0), out, **how)
    assert contents(out) == before


def test_a_run_needs_nothing_that_windows_does_not_have(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "resource", None)
    recorder = Recorder()
    train_lm([str(text)], SMALL, tmp_path / "model", reporter=recorder)
    assert recorder.events[0].memory is None
    TrainingReporter(quiet=True).on_plan(recorder.events[0])


def test_memory_is_told_in_the_unit_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    on_linux = peak_memory(torch.device("cpu"))
    monkeypatch.setattr(sys, "platform", "darwin")  # which counts bytes, not kilobytes
    on_macos = peak_memory(torch.device("cpu"))
    assert on_linux is not None
    assert on_macos is not None
    assert 100 < on_linux / on_macos < 2000


@pytest.mark.slow
def test_relmo_is_imported_and_embeds_where_windows_lacks_modules() -> None:
    hide = "import sys; sys.modules |= dict.fromkeys(['fcntl', 'resource', 'pwd', 'grp', 'termios'])"
    embed = "import relmo, relmo.cli; print(relmo.load().embed(['A bank .'], layers='top')[0].shape)"
    done = subprocess.run([sys.executable, "-c", f"{hide}; {embed}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(3, 512)\n", "")


def test_tensorboard_is_closed_when_a_run_is_stopped(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    class Board:
        def add_scalar(self, *_: object) -> None:
            pass

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda _: Board()))
    with pytest.raises(InterruptedError):
        train_lm([str(text)], changed(tensorboard=True), tmp_path / "model", reporter=Recorder(stop_after=4))
    assert closed == [True]


def test_resuming_where_there_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(resume(tmp_path / "nothing"))
    assert "start it without --resume" in capsys.readouterr().err


def test_after_a_mistake_in_the_text_the_same_folder_can_be_used_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(CorpusError, match="no such file"):
        train_lm([str(tmp_path / "alcie.txt")], SMALL, out)
    assert not out.exists()
    train_lm([str(text)], SMALL, out)


def test_a_place_that_cannot_be_written_is_one_clear_line(text: Path, tmp_path: Path) -> None:
    for dry_run in (False, True):
        with pytest.raises(StorageError, match="cannot be written"):
            train_lm([str(text)], SMALL, text / "model", dry_run=dry_run)


def test_tensorboard_files_hold_the_metrics_when_asked_for(text: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_lm([str(text)], SMALL, tmp_path / "plain")
    assert not (tmp_path / "plain" / "tensorboard").exists()
    out = tmp_path / "model"
    train_lm([str(text)], changed(tensorboard=True), out)
    board = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    records = list(read_metrics(out / "metrics.jsonl"))
    for name in ("loss", "lr", "valid"):
        expected = [(r["step"], pytest.approx(r[name])) for r in records if name in r]
        assert [(event.step, event.value) for event in board.Scalars(name)] == expected


def test_without_a_validation_part_the_last_weights_are_kept(text: Path, tmp_path: Path) -> None:
    settings = LMSettings(text=TextSettings(valid_fraction=0.0), model=SMALL.model, train=changed(average=0.5).train)
    results = train_lm([str(text)], settings, tmp_path / "model")
    assert not any(name.startswith("valid") for name in results)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["results"] == results
    assert not (tmp_path / "model" / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run_with_what_to_do(text: Path, tmp_path: Path) -> None:
    train = changed(lr=1e6, optimizer="sgd", clip_norm=0.0, warmup=0).train
    network = LanguageModelSettings(cell="elman", nonlinearity="relu", hidden=8)
    with pytest.raises(RelmoError, match="lower --lr"):
        train_lm([str(text)], LMSettings(model=network, train=train), tmp_path / "model")
