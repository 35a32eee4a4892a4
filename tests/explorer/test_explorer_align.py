"""Models that translate, in the explorer: what is answered of a source, of two models, and what a page of it holds."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_explorer_page import bundle_of

from relmo.cli import main
from relmo.cli.serve import open_session
from relmo.errors import ModelError, SettingError
from relmo.explorer.align import ALIGN_ENDPOINTS, AlignSession, find_differences, is_seq2seq
from relmo.explorer.page import frame
from relmo.explorer.session import Session
from relmo.tasks.seq2seq import Seq2Seq
from support.small_models import TEXT, language_model

Folders = tuple[Path, Path, Path]
SOURCE = "abcda"


@pytest.fixture(scope="module")
def session(translators: Folders) -> AlignSession:
    attentive, fixed, pairs = translators
    return AlignSession.open(str(attentive), str(pairs), companions=[str(fixed)], device="cpu")


def test_greedy_and_beams_are_those_of_predict_with_attention_and_chances_at_every_step(
    session: AlignSession, translators: Folders
) -> None:
    found = session.answer("align", {"source": SOURCE, "beams": "4"})
    assert found == json.loads(json.dumps(found))
    attentive, fixed = found["models"]
    assert [each["name"] for each in found["models"]] == [str(translators[0]), "none"]
    model = Seq2Seq.from_pretrained(translators[0], device="cpu")
    greedy, best = model.predict([SOURCE], beams=1)[0], model.predict([SOURCE], beams=4, best=4)[0]
    for shown, expected in zip(attentive["written"], [*greedy.candidates, *best.candidates], strict=True):
        assert shown["text"] == expected.text
        assert shown["units"] == [*expected.units, *([None] if expected.ended else [])]
        assert shown["score"] == pytest.approx(expected.score, abs=1e-3)
        weights = np.array(shown["attention"])
        np.testing.assert_allclose(weights, expected.attention[: len(weights)], atol=1e-3)  # type: ignore[index]
        taken = [[unit, p] for step in shown["steps"] for unit, p, chosen in step if chosen]
        assert [unit for unit, _ in taken] == shown["units"]
        assert np.log([p for _, p in taken]).sum() == pytest.approx(expected.log_prob, abs=0.1)
        for step in shown["steps"]:
            chances = [p for _, p, _ in step]
            assert chances == sorted(chances, reverse=True)
            assert sum(chances) == pytest.approx(1.0, abs=1e-3)  # there are not even ten
    assert attentive["source"] == list(SOURCE)
    assert fixed["attention"] == ""
    assert fixed["written"][0]["attention"] is None
    assert fixed["vector"] == 48  # h and c of 24 units


def test_of_two_models_the_one_with_attention_is_shown_and_a_source_opens_on_which_they_differ(
    session: AlignSession, translators: Folders
) -> None:
    about = session.answer("about", {"opening": "1"})
    assert [about["kind"], about["shown"], about["beside"]] == ["seq2seq", str(translators[0]), ["none"]]
    sources = [pair["source"] for pair in about["pairs"]]
    assert sources[:12] == sorted(sources[:12], key=len)
    assert all(pair["target"] == pair["source"][::-1] for pair in about["pairs"])
    (first,) = about["answers"].values()
    assert first["source"] == about["first"]
    assert first["source"] in sources
    assert [model["written"][0]["right"] for model in first["models"]] == [True, False]
    turned = AlignSession.open(str(translators[1]), str(translators[2]), companions=[str(translators[0])], device="cpu")
    assert [turned.name, turned.main_name, *turned.models][1:] == ["additive", "additive", str(translators[1])]


def test_one_of_several_models_stands_beside(session: AlignSession) -> None:
    attentive, fixed = session.models.values()
    several = AlignSession("mine", {"mine": attentive, "one": fixed, "two": attentive})
    assert several.answer("about", {})["beside"] == ["two", "one"]  # those with attention first
    for other in ("one", "two"):
        found = several.answer("align", {"source": SOURCE, "other": other})["models"]
        assert [model["name"] for model in found] == ["mine", other]


def test_examples_come_from_the_models_folder_or_its_validation_file_below_or_are_made_up(
    translators: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = AlignSession.open(str(translators[0]), device="cpu")  # its validation file is elsewhere
    assert [(pair.source, pair.targets) for pair in alone.pairs] == [
        ("".join(sorted("abcd", key=alone.initial_source.index)), [])
    ]
    assert alone.answer("align", {"source": alone.initial_source})["reference"] is None
    monkeypatch.chdir(translators[2].parent)
    assert len(AlignSession.open(str(translators[0]), device="cpu").pairs) == 12
    copy = shutil.copytree(translators[0], tmp_path / "copy")
    (copy / "examples.tsv").write_text("abc\tcba\n", encoding="utf-8")
    kept = AlignSession.open(str(copy), device="cpu")
    assert [pair.source for pair in kept.pairs] == ["abc"]
    assert kept.answer("align", {"source": "abc"})["reference"] == "cba"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "empty"),
        ({"source": " \n"}, "empty"),
        ({"source": "a" * 2001}, "2,001 characters"),
        ({"source": "a" * 161}, "161 units"),
        ({"source": "a", "beams": "0"}, "beams"),
        ({"source": "a", "beams": "²"}, "beams"),
        ({"source": "a", "beams": "9" * 5000}, "beams"),
        ({"source": "a", "other": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_answered_is_told_in_a_line(session: AlignSession, asked: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message) as raised:
        session.answer("align", asked)
    assert "\n" not in str(raised.value)


def test_symbols_that_are_unknown_are_named_and_any_text_is_answered(session: AlignSession) -> None:
    assert session.answer("align", {"source": "aZb"})["models"][0]["unknown"] == [1]
    for source in ("\0", "<b>", "e\u0301" * 20, "a" * 160, "</s>", "\u200b"):
        found = session.answer("align", {"source": source, "beams": "2"})
        assert all(len(text["steps"]) == len(text["units"]) for text in found["models"][0]["written"])
    with pytest.raises(SettingError, match="endpoint 'page'"):
        session.answer("page", {})


def test_differences_are_stretches_that_are_other_or_missing() -> None:
    assert find_differences("abxd", "abcd", by_character=True) == [
        ["same", "ab"],
        ["other", "x"],
        ["missing", "c"],
        ["same", "d"],
    ]
    assert find_differences("le chat", "le gros chat", by_character=False) == [
        ["same", "le"],
        ["missing", "gros"],
        ["same", "chat"],
    ]
    assert find_differences("", "", by_character=True) == []


def test_the_server_asks_and_refuses_work_of_language_models(session: AlignSession) -> None:
    from starlette.testclient import TestClient

    from relmo.explorer.server import Models, make_app

    def either(name: str) -> Any:
        if name == session.name:
            return session
        made = Session(language_model("lstm"), name)
        made.set_text("a text", TEXT)
        return made

    models = Models([session.name, "lstm"], either)
    with TestClient(make_app(models), base_url="http://127.0.0.1:8321", raise_server_exceptions=False) as client:
        assert client.get("/api/align", params={"source": "ab"}).json()["source"] == "ab"
        for what in {"page", "units", "gradient"} - {*ALIGN_ENDPOINTS}:
            assert client.get(f"/api/{what}", params={"text": "given"}).status_code == 400
        posts: list[tuple[str, dict[str, Any]]] = [
            ("/api/text", {"model": session.name, "text": "ab"}),
            ("/api/jobs", {"model": session.name, "what": "find", "text": "given"}),
        ]
        for path, given in posts:
            answer = client.post(path, content=json.dumps(given).encode())
            assert answer.status_code == 400
            assert "\n" not in answer.json()["error"]
        with pytest.raises(ModelError, match="is not a language model"):
            models.worker("lstm").other(session.name)


def test_the_command_writes_a_page_with_the_examples_and_refuses_what_does_not_go_with_it(
    translators: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attentive, fixed, pairs = map(str, translators)
    assert is_seq2seq(attentive)
    assert not is_seq2seq("prose")
    assert not is_seq2seq(str(tmp_path))
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit, match="0"):
        main(["explore", attentive, pairs, "--beside", fixed, "--export", str(page), "--device", "cpu"])
    assert "examples" in capsys.readouterr().err
    answers = bundle_of(page.read_text(encoding="utf-8"))["answers"]
    asked = [key for key in answers if key.startswith("align?")]
    assert len(asked) >= 12
    assert all([model["name"] for model in answers[key]["models"]] == [attentive, "none"] for key in asked)
    wrong = [["--beside", "prose"], ["--train", pairs], ["--figures", pairs], ["--data", str(tmp_path)]]
    for options in [*wrong, [str(tmp_path / "absent.tsv")]]:
        with pytest.raises(SystemExit, match="2"):
            main(["explore", attentive, *options, "--export", str(tmp_path / "none.html")])
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "none.html").exists()
    assert "align?" in frame(open_session(attentive, pairs, "cpu"))._repr_html_()
