"""Settings come in layers, unknown keys name the nearest, types are not bent, and what makes no sense is refused."""

import dataclasses
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from relmo.config import build, field_docs, parse_override, read_preset, read_toml, to_toml
from relmo.errors import SettingError
from relmo.settings.bounds import BOUNDS
from relmo.settings.kinds import KINDS, TASKS, check_settings, settings_class
from relmo.settings.lm import SOME_CELLS, LanguageModelSettings, LMSettings, TextSettings, check_lm
from relmo.settings.skipgram import (
    SkipgramModelSettings,
    SkipgramSettings,
    SkipgramTextSettings,
    SkipgramTrainSettings,
    check_skipgram,
)
from relmo.settings.task import TASK_BOUNDS
from relmo.settings.training import TrainSettings

SECTIONS = [
    TextSettings,
    LanguageModelSettings,
    TrainSettings,
    SkipgramTextSettings,
    SkipgramModelSettings,
    SkipgramTrainSettings,
]
TASK_SECTIONS = {
    field.type for kind in TASKS for field in dataclasses.fields(settings_class(kind)) if isinstance(field.type, type)
}
PRESETS = sorted(path.name for path in (resources.files("relmo") / "presets").iterdir())


def lm(**sections: dict[str, Any]) -> LMSettings:
    return build(LMSettings, sections)


def test_what_nobody_names_keeps_its_default() -> None:
    assert build(LMSettings) == LMSettings()
    assert build(LMSettings, {}, {"train": {}}) == LMSettings()


def test_each_layer_is_over_the_one_before() -> None:
    settings = build(
        LMSettings,
        {"model": {"hidden": 1, "layers": 1}, "train": {"lr": 1.0}},
        {"model": {"hidden": 2, "dropout": 0.2}},
        {"model": {"hidden": 3}},
    )
    assert settings.model == LanguageModelSettings(hidden=3, layers=1, dropout=0.2)
    assert settings.train == TrainSettings(lr=1.0)


@pytest.mark.parametrize(
    ("layer", "nearest"),
    [
        ({"model": {"hiden": 3}}, "model.hidden"),
        ({"train": {"clipnorm": 3}}, "train.clip_norm"),
        ({"model": {"lr": 3}}, "train.lr"),
        ({"train": {"vocab_size": 3}}, "text.vocabulary_size"),
        ({"hidden": 3}, "model.hidden"),
    ],
    ids=str,
)
def test_an_unknown_key_names_the_nearest(layer: dict[str, Any], nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"^mine.toml: unknown setting '.*'; did you mean '{nearest}'\?$"):
        build(LMSettings, layer, source="mine.toml")


@pytest.mark.parametrize(("section", "nearest"), [("modle", "model"), ("training", "train")])
def test_an_unknown_section_names_the_nearest_section(section: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=rf"section '{section}'; did you mean '{nearest}'\?$"):
        build(LMSettings, {section: {"lr": 3}})


def test_a_section_near_to_nothing_lists_the_sections() -> None:
    with pytest.raises(SettingError, match=r"section 'optimizer'; .*: model, text, train$"):
        build(LMSettings, {"optimizer": {"lr": 3}})


def test_a_section_without_settings_says_how_to_write_it() -> None:
    with pytest.raises(SettingError, match=r"write \[train\]"):
        build(LMSettings, {"train": 3})


def test_an_unknown_key_near_to_nothing_lists_those_of_its_section() -> None:
    with pytest.raises(SettingError, match=r"known settings: accumulate, .*, lr, .*, weight_decay$"):
        build(LMSettings, {"train": {"qqqqqqq": 1}})
    with pytest.raises(SettingError, match=r"known settings: model, text, train$"):
        build(LMSettings, {"qqqqqqq": 1})


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("train", "lr", "fast", "a number"),
        ("train", "lr", True, "a number"),
        ("train", "lr", None, "a number"),
        ("train", "batch", 3.0, "a whole number"),
        ("train", "batch", True, "a whole number"),
        ("train", "batch", "3", "a whole number"),
        ("model", "embedding", 3.5, "a whole number"),
        ("model", "tied", 1, "true or false"),
        ("model", "tied", "yes", "true or false"),
        ("model", "cutoffs", ["x"], "a whole number"),
        ("text", "vocabulary", 3, "a text"),
        ("model", "cell", "rnn", "one of lstm, gru, elman, ngram, feedforward"),
        ("model", "cell", ["lstm"], "one of lstm"),
    ],
)
def test_a_value_of_another_type_is_refused_with_both_named(section: str, key: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingError, match=rf"{section}\.{key} must be {expected}.* not ") as error:
        build(LMSettings, {section: {key: value}})
    assert str(value).strip("[]'") in str(error.value)


