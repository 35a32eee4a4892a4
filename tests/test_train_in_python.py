"""`relmo.train` and the public names: Python trains what the command line trains, says what went wrong in Python's
words, and type checkers see what comes back."""

import inspect
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import relmo
from relmo.cli import main
from relmo.cli import train as train_app
from relmo.cli.train import RunOptions
from relmo.errors import RelmoError, SettingError
from relmo.runs.progress import TrainingReporter
from relmo.runs.settings import FLAG_SUBSTITUTES, flags_of, keyword_settings
from relmo.runs.train import in_python
from relmo.runs.train_lm import train_lm
from relmo.settings.kinds import KINDS, model_class, settings_class
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.settings.sections import TrainSettings
from support.tagging import conllu

ROOT = Path(__file__).resolve().parent.parent
TINY: dict[str, Any] = {"hidden": 6, "epochs": 2, "batch": 4, "unroll": 20, "device": "cpu"}
TINY_TAGGER: dict[str, Any] = {"hidden": 6, "word_dim": 5, "char_dim": 0, "epochs": 2, "batch": 8, "device": "cpu"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat.\na dog saw the cat.\n" * 40, encoding="utf-8")
    return path


def flags(settings: dict[str, Any]) -> list[str]:
    """Keywords as they are typed on the command line."""
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def command(*arguments: object) -> None:
    with suppress(SystemExit):
        main([*map(str, arguments), "--quiet"])


def config(folder: Path) -> dict[str, Any]:
    """config.json without what a clock says."""
    found = json.loads((folder / "config.json").read_text())
    found["results"].pop("seconds", None)
    return found


def assert_same_model(one: Path, other: Path) -> None:
    names = {path.name for path in one.iterdir() if path.is_file()}
    assert names == {path.name for path in other.iterdir() if path.is_file()}
    assert config(one) == config(other)
    for name in names - {"config.json", "metrics.jsonl", "README.md"}:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_flag_is_a_keyword_with_the_same_default(kind: str) -> None:
    run = {field.name for field in fields(RunOptions)}
    names = [argument.name for argument in train_app[kind].assemble_argument_collection()]
    typed = {name.removeprefix("--").replace("-", "_") for name in names if name.startswith("--")}
    assert typed - run == set(flags_of(kind))
    default = settings_class(kind)()
    assert keyword_settings(kind, [], {}, ()) == default
    assert keyword_settings(kind, [], {name: flag.default for name, flag in flags_of(kind).items()}, ()) == default


def test_the_options_of_a_run_are_keywords_with_the_same_defaults_or_have_another_name() -> None:
    python = inspect.signature(relmo.train).parameters
    for option in fields(RunOptions):
        if option.name not in FLAG_SUBSTITUTES:
            assert option.name == "out" or python[option.name].default == option.default


def test_python_trains_the_same_language_model_as_the_command_line(text: Path, tmp_path: Path) -> None:
    command("train", "lm", text, *flags(TINY), "--out", tmp_path / "cli" / "model")
    model = relmo.train("lm", text, out=str(tmp_path / "python" / "model"), progress=False, **TINY)
    assert_same_model(tmp_path / "cli" / "model", tmp_path / "python" / "model")
    assert isinstance(model, relmo.LanguageModel)
    assert model.results["valid_perplexity"] == config(tmp_path / "cli" / "model")["results"]["valid_perplexity"]


def test_python_trains_the_same_tagger_as_the_command_line(tmp_path: Path) -> None:
    train, valid = conllu(tmp_path / "train.conllu", 30), conllu(tmp_path / "dev.conllu", 8, seed=1)
    command("train", "tagger", train, "--valid", valid, *flags(TINY_TAGGER), "--out", tmp_path / "cli" / "model")
    out = tmp_path / "python" / "model"
    model = relmo.train("tagger", [train], valid=valid, out=out, progress=False, **TINY_TAGGER)
    assert_same_model(tmp_path / "cli" / "model", out)
    assert isinstance(model, relmo.Tagger)
    assert model.predict(["The dog"])[0].words == ["The", "dog"]


def test_a_preset_then_a_file_then_keywords_each_over_the_one_before(text: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nepochs = 1\nlr = 0.125\n[model]\nhidden = 5\n")
    own = {"hidden": np.int64(4), "min_count": 1, "patience": None, "batch": 4}
    model = relmo.train(
        "lm", [str(text)], preset="word", config=tmp_path / "mine.toml", out=tmp_path / "out", progress=False, **own
    )
    assert (model.settings.text.unit, model.settings.model.hidden) == ("word", 4)
    assert (model.settings.train.lr, model.settings.train.epochs) == (0.125, 1)


def test_a_folder_as_a_string_is_enough_for_the_plain_function(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = LMSettings(model=LanguageModelSettings(cell="ngram", order=2), train=TrainSettings(device="cpu"))
    train_lm("text.txt", settings, "out")
    assert relmo.load("out", kinds="lm").perplexity("the cat") > 1


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after this step."""

    def on_step(self: TrainingReporter, done: Any, total: int) -> None:
        if done.number == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingReporter, "on_step", on_step)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it


def test_ctrl_c_says_how_to_go_on_and_going_on_ends_in_the_same_model(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = tmp_path / "whole" / "model", tmp_path / "broken" / "model"
    relmo.train("lm", text, out=whole, progress=False, **TINY)
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupt_at(3, patch)
        with pytest.raises(KeyboardInterrupt) as stopped:
            relmo.train("lm", text, out=broken, **TINY)
    signal.signal(signal.SIGINT, before)
    assert str(stopped.value) == f'stopped; resume with relmo.train("lm", out="{broken}", resume=True)'
    with pytest.raises(SettingError, match=r"resume=True .* overwrite=True"):
        relmo.train("lm", text, out=broken, progress=False, **TINY)
    with pytest.raises(SettingError, match="is of kind 'lm', not bilm"):
        relmo.train("bilm", out=broken, progress=False, resume=True)
    relmo.train("lm", out=broken, progress=False, resume=True)
    assert_same_model(whole, broken)


def test_a_run_that_python_began_without_patience_goes_on_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, out = conllu(tmp_path / "train.conllu", 30), tmp_path / "model"
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupt_at(2, patch)
        with pytest.raises(KeyboardInterrupt):
            relmo.train("tagger", train, out=out, patience=None, **TINY_TAGGER)
    signal.signal(signal.SIGINT, before)
    command("train", "tagger", "--resume", "--out", out)
    assert relmo.Tagger.from_pretrained(out, device="cpu").settings.train.patience is None


def test_a_finished_model_is_replaced_only_where_that_is_asked_for(text: Path, tmp_path: Path) -> None:
    ngram: dict[str, Any] = {"cell": "ngram", "order": 2, "out": tmp_path / "out", "progress": False}
    relmo.train("lm", text, **ngram)
    with pytest.raises(SettingError, match=r"^out .*: holds a finished model; add overwrite=True to replace it"):
        relmo.train("lm", text, **ngram)
    with pytest.raises(SettingError, match=r"^resume=True: the run in .* is finished"):
        relmo.train("lm", text, resume=True, **ngram)
    again = relmo.train("lm", text, overwrite=True, **(ngram | {"order": 3}))
    assert again.settings.model.order == 3


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "kind": (("lmm", "text.txt"), {}, r"there is no kind 'lmm'; did you mean 'lm'\? \(lm, bilm, "),
    "no kind": ((3, "text.txt"), {}, "there is no kind 3"),
    "keyword": (("lm", "text.txt"), {"hiden": 8}, "'hiden' is not a setting of kind lm; did you mean 'hidden'"),
    "own keyword": (("lm", "text.txt"), {"prest": "word"}, "did you mean 'preset'"),
    "of another kind": (("lm", "text.txt"), {"elmo": "small"}, "`relmo train lm --help` lists all"),
    "quiet": (("lm", "text.txt"), {"quiet": True}, "progress=False"),
    "type": (("lm", "text.txt"), {"hidden": "many"}, "model.hidden must be a whole number, not 'many'"),
    "preset": (("lm", "text.txt"), {"preset": "wrd"}, "unknown preset 'wrd'; there are char, demo, word"),
    "text": (("lm", "The horse raced past the barn."), {}, "is a text"),
    "lines": (("lm", "one\ntwo"), {}, "is a text"),
    "sentences": (("bilm", ["text.txt", "He saw her and she saw him"]), {}, "is a text"),
    "text to validate on": (("lm", "text.txt"), {"valid": "a b c d e f"}, "is a text"),
    "no file": (("lm", "a name of many words.txt"), {}, "a name of many words.txt: no such file"),
    "number": (("lm", [3]), {}, "a file is given by its path, a str or a Path, not 3"),
    "bytes": (("lm", b"text.txt"), {}, "files must be a path or a list of paths, not b'text.txt'"),
    "nothing": (("lm",), {}, "no corpus: give one or more files"),
    "resume": (("lm",), {"resume": True}, "resume=True: there is no run in .*; start it without resume=True"),
    "out": (("lm", "text.txt"), {"out": 3}, "path of a folder, not 3"),
    "both": (("lm", "text.txt"), {"resume": True, "overwrite": True}, "resume=True and overwrite=True"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_line_in_words_of_python_and_leaves_nothing_behind(
    case: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, keywords, message = WRONG[case]
    with pytest.raises(RelmoError, match=message) as error:
        relmo.train(*arguments, **({"out": "out", "progress": False} | keywords))
    assert "--" not in str(error.value).replace("relmo train lm --help", "")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_flags_in_messages_become_keywords_but_not_those_of_a_quoted_command() -> None:
    assert in_python("lower --lr or --clip-norm, or add --tied; not --nothing", "lm") == (
        "lower lr or clip_norm, or add tied=True; not --nothing"
    )
    quoted = "make one: relmo train bilm TEXT --init MODEL --out DIR"
    assert in_python(quoted, "bilm") == quoted


def test_progress_is_plain_lines_in_a_script_and_nothing_where_it_is_not_wanted(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    relmo.train("lm", text, out=tmp_path / "one", progress=False, **TINY)
    assert capfd.readouterr() == ("", "")
    relmo.train("lm", text, out=tmp_path / "two", **TINY)
    out, errors = capfd.readouterr()
    assert out == ""
    assert "parameters" in errors
    assert "valid" in errors
    assert errors.endswith(f"saved to {tmp_path / 'two'}\n")


def test_a_notebook_gets_a_bar_without_widgets(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda bar, raw: shown.append(bar))

    def display(bar: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        shown.append(bar)
        return handle

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="a kernel"))
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[arg-type]
    relmo.train("lm", text, out=tmp_path / "out", **TINY)
    total = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert f'<progress value="{total}" max="{total}"' in shown[-1]["text/html"]
    assert shown[-1]["text/plain"].startswith(f"{total} of {total} steps")
    assert "saved to" in capsys.readouterr().out


def test_dir_lists_the_public_names_before_and_after_their_first_use() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import relmo, sys; print(*dir(relmo)); assert 'torch' not in sys.modules; relmo.load; print(*dir(relmo))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = done.stdout.splitlines()
    assert before == after
    names = {kind.model.split(":")[1] for kind in KINDS.values()}
    assert set(before.split()) == names | {"load", "train", "Elmo", "ScalarMix", "__version__"} | {
        "Cell",
        "Quantity",
        "register_cell",
    }
    assert all(getattr(relmo, name) for name in before.split())
    assert all(model_class(kind) is getattr(relmo, KINDS[kind].model.split(":")[1]) for kind in KINDS)


REVEALED = {
    "relmo.load()": "relmo.models.bilm.BiLM",
    'relmo.load("words")': "relmo.models.vectors.WordVectors",
    'relmo.load("m", kinds="lm")': "relmo.models.lm.LanguageModel",
    'relmo.load().embed(["a"])': "list[numpy.ndarray[",
    'relmo.train("lm", "a.txt", out="m", epochs=3)': "relmo.models.lm.LanguageModel",
    'relmo.train("tagger", ["a"], valid="b", out="m")': "relmo.tasks.tagger.Tagger",
    'relmo.BiLM.from_pretrained("small")': "relmo.models.bilm.BiLM",
}


def test_type_checkers_see_what_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="the types are checked with mypy")
    assert (Path(relmo.__file__).parent / "py.typed").exists()
    script = tmp_path / "script.py"
    script.write_text("\n".join(["import relmo", *(f"reveal_type({call})" for call in REVEALED)]) + "\n")
    done = subprocess.run(  # in the repository, whose cache `make test` has filled
        [sys.executable, "-m", "mypy", str(script)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    notes = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert len(notes) == len(REVEALED), done.stdout
    for note, kind in zip(notes, REVEALED.values(), strict=True):
        assert f'is "{kind}' in note


class Frame:
    """Stand-in for pandas.DataFrame with the methods that relmo uses; as there, iteration yields column names."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows, self.columns = rows, list(rows[0])

    def __iter__(self) -> Any:
        return iter(self.columns)

    def to_json(self, path: Any, **options: Any) -> None:
        assert options["orient"] == "records"
        assert options["lines"]
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")


TINY_CLASSIFIER = {"hidden": 4, "word_dim": 4, "char_dim": 0, "epochs": 2, "batch": 8, "device": "cpu"}
OPINIONS = [{"text": text, "label": label} for text, label in (("a good day", "yes"), ("a bad day", "no"))] * 10


@pytest.mark.parametrize("library", ["stand-in", "pandas"])
def test_a_data_frame_trains_what_its_table_file_trains(library: str, tmp_path: Path) -> None:
    frame = Frame(OPINIONS) if library == "stand-in" else pytest.importorskip("pandas").DataFrame(OPINIONS)
    out, options = tmp_path / "frame" / "out", {**TINY_CLASSIFIER, "progress": False}
    model = relmo.train("classifier", frame, valid=frame, out=out, **options)
    assert set(model.labels.symbols) == {"yes", "no"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in OPINIONS))
    same = relmo.train("classifier", table, valid=table, out=tmp_path / "same", **options)
    weights, expected = model.network.state_dict(), same.network.state_dict()
    assert all(weights[name].equal(expected[name]) for name in expected)


def test_a_run_on_a_data_frame_goes_on_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingReporter, "on_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            relmo.train("classifier", Frame(OPINIONS), out=out, checkpoint_every=0, **TINY_CLASSIFIER)
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(SettingError, match="holds a run"):
        relmo.train("classifier", Frame(OPINIONS[::-1]), out=out, progress=False, **TINY_CLASSIFIER)
    assert relmo.train("classifier", out=out, resume=True, progress=False).results["train_examples"] > 0
    assert list(tmp_path.iterdir()) == [out]


def test_language_models_do_not_learn_from_a_data_frame(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="DataFrame"):
        relmo.train("lm", Frame(OPINIONS), out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_data_frame_with_a_missing_label_says_its_row(tmp_path: Path) -> None:
    with pytest.raises(RelmoError, match=r"jsonl:21: .*label"):
        relmo.train("classifier", Frame([*OPINIONS, {"text": "so", "label": None}]), out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
