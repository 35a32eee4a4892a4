"""Test suites of SyntaxGym: formulas, joined regions, circuits, and what is said of broken files."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relmo.errors import CorpusError
from relmo.text.suites import Region, SuiteCondition, evaluate_formula, read_suite
from support.suites import make_suite, write_suite

VALUES = {("1", "a"): np.array([1.0, 5.0]), ("2", "a"): np.array([3.0, 3.0]), ("1", "b-c_d"): np.array([2.0, 2.0])}


def look_up(region: str, condition: str) -> np.ndarray:
    if region == "*":
        return np.sum([value for (_, name), value in VALUES.items() if name == condition], axis=0)
    return VALUES[region, condition]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("(1;%a%) < (2;%a%)", [True, False]),
        ("( 1 ; %a% )>(1;%b-c_d%)", [False, True]),
        ("(*;%a%) = 8", [False, True]),
        ("(1;%a%) = 1.0009", [True, False]),
        ("(1;%a%) = 1.002", [False, False]),
        ("(2;%a%) - (1;%a%) - (1;%b-c_d%) < 1", [True, True]),  # from the left: 0 and -4
        ("(2;%a%) - [(1;%a%) - (1;%b-c_d%)] < 1", [False, True]),  # 4 and 0
        ("10 - 2 + 3 > 10", [True, True]),
        ("(1;%a%) > -1 + .5", [True, True]),
        ("1 < 2 | 1 > 2 & 1 > 2", [True, True]),  # & is tighter than |
        ("[1 < 2 | 1 > 2] & (1;%a%) > 2", [False, True]),
        ("([((1;%a%))] > 2)", [False, True]),
        ("[(1;%a%)<(2;%a%)]&[[(1;%a%)-(2;%a%)]<[(1;%b-c_d%)-1]]", [True, False]),
    ],
)
def test_values_of_formulas(formula: str, expected: list[bool]) -> None:
    assert np.broadcast_to(evaluate_formula(formula, look_up), 2).tolist() == expected


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "(1;%a%)",
        "(1;%a%) + 2",
        "(1;%a%) < ",
        "(1;%a%) < 2 < 3",
        "(1;%a%) & 1 < 2",
        "(1 < 2) + 1 > 0",
        "(1;%a%) < 2)",
        "[(1;%a%) < 2)",
        "[(1;%a%) < 2",
        "(1;a) < 2",
        "(x;%a%) < 2",
        "1 < 2 1 < 2",
        "1 * 2 < 3",
        "__import__('os') < 2",
        "- (1 < 2) < 1",
        "1 < " + "-" * 5000 + "1",
        "(" * 5000 + "1 < 2" + ")" * 5000,
    ],
)
def test_malformed_formulas_are_refused(formula: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        evaluate_formula(formula, look_up)


def test_regions_are_joined_by_spaces_but_not_before_punctuation() -> None:
    texts = ["", "As  the boy", " left ", "", ", the girl", "does", "n't cry", "-", "'quietly'", "."]
    condition = SuiteCondition("a", [Region(i, text) for i, text in enumerate(texts)])
    text, starts = condition.join(attach=True)
    assert text == "As the boy left, the girl doesn't cry - 'quietly'."
    assert condition.join(attach=False)[0] == "As the boy left , the girl does n't cry - 'quietly' ."
    for begin, content in zip(starts, texts, strict=True):
        assert text[begin:].startswith(" ".join(content.split()))


def test_a_suite_is_read_with_its_circuit(tmp_path: Path) -> None:
    suite = read_suite(write_suite(tmp_path / "a.json"))
    assert (suite.meta.name, suite.circuit, len(suite.items), len(suite.predictions)) == (
        "number_test",
        "Agreement",
        3,
        2,
    )
    assert suite.items[1].conditions[2].regions[3].content == ", the yak ."
    unnamed = read_suite(write_suite(tmp_path / "npz_mine.json", meta={}))
    assert (unnamed.meta.name, unnamed.circuit, unnamed.meta.metric) == ("npz_mine", "Garden-Path Effects", "sum")
    circuits = {
        "Agreement": "number_orc number_prep number_src",
        "Licensing": "npi_orc_any npi_orc_ever npi_src_any npi_src_ever reflexive_orc_fem reflexive_orc_masc "
        "reflexive_prep_fem reflexive_prep_masc reflexive_src_fem reflexive_src_masc",
        "Garden-Path Effects": "mvrr mvrr_mod nn-nv-rpl npz_ambig npz_ambig_mod npz_obj npz_obj_mod",
        "Gross Syntactic State": "subordination subordination_orc-orc subordination_pp-pp subordination_src-src",
        "Center Embedding": "center_embed center_embed_mod",
        "Long-Distance Dependencies": "cleft cleft_modifier fgd-embed3 fgd-embed4 fgd_hierarchy fgd_object fgd_pp "
        "fgd_subject",
        "other": "agreement mine",
    }
    for circuit, names in circuits.items():
        for name in names.split():
            suite.meta.name = name
            assert suite.circuit == circuit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": []}, "items"),
        ({"predictions": []}, "predictions"),
        ({"predictions": [{"formula": "(2;%sing%) <"}]}, "expected a region or a number before 'the end'"),
        ({"predictions": [{"formula": "(9;%sing%) < 1"}]}, "no region 9 of condition 'sing'"),
        ({"predictions": [{"formula": "(2;%sang%) < 1"}]}, "no region 2 of condition 'sang'"),
        ({"predictions": [{"formula": "(*;%sang%) < 1"}]}, r"no region \* of condition 'sang'"),
        ({"predictions": [{"formula": "1 < 2", "type": "python"}]}, "python"),
        ({"meta": {"metric": "product"}}, "product"),
        ({"meta": 3}, "meta"),
        (
            {"items": [{"item_number": 1, "conditions": [{"condition_name": "sing", "regions": []}]}]},
            "sentence is empty",
        ),
        (
            {"items": [make_suite()["items"][0] | {"conditions": make_suite()["items"][0]["conditions"] * 2}]},
            "same name",
        ),
        ({"items": [make_suite()["items"][0], {"item_number": 2, "conditions": []}]}, "item 2: there is no region"),
    ],
)
def test_mistakes_are_named_with_the_file(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=rf"a.json: is not a SyntaxGym suite .*{message}"):
        read_suite(write_suite(tmp_path / "a.json", **changes))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"meta": ' + "[" * 9999, '{"meta": {"name": "\\ud800"}}', "\ufeff{}"]
)
def test_files_that_are_no_suites(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CorpusError, match=r"a\.json: is not a SyntaxGym suite"):
        read_suite(tmp_path / "a.json")
    with pytest.raises(CorpusError, match=r"b\.json"):
        read_suite(tmp_path / "b.json")


def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    whole = json.dumps(make_suite()).encode()
    generator = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            begin = generator.randrange(len(damaged))
            damaged[begin : begin + generator.randint(0, 4)] = generator.choice(
                [b"", b'"', b"(", b"%", b"9", b"\xff", b"{"]
            )
        (tmp_path / "a.json").write_bytes(damaged)
        try:
            problem = "" if read_suite(tmp_path / "a.json").items else "no items"
        except CorpusError as error:
            problem = str(error).removeprefix(f"{tmp_path}/a.json: is not a SyntaxGym suite ")
        assert problem.startswith("(") or not problem
        assert "\n" not in problem


def test_the_published_suites(data: Callable[[str], Path]) -> None:
    suites = [read_suite(path) for path in sorted(data("tasks/syntaxgym").glob("*.json"))]
    assert len(suites) == 20
    assert {suite.circuit for suite in suites} >= {"Agreement", "Licensing", "Center Embedding"}
    assert "other" not in {suite.circuit for suite in suites}
    assert sum(len(suite.items) for suite in suites) == 475
