"""Settings come in layers, unknown keys name the nearest, types are not bent, and what makes no sense is refused."""

import dataclasses
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Meta

from relmo.config import build, field_docs, parse_override, read_preset, read_toml, to_toml
from relmo.errors import SettingError
from relmo.settings.bilm import BiLMTrainSettings
from relmo.settings.fields import Only, SettingsSection, setting_fields
from relmo.settings.kinds import KINDS, settings_class
from relmo.settings.lm import (
    LanguageModelSettings,
    LMSettings,
    SkipgramSettings,
    SkipgramTrainSettings,
    TextSettings,
)
from relmo.settings.sections import TaskTrainSettings, TrainSettings

SECTIONS = sorted({field.type for kind in KINDS for field in dataclasses.fields(settings_class(kind))}, key=str)
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
    with pytest.raises(SettingError, match=rf"^mine.toml: .*'{nearest}'"):
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
        ("text", "vocabulary", 3, "a string"),
        ("model", "cell", "rnn", "one of lstm, gru, elman"),
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
    train=TrainSettings(patience=3, lr=1e-12, epochs=1e9, clip_norm=1e-300, seed=1 << 62),
)


@pytest.mark.parametrize("settings", [LMSettings(), SkipgramSettings(), TWISTED], ids=["lm", "skipgram", "twisted"])
def test_settings_come_back_from_the_toml_they_are_written_as(settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert build(type(settings), read_toml(path)) == settings


@hypothesis_settings(deadline=None, max_examples=30)
@given(vocabulary=st.text(st.characters(exclude_categories=["Cs"])), lr=st.floats(1e-12, 1e6))
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


@pytest.mark.parametrize("section", SECTIONS)
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
    settings_class(kind)().check()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_passes_its_check(name: str) -> None:
    kind, _, rest = name.removesuffix(".toml").partition("-")
    layer = read_preset(rest, kind)
    assert layer
    build(settings_class(kind), layer).check()


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
    "activation_penalty": 2.0,
    "temporal_penalty": 1.0,
    "tied": True,
    "hidden": 8,
    "last_hidden": 6,
    "embedding": 8,
    "dropout": 0.1,
    "output_dropout": 0.1,
    "input_dropout": 0.1,
    "softmax": "sampled",
    "cutoffs": [3],
    "samples": 9,
    "mixtures": 3,
    "mixture_dropout": 0.1,
}
CELLS = ("lstm", "gru", "elman", "ngram", "feedforward")


def cells_of(name: str) -> tuple[str, ...]:
    conditions = setting_fields(LanguageModelSettings)[name].conditions
    cells = next(condition.conditions["cell"] for condition in conditions if "cell" in condition.conditions)
    return cells() if callable(cells) else cells


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("cell", CELLS)
def test_a_setting_without_an_effect_for_the_cell_is_refused(name: str, cell: str) -> None:
    model = {"cell": cell, name: OTHER[name]}
    layers = {"cutoffs": "adaptive", "samples": "sampled", "mixtures": "mixture", "mixture_dropout": "mixture"}
    model |= {"softmax": layers[name]} if name in layers else {}
    if cell in cells_of(name):
        lm(model=model).check()
    else:
        with pytest.raises(SettingError, match="has no effect with cell " + cell):
            lm(model=model).check()


@pytest.mark.parametrize(
    ("cell", "options", "token"),
    [
        ("lstm", ["peephole=true,coupled=true"], None),
        ("lstm", ["peephole=1"], "peephole"),
        ("lstm", ["forget_bias=2"], "setting of its own"),
        ("gru", ["peephole=true"], "no options"),
        ("elman", ["heads=2"], "heads"),
        ("ngram", ["peephole=true"], "no effect"),
    ],
)
def test_options_of_a_cell_are_checked(cell: str, options: list[str], token: str | None) -> None:
    settings = lm(model={"cell": cell, "cell_options": options})
    if token is None:
        settings.check()
        return
    with pytest.raises(SettingError, match=token):
        settings.check()


def test_every_setting_of_the_network_says_for_which_cells_it_is() -> None:
    assert OTHER.keys() | {"cell", "cell_options"} == {
        field.name for field in dataclasses.fields(LanguageModelSettings)
    }


def bounds_of(hint: Any) -> Meta | None:
    """The bounds of a setting that is a number."""
    metas = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Meta) and extra.ge is not None]
    inner = [bounds for option in get_args(hint) if (bounds := bounds_of(option)) is not None]
    return next(iter([*metas, *inner]), None)


NUMBERS = [
    (kind, section.name, name, bounds_of(declared.hint), "float" in str(declared.hint))
    for kind in KINDS
    for section in dataclasses.fields(settings_class(kind))
    for name, declared in setting_fields(section.type).items()
    if "Literal" not in str(declared.hint) and ("int" in str(declared.hint) or "float" in str(declared.hint))
]


def test_every_number_has_bounds() -> None:
    assert len(NUMBERS) > 200
    assert {(section, name) for _, section, name, bounds, _ in NUMBERS if bounds is None} == {("model", "cutoffs")}


