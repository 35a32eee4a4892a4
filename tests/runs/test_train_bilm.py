"""Pre-training a bidirectional language model: it learns, survives kills to the bit, starts from others.

Processes are really killed; they are forked from a server that has imported everything already.
"""

import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.nn.softmax import FullSoftmax
from relmo.runs.folder import CHECKPOINT
from relmo.runs.progress import Reporter
from relmo.runs.run import read_metrics
from relmo.runs.train_bilm import train_bilm
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings, BiLMTrainSettings
from relmo.store.folder import read_tensors
from relmo.text.corpus import read_conllu
from relmo.training.loop import Plan, Step

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
MODEL: dict[str, Any] = {
    "filters": ("1x4", "2x4", "3x8"),
    "char_dim": 4,
    "hidden": 16,
    "projection": 8,
    "samples": 64,
    "max_characters": 12,
}
TRAIN: dict[str, Any] = {"batch": 8, "unroll": 8, "epochs": 1.0, "threads": 1, "device": "cpu", "log_every": 5}


def settings(*, text: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **train: Any) -> BiLMSettings:
    return BiLMSettings(
        text=BiLMTextSettings(**{"min_count": 2, "valid_fraction": 0.1} | (text or {})),
        model=BiLMModelSettings(**MODEL | (model or {})),
        train=BiLMTrainSettings(**TRAIN | train),
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few thousand words of prose, a line a sentence."""
    path = tmp_path_factory.mktemp("text") / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:20_000], encoding="utf-8")
    return path


class Recorder(Reporter):
    """Keeps what it is told; may end the run after a step, or look at the network after each."""

    def __init__(self, stop_after: int | None = None):
        self.plans: list[Plan] = []
        self.steps: list[int] = []
        self.messages: list[str] = []
        self.stop_after = stop_after

    def on_plan(self, plan: Plan) -> None:
        self.plans.append(plan)

    def on_step(self, step: Step, total: int) -> None:
        self.steps.append(step.number)
        if step.number == self.stop_after:
            raise InterruptedError

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "model.safetensors")[0]


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "model"
    train_bilm([str(text)], settings(epochs=2.0), out)
    return out


def test_a_run_ends_in_a_folder_that_scores_as_its_results_say(text: Path, trained: Path, tmp_path: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    results = config["results"]
    assert not (trained / "run").exists()
    lines = [line for line in text.read_text().splitlines() if line.strip()]
    model = BiLM.from_pretrained(trained)
    assert model.vocabulary is not None
    words = [model.tokens(line) for line in lines]
    cut = next(i for i in range(len(lines)) if sum(len(s) + 1 for s in words[:i]) == results["train_tokens"])
    (tmp_path / "valid.txt").write_text("\n".join(lines[cut:]) + "\n")
    score = model.evaluate(str(tmp_path / "valid.txt"))
    assert score.tokens == results["valid_tokens"] == sum(len(s) + 1 for s in words[cut:])
    assert 0.05 < score.tokens / (score.tokens + results["train_tokens"]) < 0.15
    assert score.perplexity == pytest.approx(results["valid_perplexity"], rel=1e-3)
    assert score.forward_perplexity == pytest.approx(results["valid_forward_perplexity"], rel=1e-3)
    assert score.backward_perplexity == pytest.approx(results["valid_backward_perplexity"], rel=1e-3)
    mean = (results["valid_forward_perplexity"] + results["valid_backward_perplexity"]) / 2
    assert results["valid_average_perplexity"] == pytest.approx(mean)
    assert results["valid_unknown_rate"] == score.unknown / score.tokens
    assert results["vocabulary"] == len(model.vocabulary) == config["vocab_size"]
    valid = [record["valid"] for record in read_metrics(trained / "metrics.jsonl") if "valid" in record]
    assert math.exp(min(valid)) == pytest.approx(results["valid_perplexity"])
    assert results["valid_perplexity"] < 0.5 * len(model.vocabulary)


@pytest.mark.parametrize(
    "kind", ["word", "tied", "full softmax", "narrow softmax", "own order", "stretches", "one layer, no projection"]
)
def test_every_kind_of_network_trains_saves_loads_and_scores(kind: str, text: Path, tmp_path: Path) -> None:
    words = BiLMModelSettings(input="word", hidden=16, projection=8, samples=64, tied=kind == "tied")
    chosen = {
        "word": dataclasses.replace(settings(), model=words),
        "tied": dataclasses.replace(settings(), model=words),
        "full softmax": settings(model={"softmax": "full", "samples": 8192}),
        "narrow softmax": settings(model={"softmax_dim": 4}),
        "own order": settings(shuffle=False),
        "stretches": settings(stretch=4),
        "one layer, no projection": settings(model={"layers": 1, "hidden": 8, "highway": 0}),
    }[kind]
    results = train_bilm([str(text)], chosen, tmp_path / "model")
    model = BiLM.from_pretrained(tmp_path / "model")
    assert model.settings == chosen
    assert results["valid_perplexity"] < 0.5 * results["vocabulary"]
    assert model.evaluate(str(text)).perplexity < 0.5 * results["vocabulary"]
    if kind == "tied":
        assert not any(name == "softmax.weight" for name in tensors_of(tmp_path / "model"))


def test_state_dropout_begins_that_share_of_the_streams_from_nothing() -> None:
    torch.manual_seed(1)
    network = BiLMNetwork(BiLMModelSettings(input="word", hidden=8, projection=4, dropout=0.0), vocab_size=9).train()
    network.softmax = FullSoftmax(4, 9)
    batch = 400
    targets = torch.randint(9, (2, 3, 1)).expand(2, 3, batch)
    window = BiWindow(torch.arange(9), targets.flip(1), targets)
    carry = tuple(3 * torch.randn(tensor.shape[1:]).expand(tensor.shape) for tensor in network.initial_state(batch))
    network.state_dropout = 0.0
    carried, fresh = (float(network.loss(window, state).mean.detach()) for state in (carry, None))
    assert abs(carried - fresh) > 0.005
    network.state_dropout = 0.25
    mixed = float(network.loss(window, carry).mean.detach())
    assert (mixed - carried) / (fresh - carried) == pytest.approx(0.25, abs=0.1)
    network.eval()
    assert float(network.loss(window, carry).mean.detach()) == pytest.approx(carried, abs=1e-5)


@pytest.mark.slow
def test_upstreams_smoke_test_ends_below_perplexity_20(data: Any, tmp_path: Path) -> None:
    corpus = str(data("parity/train/data.txt"))
    network = BiLMModelSettings(
        filters=("1x8", "2x8", "3x16", "4x32", "5x64"),
        activation="tanh",
        char_dim=4,
        max_characters=10,
        hidden=16,
        projection=8,
        samples=16,
        skip_connections=False,
    )
    chosen = BiLMSettings(
        text=BiLMTextSettings(vocabulary=str(data("parity/train/vocab.txt")), tokenizer="whitespace", valid=corpus),
        model=network,
        train=BiLMTrainSettings(
            batch=2, unroll=10, epochs=50, clip_norm=0.1, threads=1, device="cpu", validate_every=100, log_every=100
        ),
    )
    assert train_bilm([corpus], chosen, tmp_path / "model")["valid_perplexity"] < 20


@pytest.mark.slow
def test_real_text_is_predicted_much_better_than_by_how_frequent_words_are(data: Any, tmp_path: Path) -> None:
    """A small part of experiments/bilm_ewt.sh."""
    files = {}
    for name, count in (("train", 2000), ("dev", 500)):
        sentences = itertools.islice(read_conllu(data(f"tasks/pos_ud/en_ewt/en_ewt-ud-{name}.conllu")), count)
        files[name] = tmp_path / f"{name}.txt"
        files[name].write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
    chosen = BiLMSettings(
        text=BiLMTextSettings(min_count=3, tokenizer="whitespace", valid=str(files["dev"])),
        model=BiLMModelSettings(filters=("1x16", "2x16", "3x32"), hidden=64, projection=32, samples=256),
        train=BiLMTrainSettings(batch=16, unroll=20, epochs=2, threads=1, device="cpu"),
    )
    results = train_bilm([str(files["train"])], chosen, tmp_path / "model")
    vocabulary = BiLM.from_pretrained(tmp_path / "model").vocabulary
    assert vocabulary is not None
    ids = {
        name: [i for line in path.read_text().splitlines() for i in [*vocabulary.ids(line.split()), vocabulary.end]]
        for name, path in files.items()
    }
    counts = Counter(ids["train"])
    unigram = math.exp(-sum(math.log(counts[i] / len(ids["train"])) for i in ids["dev"]) / len(ids["dev"]))
    assert results["valid_tokens"] == len(ids["dev"])
    for direction in ("forward", "backward"):
        assert results[f"valid_{direction}_perplexity"] < 0.8 * unigram


def test_words_that_are_cut_are_reported_once_with_their_number(text: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    train_bilm([str(text)], settings(model={"max_characters": 10}), tmp_path / "m", dry_run=True, reporter=recorder)
    (message,) = recorder.messages
    long = {w for line in text.read_text().splitlines() for w in relmo_words(line) if len(w.encode()) > 8}
    assert message.startswith(f"{len(long)} distinct words have more than 8 bytes")


def relmo_words(line: str) -> list[str]:
    from relmo.text.tokenize import words

    return words(line)


def test_a_dry_run_tells_the_plan_and_leaves_nothing(text: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    assert train_bilm([str(text)], settings(), tmp_path / "model", dry_run=True, reporter=recorder) == {}
    assert recorder.plans[0].predictions > 3000
    assert recorder.steps == []
    assert list(tmp_path.iterdir()) == []


def test_a_text_shorter_than_one_window_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words\nand a few more\n")
    with pytest.raises(CorpusError, match="fewer than one window of 8 lanes x 8 steps"):
        train_bilm([str(tmp_path / "text.txt")], settings(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_settings_that_would_do_nothing_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="min_count has no effect"):
        train_bilm([str(text)], settings(text={"vocabulary": str(text)}), tmp_path / "model")
    with pytest.raises(SettingError, match="stretch has no effect"):
        train_bilm([str(text)], settings(shuffle=False, stretch=2), tmp_path)
    with pytest.raises(SettingError, match="softmax_first has no effect"):
        train_bilm([str(text)], settings(softmax_first=1.0), tmp_path / "model")
    with pytest.raises(SettingError, match="softmax_dim must be smaller than projection"):
        train_bilm([str(text)], settings(model={"softmax_dim": 8}), tmp_path / "model")
    words = dataclasses.replace(
        settings(), model=BiLMModelSettings(input="word", hidden=16, projection=8, tied=True, softmax_dim=4)
    )
    with pytest.raises(SettingError, match="softmax_dim and tied"):
        train_bilm([str(text)], words, tmp_path / "model")


def command(text: Path, out: Path) -> list[str]:
    options = (
        "--min-count 2 --valid-fraction 0.1 --filters 1x4,2x4,3x8 --char-dim 4 --hidden 16 --projection 8 --samples 64 "
        "--max-characters 12 --dropout 0.2 --batch 8 --unroll 8 --epochs 1.2 --validate-every 11 --log-every 3 "
        "--checkpoint-every 0 --threads 1 --device cpu --quiet"
    )
    return ["train", "bilm", str(text), "--out", str(out), *options.split()]


def wait_for_change(path: Path, process: multiprocessing.process.BaseProcess) -> None:
    """Until a file is written, or the process that is to write it ends."""

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    before = written()
    while written() == before and process.is_alive():
        process.join(0.005)


@pytest.mark.slow
def test_kills_at_random_moments_change_no_bit(text: Path, tmp_path: Path) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["relmo.runs.train_bilm", "relmo.cli.terminal", "torch._dynamo", "pytest"])
    whole, out = tmp_path / "whole" / "model", tmp_path / "killed" / "model"
    process = context.Process(target=main, args=(command(text, whole),))
    process.start()
    process.join()
    assert process.exitcode == 0
    chance, kills = random.Random(1), 0
    for further in [*(chance.uniform(0, 0.1) for _ in range(5)), None]:
        begun = (out / "run" / "run.json").exists()
        arguments = ["train", "bilm", "--out", str(out), "--resume", "--quiet"] if begun else command(text, out)
        process = context.Process(target=main, args=(arguments,))
        process.start()
        if further is not None:
            wait_for_change(out / CHECKPOINT, process)
            process.join(further)
            process.kill()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert process.exitcode == 0
    assert kills >= 1
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())
    expected, found = tensors_of(whole), tensors_of(out)
    assert expected.keys() == found.keys()
    for name in expected:
        assert torch.equal(expected[name], found[name]), name
    assert (out / "config.json").read_text() == (whole / "config.json").read_text()
    fixed = ("step", "epoch", "lr", "gradient_norm", "valid")
    records = [[[r.get(key) for key in fixed] for r in read_metrics(f / "metrics.jsonl")] for f in (whole, out)]
    assert records[0] == records[1]


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of quite another kind: arithmetic in words."""
    rng = random.Random(1)
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    path = tmp_path_factory.mktemp("other") / "sums.txt"
    rows = [[digits[a], "plus", digits[b], "is", digits[(a + b) % 10], "."] for a, b in rng_pairs(rng, 500)]
    path.write_text("\n".join(map(" ".join, rows)) + "\n")
    return path


def rng_pairs(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.randrange(10), rng.randrange(10)) for _ in range(count)]


