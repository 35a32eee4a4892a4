"""The verbs end to end: train, evaluate, generate, info, on a real text with tiny settings."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import relmo
from relmo.cli import main
from relmo.disk.files import sha256
from relmo.models.vectors import WordVectors

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
FAST = "--batch 8 --unroll 16 --epochs 0.3 --threads 1 --device cpu"
MODELS = {
    "lstm": f"--cell lstm --hidden 24 --embedding 12 --lr 0.01 {FAST}",
    "gru, words": f"--cell gru --unit word --hidden 16 --tied --min-count 2 --lr 0.05 {FAST}",
    "feedforward": f"--cell feedforward --order 4 --hidden 16 --embedding 8 --lr 0.01 {FAST}",
    "ngram": "--cell ngram --order 4 --device cpu",
    "ngram, words": "--cell ngram --order 3 --unit word --min-count 2 --device cpu",
}

Relmo = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Relmo:
    """A function that runs a command, which must succeed. -> its standard output; standard error in `run.errors`."""

    def command(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        output, command.errors = capsys.readouterr()  # type: ignore[attr-defined]
        assert end.value.code == 0, command.errors  # type: ignore[attr-defined]
        return output

    return command


def errors(run: Relmo) -> str:
    return run.errors  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:30_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "more.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[30_000:34_000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def models(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a name in MODELS to its trained model."""
    folder = tmp_path_factory.mktemp("models")

    def find(name: str) -> Path:
        out = folder / name.replace(", ", "-")
        if not out.exists():
            with pytest.raises(SystemExit, match="0"):
                main(["train", "lm", str(text), "--out", str(out), "--quiet", *MODELS[name].split()])
        return out

    return find


def one_object(output: str) -> dict[str, Any]:
    assert output.count("\n") == 1
    value = json.loads(output)
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("name", MODELS)
def test_train_then_evaluate_then_generate_then_info(
    name: str, run: Relmo, models: Callable[[str], Path], held_out: Path
) -> None:
    model = models(name)
    config = json.loads((model / "config.json").read_text())
    guess = config["vocab_size"]  # the perplexity of one who knows nothing
    score = one_object(run("evaluate", model, held_out, "--json"))
    (row,) = score["files"]
    assert row["file"] == str(held_out)
    assert 1 < row["perplexity"] < guess / 2
    assert row["characters"] > 3000
    assert score["total"] == {key: value for key, value in row.items() if key != "file"}
    quiet = run("evaluate", model, held_out, "--quiet")
    assert float(quiet) == pytest.approx(row["perplexity"], abs=1e-4)
    assert f"{row['perplexity']:,.3f}" in run("evaluate", model, held_out)
    made = run("generate", model, "--prompt", "Alice", "--limit", 20, "--seed", 1)
    assert made.startswith("Alice")
    assert len(made) > len("Alice\n")
    facts = one_object(run("info", model, "--json"))
    assert facts["kind"] == "lm"
    assert facts["settings"]["cell"] == config["settings"]["model"]["cell"]
    assert facts["vocabulary"] == guess
    assert facts["results"]["valid_perplexity"] < guess
    assert facts["sha256"]["model.safetensors"] == sha256(model / "model.safetensors")
    assert run("info", model, "--quiet") == "lm\n"
    said = run("info", model)
    assert said.startswith(
        f"{model}: a language model (lm) with {facts['parameters']:,} parameters.\nIt was trained on "
    )
    assert "\nTry: relmo generate " in said
    assert str(facts["weights_digest"]) in said


@pytest.mark.parametrize("name", ["lstm", "ngram", "gru, words"])
def test_the_batch_of_an_evaluation_changes_nothing_but_speed(
    name: str, run: Relmo, models: Callable[[str], Path], text: Path
) -> None:
    found = [
        one_object(run("evaluate", models(name), text, "--json", "--batch", b))["total"]["perplexity"]
        for b in (1, 7, 64)
    ]
    assert found == pytest.approx([found[0]] * 3, rel=1e-4)