def test_an_integer_may_stand_for_a_float_and_one_number_for_a_list() -> None:
    settings = lm(train={"lr": 1}, model={"cutoffs": 5, "embedding": None})
    assert type(settings.train.lr) is float
    assert settings.model.cutoffs == (5,)
    assert settings.model.embedding is None
    assert lm(model={"cutoffs": [5, 9]}).model.cutoffs == (5, 9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.lr=0.1", {"train": {"lr": 0.1}}),
        ("train.lr = 1e-3", {"train": {"lr": 1e-3}}),
        ("model.tied=true", {"model": {"tied": True}}),
        ("model.cutoffs=[1, 2]", {"model": {"cutoffs": [1, 2]}}),
        ("model.cell=gru", {"model": {"cell": "gru"}}),
        ('model.cell="gru"', {"model": {"cell": "gru"}}),
        ("text.valid=a=b.txt", {"text": {"valid": "a=b.txt"}}),
        ("text.valid=", {"text": {"valid": ""}}),
    ],
)
def test_an_override_is_read_as_toml_or_as_a_plain_string(text: str, expected: dict[str, Any]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["", "lr", "lr=3", "train.lr", "=3"])
def test_an_override_without_section_or_value_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"section\.key=value"):
        parse_override(text)


TWISTED = LMSettings(
    text=TextSettings(unit="word", vocabulary='a "quoted"\\path\té.txt', valid_fraction=1e-7),
    model=LanguageModelSettings(tied=True, embedding=3, cutoffs=(2, 5), dropout=0.1 + 0.2),
    train=TrainSettings(patience=3, lr=1e-30, epochs=1e9, clip_norm=float("inf"), seed=-5),
)