def init_settings(init: Path, *, text: dict[str, Any] | None = None, **train: Any) -> BiLMSettings:
    """Nothing said of the model: its geometry is that of `init`."""
    return BiLMSettings(
        text=BiLMTextSettings(**{"valid_fraction": 0.1} | (text or {})),
        model=BiLMModelSettings(samples=64),
        train=BiLMTrainSettings(**TRAIN | {"init": str(init)} | train),
    )


def test_one_epoch_on_another_domain_lowers_its_perplexity_and_keeps_vocabulary_and_geometry(
    trained: Path, text: Path, other_text: Path, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed.txt"  # in words that the old vocabulary has
    mixed.write_text("\n".join(["said the queen to the king ."] * 400) + "\n")
    before = BiLM.from_pretrained(trained)
    results = train_bilm([str(mixed)], init_settings(trained), tmp_path / "model")
    after = BiLM.from_pretrained(tmp_path / "model")
    assert before.vocabulary is not None
    assert after.vocabulary is not None
    assert after.vocabulary.symbols == before.vocabulary.symbols
    assert after.settings.model == before.settings.model
    assert results["valid_perplexity"] < 0.2 * before.evaluate(str(mixed)).perplexity
    assert after.evaluate(str(mixed)).perplexity == pytest.approx(results["valid_perplexity"], rel=0.3)


def test_zero_steps_away_the_model_is_the_one_begun_from(trained: Path, text: Path, tmp_path: Path) -> None:
    """With a learning rate of next to nothing the scores are the old ones: all weights came along."""
    train_bilm([str(text)], init_settings(trained, lr=1e-12, epochs=0.01), tmp_path / "model")
    old, new = BiLM.from_pretrained(trained), BiLM.from_pretrained(tmp_path / "model")
    assert new.evaluate(str(text)).perplexity == pytest.approx(old.evaluate(str(text)).perplexity, rel=1e-6)


def test_a_new_vocabulary_keeps_the_rows_of_common_words_and_its_softmax_is_trained_alone_first(
    trained: Path, text: Path, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("<S>\n</S>\n<UNK>\n,\nthe\nnewword\nAlice\n")
    chosen = init_settings(trained, text={"vocabulary": str(words)}, softmax_first=0.5, epochs=0.5, lr=1e-12)
    train_bilm([str(text)], chosen, tmp_path / "rows")
    old, new = BiLM.from_pretrained(trained), BiLM.from_pretrained(tmp_path / "rows")
    assert old.vocabulary is not None
    assert new.vocabulary is not None
    assert old.network.softmax is not None
    assert new.network.softmax is not None
    for word in ("<S>", "the", "Alice"):
        a, b = old.vocabulary.index[word], new.vocabulary.index[word]
        assert torch.allclose(old.network.softmax.weight[a], new.network.softmax.weight[b], atol=1e-6)
        assert torch.allclose(old.network.softmax.bias[a], new.network.softmax.bias[b], atol=1e-6)
    frozen_then_free(trained, tmp_path, [str(text)], {"vocabulary": str(words)})


def frozen_then_free(init: Path, tmp_path: Path, files: list[str], text: dict[str, Any]) -> None:
    """In the softmax-only phase no other weight changes at all; afterwards they do."""
    start = relmo.load(init, device="cpu")
    assert isinstance(start, BiLM)
    old = {name: tensor.clone() for name, tensor in start.network.state_dict().items() if "softmax" not in name}
    alone = init_settings(init, text=text, softmax_first=1.0, epochs=1.0)
    train_bilm(files, alone, tmp_path / "alone")
    found = tensors_of(tmp_path / "alone")
    for name, tensor in old.items():
        assert torch.equal(found[name], tensor), name
    longer = init_settings(init, text=text | {"valid_fraction": 0.0}, softmax_first=0.5, epochs=1.0)
    train_bilm(files, longer, tmp_path / "longer")
    found = tensors_of(tmp_path / "longer")
    for name, tensor in old.items():
        if not name.startswith("encoder.cnn"):  # whose few filters may all be silent
            assert not torch.equal(found[name], tensor), name


def test_original_files_get_a_fresh_softmax_and_learn_their_own_kind_of_text(data: Any, tmp_path: Path) -> None:
    folder = data("parity/options.json").parent
    (tmp_path / "original").mkdir()
    for name in ("options.json", "lm_weights.hdf5"):
        (tmp_path / "original" / name).symlink_to(folder / name)
    corpus = tmp_path / "text.txt"
    sentences = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    corpus.write_text("\n".join(sentence for group in sentences for sentence in group) + "\n")
    frozen_then_free(tmp_path / "original", tmp_path, [str(corpus)], {"tokenizer": "whitespace"})
    chosen = init_settings(tmp_path / "original", text={"tokenizer": "whitespace"}, epochs=6.0, validate_every=2)
    train_bilm([str(corpus)], chosen, tmp_path / "model")
    valid = [r["valid"] for r in read_metrics(tmp_path / "model" / "metrics.jsonl") if "valid" in r]
    assert min(valid) < valid[0] - 0.5
    model = BiLM.from_pretrained(tmp_path / "model")
    with h5py.File(folder / "lm_weights.hdf5") as file:
        assert model.settings.model.hidden * 4 == file["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"].shape[0]


def test_settings_that_contradict_the_model_begun_from_are_errors_that_name_them(
    trained: Path, text: Path, tmp_path: Path
) -> None:
    chosen = init_settings(trained)
    for name, value in (("hidden", 32), ("filters", ("1x4", "2x4")), ("skip_connections", False)):
        wrong = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, **{name: value}))
        with pytest.raises(SettingError, match=rf"^{name} is .*geometry"):
            train_bilm([str(text)], wrong, tmp_path / "model")
    same = dataclasses.replace(chosen.model, hidden=16, filters=("1x4,2x4,3x8",), dropout=0.3, softmax="sampled")
    assert train_bilm([str(text)], dataclasses.replace(chosen, model=same), tmp_path / "model", dry_run=True) == {}