@pytest.mark.parametrize(("kind", "section", "name", "bounds", "is_float"), NUMBERS)
def test_a_number_out_of_its_bounds_is_refused(
    kind: str, section: str, name: str, bounds: Meta | None, is_float: bool
) -> None:
    if bounds is None:
        return
    high = bounds.lt if bounds.le is None else bounds.le
    for number in (bounds.ge - 1, high * 2 + 1):
        value = float(number) if is_float else int(number)
        with pytest.raises(SettingError, match=f"{section}.{name} must be (from .* to|above 0 and at most) .*, not"):
            build(settings_class(kind), {section: {name: value}})
        default = settings_class(kind)()
        changed = dataclasses.replace(getattr(default, section), **{name: value})
        with pytest.raises(SettingError, match=f"^{name} must be"):
            dataclasses.replace(default, **{section: changed}).check()


@pytest.mark.parametrize("section", SECTIONS)
def test_conditions_name_settings_and_values_that_exist(section: type) -> None:
    declared = setting_fields(section)
    for name, field in declared.items():
        for condition in field.conditions:
            for other, allowed in condition.conditions.items():
                assert other in declared, (name, other)
                if isinstance(allowed, tuple):
                    assert set(allowed) & set(literals(declared[other].hint)), (name, other)


def literals(hint: Any) -> list[Any]:
    options = get_args(hint)
    return [value for option in options for value in literals(option)] if options else [hint]


def test_conditions_are_checked_in_any_section() -> None:
    class Example(SettingsSection):
        mode: Literal["a", "b", "c"] = "a"
        size: int = 0
        depth: Annotated[int, Only(mode=("a", "b"))] = 1
        width: Annotated[int, Only(size="enabled")] = 1

    Example(mode="b", depth=2).check()
    Example(size=1, width=2).check()
    with pytest.raises(SettingError, match=r"depth has no effect with mode c \(only with mode a, b\)"):
        Example(mode="c", depth=2).check()
    with pytest.raises(SettingError, match="width has no effect without size"):
        Example(width=2).check()


def test_a_number_that_is_not_finite_is_refused() -> None:
    for name in ("lr", "epochs", "clip_norm", "checkpoint_every", "weight_decay"):
        with pytest.raises(SettingError, match=f"{name} must be (from|above) 0"):
            lm(train={name: float("nan")}).check()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"tied": True, "softmax": "adaptive"}}, "tied and softmax adaptive"),
        ({"model": {"cutoffs": [3]}}, "cutoffs has no effect with softmax full"),
        ({"model": {"softmax": "adaptive", "cutoffs": [3, 3]}}, "cutoffs must increase"),
        ({"model": {"softmax": "adaptive", "cutoffs": [5, 3]}}, "cutoffs must increase"),
        ({"model": {"softmax": "adaptive", "cutoffs": [0, 3]}}, "cutoffs must increase"),
        ({"model": {"projection": 512, "hidden": 512}}, "projection 512 must be smaller than hidden 512"),
        ({"model": {"cell": "feedforward", "order": 1}}, "order must be 2 or more"),
        ({"text": {"valid_fraction": 0.5, "test_fraction": 0.5}}, "leave nothing to train on"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        lm(**sections).check()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"text": {"unit": "char"}}, "unit must be one of word"),
        ({"text": {"test_fraction": 0.1}}, "test_fraction has no effect"),
        ({"train": {"optimizer": "adam"}}, "optimizer must be one of sgd, adagrad"),
        ({"train": {"clip_norm": 1.0}}, "clip_norm must be 0"),
        ({"train": {"momentum": 0.9}}, "momentum has no effect"),
        ({"model": {"window": 0}}, "window must be from"),
    ],
)
def test_skipgram_refuses_what_it_cannot_do(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(SkipgramSettings, sections).check()


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
    with pytest.raises(SettingError, match="has no effect"):
        build(LMSettings, settings).check()


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_come_back_from_a_note_as_they_were(kind: str) -> None:
    """A run that was begun with defaults alone goes on to the same bytes: 5 epochs must not become 5.0."""
    default = settings_class(kind)()
    again = build(type(default), json.loads(json.dumps(dataclasses.asdict(default))), source="a note")
    assert json.dumps(dataclasses.asdict(again)) == json.dumps(dataclasses.asdict(default))


def test_the_url_of_a_settings_file_keeps_its_slashes_in_the_message() -> None:
    with pytest.raises(SettingError, match=r"^https://example.org/a.toml: .*does not download"):
        read_toml(Path("https://example.org/a.toml"))


@pytest.mark.parametrize("settings", [SkipgramTrainSettings, BiLMTrainSettings, TaskTrainSettings])
def test_only_language_models_vary_their_windows(settings: type[TrainSettings]) -> None:
    TrainSettings(vary_unroll=True).check()
    with pytest.raises(SettingError, match="vary_unroll has no effect for"):
        settings(vary_unroll=True).check()