@pytest.mark.parametrize("settings", [LMSettings(), SkipgramSettings(), TWISTED], ids=["lm", "skipgram", "twisted"])
def test_settings_come_back_from_the_toml_they_are_written_as(settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert build(type(settings), read_toml(path)) == settings


@hypothesis_settings(deadline=None, max_examples=30)
@given(vocabulary=st.text(st.characters(exclude_categories=["Cs"])), lr=st.floats(allow_nan=False))
def test_any_string_and_number_survives_toml(vocabulary: str, lr: float) -> None:
    settings = LMSettings(text=TextSettings(vocabulary=vocabulary), train=TrainSettings(lr=lr))
    assert build(LMSettings, tomllib.loads(to_toml(settings))) == settings


def test_every_setting_is_explained_in_the_toml() -> None:
    text = to_toml(LMSettings())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    for section in (TextSettings, LanguageModelSettings, TrainSettings):
        for name, documentation in field_docs(section).items():
            (at,) = (i for i, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{name} ="))
            comment = []
            while lines[at - 1].startswith("# ") and " =" not in lines[at - 1]:
                at -= 1
                comment.insert(0, lines[at].removeprefix("# "))
            assert " ".join(comment) == documentation


@pytest.mark.parametrize("section", [*SECTIONS, *sorted(TASK_SECTIONS, key=str)])
def test_every_setting_has_a_sentence_of_documentation(section: type) -> None:
    documentation = field_docs(section)
    for field in dataclasses.fields(section):
        assert documentation.get(field.name, "").strip().endswith("."), field.name
    assert documentation.keys() == {field.name for field in dataclasses.fields(section)}


def test_an_inherited_setting_keeps_its_documentation_unless_it_is_said_anew() -> None:
    assert field_docs(SkipgramTrainSettings)["seed"] == field_docs(TrainSettings)["seed"]
    assert field_docs(SkipgramTrainSettings)["batch"] != field_docs(TrainSettings)["batch"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_sections_of_a_kind_have_a_setting_of_the_same_name(kind: str) -> None:
    names = [f.name for section in dataclasses.fields(settings_class(kind)) for f in dataclasses.fields(section.type)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_pass_their_own_check(kind: str) -> None:
    check_settings(kind, settings_class(kind)())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_passes_its_check(name: str) -> None:
    kind, _, rest = name.removesuffix(".toml").partition("-")
    layer = read_preset(rest, kind)
    assert layer
    check_settings(kind, build(settings_class(kind), layer))


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(SettingError, match=r"unknown preset 'chars'; there are .*char, .*word"):
        read_preset("chars", "lm")


@pytest.mark.parametrize("content", [b"[train", b"\xff", b"a = 1\na = 2"])
def test_a_toml_file_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    for path in (tmp_path / "mine.toml", tmp_path / "none.toml", tmp_path):
        with pytest.raises(SettingError, match=f"^{path}: cannot read settings"):
            read_toml(path)


OTHER: dict[str, Any] = {
    "layers": 2,
    "projection": 4,
    "nonlinearity": "relu",
    "forget_bias": 0.0,
    "residual": True,
    "order": 3,
    "word_dropout": 0.1,
    "weight_drop": 0.1,
    "variational": True,
    "tied": True,
    "hidden": 8,
    "embedding": 8,
    "dropout": 0.1,
    "output_dropout": 0.1,
    "input_dropout": 0.1,
    "softmax": "sampled",
    "cutoffs": [3],
    "samples": 9,
}
CELLS = ("lstm", "gru", "elman", "ngram", "feedforward")


@pytest.mark.parametrize("name", SOME_CELLS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_setting_without_a_meaning_for_the_cell_is_refused(name: str, cell: str) -> None:
    model = {"cell": cell, name: OTHER[name]}
    model |= {"cutoffs": {"softmax": "adaptive"}, "samples": {"softmax": "sampled"}}.get(name, {})
    if cell in SOME_CELLS[name]:
        check_lm(lm(model=model))
    else:
        with pytest.raises(SettingError, match="has no meaning for cell " + cell):
            check_lm(lm(model=model))


def test_every_setting_of_the_network_says_for_which_cells_it_is() -> None:
    assert SOME_CELLS.keys() | {"cell"} == {field.name for field in dataclasses.fields(LanguageModelSettings)}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_number_out_of_its_bounds_is_refused(name: str) -> None:
    kind, section = next(
        (kind, section.name)
        for kind in KINDS
        for section in dataclasses.fields(settings_class(kind))
        if any(name == field.name for field in dataclasses.fields(section.type))
    )
    cls = settings_class(kind)
    for bad in (BOUNDS[name][0] - 1, BOUNDS[name][1] * 2 + 1):
        value = bad if "float" in str(dataclass_type(cls, section, name)) else int(bad)
        with pytest.raises(SettingError, match=f"{name} must be (from .* to|above 0 and at most) .*, not"):
            check_settings(kind, build(cls, {section: {name: value}}))


def dataclass_type(cls: type, section: str, name: str) -> Any:
    (kind,) = (s.type for s in dataclasses.fields(cls) if s.name == section)
    (declared,) = (f.type for f in dataclasses.fields(kind) if f.name == name)
    return declared


def test_every_number_has_bounds() -> None:
    fields = [field for section in SECTIONS for field in dataclasses.fields(section)]
    numbers = {f.name for f in fields if f.type in (int, float, int | None, float | None)}
    assert numbers <= BOUNDS.keys()
    fields = [field for section in TASK_SECTIONS for field in dataclasses.fields(section)]
    numbers = {f.name for f in fields if f.type in (int, float, int | None, float | None)}
    assert numbers <= TASK_BOUNDS.keys()


def test_a_task_s_numbers_are_checked_by_its_own_bounds() -> None:
    for kind in TASKS:
        for section, name in (
            ("input", "elmo_dropout"),
            ("input", "word_dim"),
            ("train", "seeds"),
            ("model", "hidden"),
        ):
            with pytest.raises(SettingError, match=f"{name} must be from"):
                check_settings(kind, build(settings_class(kind), {section: {name: -1}}))


def test_a_number_that_is_not_finite_is_refused() -> None:
    for name in ("lr", "epochs", "clip_norm", "checkpoint_every", "weight_decay"):
        with pytest.raises(SettingError, match=f"{name} must be (from|above) 0"):
            check_lm(lm(train={name: float("nan")}))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"tied": True, "softmax": "adaptive"}}, "tied does not go with softmax adaptive"),
        ({"model": {"cutoffs": [3]}}, "cutoffs is for softmax adaptive only"),
        ({"model": {"softmax": "adaptive", "cutoffs": [3, 3]}}, "cutoffs must rise"),
        ({"model": {"softmax": "adaptive", "cutoffs": [5, 3]}}, "cutoffs must rise"),
        ({"model": {"softmax": "adaptive", "cutoffs": [0, 3]}}, "cutoffs must rise"),
        ({"model": {"projection": 512, "hidden": 512}}, "projection 512 must be smaller than hidden 512"),
        ({"model": {"cell": "feedforward", "order": 1}}, "order must be 2 or more"),
        ({"text": {"valid_fraction": 0.5, "test_fraction": 0.5}}, "leave nothing to train on"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_lm(lm(**sections))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"text": {"unit": "char"}}, "unit must be word"),
        ({"text": {"test_fraction": 0.1}}, "test_fraction has no meaning"),
        ({"train": {"optimizer": "adam"}}, "takes no sparse gradients"),
        ({"train": {"clip_norm": 1.0}}, "clip_norm must be 0"),
        ({"train": {"momentum": 0.9}}, "momentum must be 0"),
        ({"model": {"window": 0}}, "window must be from"),
    ],
)
def test_skipgram_refuses_what_it_cannot_do(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_skipgram(build(SkipgramSettings, sections))


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"cell": "ngram"}, "train": {"lr": 0.1}},
        {"model": {"cell": "ngram"}, "train": {"epochs": 3.0}},
        {"text": {"unit": "char", "tokenizer": "whitespace"}},
        {"model": {"softmax": "full", "samples": 100}},
        {"train": {"optimizer": "adamw", "momentum": 0.9}},
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match="has no meaning for"):
        check_lm(build(LMSettings, settings))


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_come_back_from_a_note_as_they_were(kind: str) -> None:
    """A run that was begun with defaults alone goes on to the same bytes: 5 epochs must not become 5.0."""
    default = settings_class(kind)()
    again = build(type(default), json.loads(json.dumps(dataclasses.asdict(default))), source="a note")
    assert json.dumps(dataclasses.asdict(again)) == json.dumps(dataclasses.asdict(default))


def test_the_url_of_a_settings_file_keeps_its_slashes_in_the_message() -> None:
    with pytest.raises(SettingError, match=r"^https://example.org/a.toml: .*does not download"):
        read_toml(Path("https://example.org/a.toml"))
