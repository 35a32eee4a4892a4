"""Small files that anyone may have written: what is wrong with one is said, and never takes long or much memory."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from relmo.config import build, parse_override, read_toml
from relmo.disk.files import (
    MAX_TOML_BYTES,
    is_file,
    parse_json,
    parse_toml,
    read_json,
    read_text_file,
    replace_nonfinite,
)
from relmo.errors import ModelError, SettingError
from relmo.settings.fields import parse_filters
from relmo.settings.lm import LMSettings


def test_only_an_ordinary_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    found = {name: is_file(tmp_path / name) for name in ("file", "link", "loop", "zero", "fifo", "nothing", "x" * 5000)}
    assert [name for name, there in found.items() if there] == ["file", "link"]
    assert not is_file("a\0b")


def test_json_of_a_folder_is_read_from_ordinary_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelError, match="regular file"):
        read_json(tmp_path / "fifo", "advice")
    with pytest.raises(ModelError, match="is missing"):
        read_json(tmp_path / "nothing", "advice")
    (tmp_path / "file").write_text('{"a": 1}')
    assert read_json(tmp_path / "file", "advice") == {"a": 1}


def test_of_a_device_no_more_is_read_than_a_file_may_have() -> None:
    with pytest.raises(ValueError, match="too large"):
        read_text_file("/dev/zero")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 5000, "too many digits"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 60 + "]" * 60, "nested too deeply"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested too deeply"),
        ("{", "line 1 column 2"),
    ],
    ids=["digits", "endless", "deep list", "deep object", "broken"],
)
def test_json_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_json_as_it_usually_is() -> None:
    value = {"a": [1, 2.5, None, {"b": ["c"]}], "d": "é"}
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "9" * 5000, "too many digits"),
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("a = " + "[" * 60 + "]" * 60, "nested too deeply"),
        (".".join("a" * 20_000) + " = 1", "too many dots"),
        ("#" * MAX_TOML_BYTES + "\n", "too large"),
        ("a = ", "Invalid value"),
    ],
    ids=["digits", "endless", "deep", "dots", "large", "broken"],
)
def test_settings_that_cannot_be_read_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(SettingError, match=rf"mine\.toml: cannot read settings: .*{message}"):
        read_toml(tmp_path / "mine.toml")


def test_dots_in_a_comment_are_no_key() -> None:
    assert parse_toml(f"# {'.' * 500}\na = 1\n") == {"a": 1}


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("train", "lr", float("inf"), "lr must be above 0 .* not inf"),
        ("train", "lr", 10**400, r"train\.lr must be above 0 .* not 1000"),
        ("train", "seed", 10**30, "seed must be from 0 to"),
        ("train", "seed", -1, "seed must be from 0 to"),
        ("train", "clip_norm", float("inf"), "clip_norm must be from .* not inf"),
        ("model", "forget_bias", float("-inf"), "forget_bias must be from .* not -inf"),
        ("model", "hidden", 16**5000, "hidden must be from .* not a int that is too large"),
        ("model", "cutoffs", [1] * 1001, "cutoffs must have at most 1000"),
        ("model", "cell", ["lstm"] * 2000, r"model\.cell must be one of lstm, .* not \['lstm', "),
        ("model", "residual", [[[]]] * 2000, r"model\.residual must be true or false, not \[\[\[\]\], "),
    ],
    ids=["inf", "float", "seed", "negative", "clip", "bias", "digits", "items", "choice", "list"],
)
def test_a_value_that_cannot_be_is_refused_by_the_setting_s_name(
    section: str, key: str, value: Any, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        build(LMSettings, {section: {key: value}}).check()


def test_true_is_no_number_among_the_choices_of_a_setting() -> None:
    from relmo.settings.tasks import ClassifierSettings

    assert build(ClassifierSettings, {"model": {"directions": 1}}).model.directions == 1
    for value in (True, 1.0):
        with pytest.raises(SettingError, match=r"model\.directions must be one of 1, 2"):
            build(ClassifierSettings, {"model": {"directions": value}})


def test_filters_are_not_without_number() -> None:
    for filters in (["1x1"] * 1001, ["1x1," * 1001]):
        with pytest.raises(SettingError, match="at most 1000"):
            parse_filters(filters)


def test_an_override_of_any_kind_is_a_string_where_it_is_no_toml() -> None:
    for value in ("9" * 5000, "[" * 5000, "x" * 5000):
        assert parse_override(f"text.valid={value}") == {"text": {"valid": value}}
    with pytest.raises(SettingError, match=r"section\.key=value.*xxx…"):
        parse_override("x" * 5000)


def test_what_json_cannot_say_is_null() -> None:
    value = {"a": [1.5, math.nan, (math.inf, 2)], "b": {"c": -math.inf, "d": "NaN"}}
    assert replace_nonfinite(value) == {"a": [1.5, None, [None, 2]], "b": {"c": None, "d": "NaN"}}