def test_several_files_are_scored_each_and_together(
    run: Relmo, models: Callable[[str], Path], text: Path, held_out: Path
) -> None:
    score = one_object(run("evaluate", models("ngram"), text, held_out, "--json"))
    assert [row["file"] for row in score["files"]] == [str(text), str(held_out)]
    for key in ("nll", "symbols", "characters", "unknown"):
        assert score["total"][key] == pytest.approx(sum(row[key] for row in score["files"]))
    assert "all" in run("evaluate", models("ngram"), text, held_out)
    assert len(run("evaluate", models("ngram"), text, held_out, "--quiet").splitlines()) == 2


def test_the_score_saved_with_a_model_is_what_evaluating_the_held_out_part_gives(
    run: Relmo, text: Path, held_out: Path, tmp_path: Path
) -> None:
    options = MODELS["lstm"].split()
    results = one_object(
        run(
            "train",
            "lm",
            text,
            "--valid",
            held_out,
            "--out",
            tmp_path / "m",
            "--json",
            *options,
            "--validate-every",
            10,
        )
    )
    score = one_object(run("evaluate", tmp_path / "m", held_out, "--json"))["total"]
    assert results["valid_perplexity"] == pytest.approx(score["perplexity"], rel=1e-5)
    assert results["valid_symbols"] == score["symbols"] == 4001
    assert results["train_symbols"] == 30_001
    best = min(json.loads(r).get("valid", 99) for r in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines())
    assert results["valid_nll_per_symbol"] == pytest.approx(best, rel=1e-5)