def test_only_a_bilm_can_be_begun_from(text: Path, tmp_path: Path) -> None:
    from relmo.runs.train_lm import train_lm
    from relmo.settings.lm import LanguageModelSettings, LMSettings
    from relmo.settings.sections import TrainSettings

    lm = LMSettings(
        model=LanguageModelSettings(hidden=8),
        train=TrainSettings(batch=4, unroll=8, epochs=0.01, threads=1, device="cpu"),
    )
    train_lm([str(text)], lm, tmp_path / "lm")
    with pytest.raises(ModelError, match="a bidirectional language model"):
        train_bilm([str(text)], init_settings(tmp_path / "lm"), tmp_path / "model")


def test_a_word_model_keeps_its_vocabulary(text: Path, tmp_path: Path) -> None:
    words = BiLMModelSettings(input="word", hidden=16, projection=8, samples=64)
    train_bilm([str(text)], dataclasses.replace(settings(epochs=0.2), model=words), tmp_path / "first")
    with pytest.raises(SettingError, match="its vocabulary is kept"):
        train_bilm([str(text)], init_settings(tmp_path / "first", text={"min_count": 3}), tmp_path / "second")
    train_bilm([str(text)], init_settings(tmp_path / "first", epochs=0.2), tmp_path / "second")
    first, second = ((tmp_path / name / "vocabulary.txt").read_text() for name in ("first", "second"))
    assert first == second