def test_the_same_seed_gives_the_same_text_and_another_another(run: Relmo, models: Callable[[str], Path]) -> None:
    texts = [run("generate", models("lstm"), "--limit", 40, "--seed", seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def texts_of(run: Relmo, *arguments: object) -> list[dict[str, Any]]:
    return one_object(run("generate", *arguments, "--json"))["texts"]


def test_greedy_is_temperature_0_is_top_k_1_and_needs_no_seed(run: Relmo, models: Callable[[str], Path]) -> None:
    base = (models("lstm"), "--prompt", "Alice", "--limit", 25)
    greedy = run("generate", *base, "--greedy")
    assert run("generate", *base, "--temperature", 0, "--seed", 5) == greedy
    assert run("generate", *base, "--top-k", 1, "--seed", 5) == greedy
    assert run("generate", *base, "--top-p", 1e-9, "--seed", 5) == greedy
    assert run("generate", *base, "--seed", 5) != greedy


def test_several_samples_come_side_by_side_each_with_the_prompt(run: Relmo, models: Callable[[str], Path]) -> None:
    base = (models("lstm"), "--prompt", "The Rabbit", "--limit", 15, "--samples", 3)
    found = texts_of(run, *base)
    assert len({text["text"] for text in found}) == 3
    for text in found:
        assert text["text"].startswith("The Rabbit")
        assert text["symbols"] <= 15
        assert text["log_prob"] < 0
    shown = run("generate", *base)
    assert shown.count("log-probability") == 3
    quiet = run("generate", *base, "--quiet")
    assert quiet == "".join(text["text"] + "\n" for text in found)


def test_beams_find_a_text_at_least_as_probable_as_greedy_choice(run: Relmo, models: Callable[[str], Path]) -> None:
    base = (models("ngram"), "--prompt", "Alice ", "--limit", 8)
    (greedy,) = texts_of(run, *base, "--greedy")
    found = texts_of(run, *base, "--beams", 8, "--samples", 4)
    scores = [text["log_prob"] for text in found]
    assert len(found) == 4
    assert scores == sorted(scores, reverse=True)
    assert scores[0] >= greedy["log_prob"]
    assert all(text["text"].startswith("Alice ") for text in found)
    assert run("generate", *base, "--beams", 8) == found[0]["text"] + "\n"


def test_word_models_keep_the_words_of_the_prompt(run: Relmo, models: Callable[[str], Path]) -> None:
    (text,) = texts_of(run, models("ngram, words"), "--prompt", "Alice was", "--limit", 10)
    assert text["text"].startswith("Alice was")
    assert "<unk>" not in text["text"]


def test_skipgram_trains_and_finds_neighbours(run: Relmo, tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    results = one_object(
        run("train", "skipgram", ALICE, "--out", out, "--dimensions", 16, "--epochs", 1, "--threads", 1, "--json")
    )
    assert results["words"] > 400
    vectors = relmo.load(out)
    assert isinstance(vectors, WordVectors)
    near = vectors.most_similar("alice", topn=5)
    assert len(near) == 5
    assert all(-1 <= cosine <= 1 and word != "alice" for word, cosine in near)
    facts = one_object(run("info", out, "--json"))
    assert facts["kind"] == "skipgram"
    assert facts["results"]["words"] == results["words"]
    assert (out / "vectors.txt").read_text().splitlines()[0] == f"{results['words']} 16"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """A function that puts bytes on standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


def test_standard_input_is_trained_on_and_scored_like_the_file(
    run: Relmo, typed: Callable[[bytes], None], text: Path, models: Callable[[str], Path], tmp_path: Path
) -> None:
    typed(text.read_bytes())
    run("train", "lm", "-", "--out", tmp_path / "m", "--quiet", *MODELS["ngram"].split())
    weights = "model.safetensors"
    assert (tmp_path / "m" / weights).read_bytes() == (models("ngram") / weights).read_bytes()
    typed(text.read_bytes())
    assert run("evaluate", models("ngram"), "-", "--quiet") == run("evaluate", models("ngram"), text, "--quiet")


def settings_of(folder: Path) -> dict[str, dict[str, Any]]:
    return json.loads((folder / "config.json").read_text())["settings"]


def test_flags_are_over_set_over_config_over_preset_over_defaults(run: Relmo, text: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[model]\nhidden = 10\nembedding = 6\ndropout = 0.3\n[train]\nlr = 0.1\nthreads = 1\n")
    layered = ("--preset", "char", "--config", config, "--set", "model.embedding=5", "--set", "model.dropout=0.2")
    flags = ("--dropout", 0.1, "--epochs", 0.01, "--batch", 4, "--unroll", 8, "--device", "cpu")
    run("train", "lm", text, "--out", tmp_path / "m", "--quiet", *layered, *flags)
    found = settings_of(tmp_path / "m")
    assert found["train"]["epochs"] == 0.01  # the flag
    assert found["model"]["dropout"] == 0.1  # the flag, over --set, the file and the preset
    assert found["model"]["embedding"] == 5  # --set, over the file
    assert found["model"]["hidden"] == 10  # the file, over the preset
    assert found["model"]["layers"] == 2  # the preset
    assert found["train"]["patience"] is None  # the default


def test_the_settings_saved_with_a_model_train_the_same_model_again(run: Relmo, text: Path, tmp_path: Path) -> None:
    run(
        "train", "lm", text, "--out", tmp_path / "one", "--quiet", "--set", "model.dropout=0.1", *MODELS["lstm"].split()
    )
    run("train", "lm", text, "--out", tmp_path / "two", "--quiet", "--config", tmp_path / "one" / "settings.toml")
    weights = "model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() == (tmp_path / "two" / weights).read_bytes()


def test_truth_values_and_lists_reach_the_model_from_every_layer(run: Relmo, text: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[text]\nlowercase = false\n[model]\nsoftmax = "adaptive"\ncutoffs = [5, 20]\nhidden = 16\n')
    fast = [*FAST.replace("0.3", "0.01").split(), "--checkpoint-every", "0"]
    run("train", "lm", text, "--out", tmp_path / "m", "--quiet", "--config", config, *fast)
    assert settings_of(tmp_path / "m")["model"]["cutoffs"] == [5, 20]
    words = ("--dimensions", 4, "--epochs", 0.1, "--threads", 1, "--quiet")
    run("train", "skipgram", text, "--out", tmp_path / "v", "--set", "text.lowercase=false", *words)
    assert settings_of(tmp_path / "v")["text"]["lowercase"] is False
    assert "Alice" in relmo.load(tmp_path / "v").vocabulary.index


def test_quiet_prints_nothing_and_otherwise_the_plan_stands_before_the_steps(
    run: Relmo, text: Path, tmp_path: Path
) -> None:
    options = [*MODELS["lstm"].split(), "--validate-every", "5"]
    assert run("train", "lm", text, "--out", tmp_path / "a", "--quiet", *options) == ""
    assert errors(run) == ""
    shown = run("train", "lm", text, "--out", tmp_path / "b", *options)
    assert "valid_perplexity" in shown
    assert f"saved to {tmp_path / 'b'}" in shown
    told = errors(run).splitlines()
    plan = next(i for i, line in enumerate(told) if line.split()[:1] == ["steps"])
    first = next(i for i, line in enumerate(told) if line.startswith("step "))
    assert plan < first
    assert any("parameters" in line for line in told[:first])
    assert any("memory" in line for line in told[:first])


def test_a_dry_run_prints_the_plan_and_leaves_nothing(run: Relmo, text: Path, tmp_path: Path) -> None:
    assert run("train", "lm", text, "--out", tmp_path / "m", "--dry-run", *MODELS["lstm"].split()) == ""
    assert "28,500" in errors(run)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("epochs", "few"), [(1, True), (100, False)])
def test_the_plan_says_when_there_are_few_steps(epochs: int, few: bool, run: Relmo, text: Path, tmp_path: Path) -> None:
    options = f"--hidden 8 --embedding 4 --batch 64 --unroll 16 --epochs {epochs} --device cpu --dry-run"
    run("train", "lm", text, "--out", tmp_path / "m", *options.split())
    assert ("which is few: it learns more with a smaller --batch or more --epochs" in errors(run)) == few


BILM = "--preset tiny --min-count 2 --batch 8 --unroll 8 --epochs 0.5 --threads 1 --device cpu"


@pytest.fixture(scope="module")
def bilm(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "bilm"
    with pytest.raises(SystemExit, match="0"):
        main(["train", "bilm", str(text), "--out", str(out), "--quiet", *BILM.split()])
    return out


def test_a_bilm_is_scored_in_both_directions_as_a_table_as_json_and_as_one_number(
    run: Relmo, bilm: Path, held_out: Path, text: Path
) -> None:
    score = one_object(run("evaluate", bilm, held_out, text, "--json"))
    row, other = score["files"]
    for name in ("perplexity", "forward_perplexity", "backward_perplexity", "average_perplexity"):
        assert 1 < row[name] < json.loads((bilm / "config.json").read_text())["vocab_size"]
    assert row["forward_perplexity"] != row["backward_perplexity"]
    assert score["total"]["tokens"] == row["tokens"] + other["tokens"]
    table = run("evaluate", bilm, held_out)
    header, figures = table.splitlines()
    assert header.split() == ["file", "words", "unknown", "forward", "backward", "joint", "average"]
    for name in ("perplexity", "forward_perplexity", "backward_perplexity", "average_perplexity"):
        assert f"{row[name]:,.3f}" in figures
    assert float(run("evaluate", bilm, held_out, "--quiet", "--batch", 1)) == pytest.approx(row["perplexity"], rel=1e-3)


@pytest.mark.parametrize("kind", ["bilm", "lstm", "gru, words", "feedforward", "ngram, words"])
def test_words_are_written_with_their_surprisal(
    run: Relmo, bilm: Path, models: Callable[[str], Path], kind: str, held_out: Path, tmp_path: Path
) -> None:
    model = bilm if kind == "bilm" else models(kind)
    score = one_object(run("evaluate", model, held_out, "--json"))["total"]
    sides = {"forward": "forward_nll", "backward": "backward_nll"} if kind == "bilm" else {"forward": "nll"}
    for direction, nll in sides.items():
        out = tmp_path / f"{direction}.tsv"
        options = ["--direction", direction, "--ends", "--out", out]
        totals = one_object(run("surprisal", model, held_out, "--json", *options))
        with out.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert sum(float(row["surprisal"]) for row in rows) * math.log(2) == pytest.approx(score[nll], rel=1e-4)
        assert totals["bits"] * math.log(2) == pytest.approx(score[nll], rel=1e-4)
        lines = held_out.read_text(encoding="utf-8").split("\n")
        words = [row for row in rows if row["end"] != row["start"]]
        assert all(lines[int(row["line"]) - 1][int(row["start"]) : int(row["end"])] == row["word"] for row in words)
    printed = run("surprisal", model, held_out).splitlines()
    assert len(printed) == totals["words"] + 1