def test_a_run_begun_from_a_model_goes_on_without_it(trained: Path, text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in trained.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    chosen = init_settings(copy, text={"min_count": 3}, epochs=0.5, checkpoint_every=0.0)
    whole = train_bilm([str(text)], chosen, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train_bilm([str(text)], chosen, tmp_path / "model", reporter=Recorder(stop_after=4))
    for path in copy.iterdir():
        path.unlink()
    assert train_bilm([str(text)], chosen, tmp_path / "model", resume=True) == whole
    for name, tensor in tensors_of(tmp_path / "whole").items():
        assert torch.equal(tensors_of(tmp_path / "model")[name], tensor), name


@pytest.mark.slow
def test_a_taught_run_goes_on_to_the_same_weights_and_leaves_no_trace_of_its_teacher(
    trained: Path, text: Path, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"min_count": 1, "vocabulary": str(trained / "vocabulary.txt")}
    model = {"hidden": 12, "projection": 6, "filters": ("1x4", "2x4")}  # the teacher's filters are wider
    chosen = settings(text=own, model=model, epochs=0.5, checkpoint_every=0.0, teacher=str(trained), teacher_layers=0.5)
    whole = train_bilm([str(text)], chosen, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train_bilm([str(text)], chosen, tmp_path / "model", reporter=Recorder(stop_after=4))
    assert train_bilm([str(text)], chosen, tmp_path / "model", resume=True) == whole
    plain = dataclasses.replace(chosen, train=dataclasses.replace(chosen.train, teacher=None, teacher_layers=0.0))
    train_bilm([str(text)], plain, tmp_path / "plain")
    taught, alone = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "plain")
    assert taught.keys() == alone.keys()
    assert any(not torch.equal(taught[name], alone[name]) for name in taught)
    assert all(torch.equal(tensors_of(tmp_path / "model")[name], tensor) for name, tensor in taught.items())


@pytest.mark.parametrize(
    ("text_settings", "model", "message"),
    [({"min_count": 3}, {}, "vocabulary"), ({}, {"max_characters": 20}, "max_characters")],
)
def test_a_teacher_that_does_not_fit_is_refused(
    trained: Path, text: Path, tmp_path: Path, text_settings: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    own = text_settings or {"min_count": 1, "vocabulary": str(trained / "vocabulary.txt")}
    with pytest.raises(SettingError, match=message):
        train_bilm([str(text)], settings(text=own, model=model, teacher=str(trained)), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    process = subprocess.Popen(
        [sys.executable, "-m", "relmo", *command(text, out)], stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    while process.poll() is None and not (out / CHECKPOINT).exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == f"stopped; continue with: relmo train bilm --out {out} --resume\n"
