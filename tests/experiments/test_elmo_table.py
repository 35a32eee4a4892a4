"""The ELMo table: plan, scores by hand, slices, Markdown and figures."""

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.elmo_table.figures import draw_figures
from experiments.elmo_table.plan import (
    PLAIN,
    TablePlan,
    default_variant,
    name_bilms,
    parse_flags,
    select_names,
    training_name,
)
from experiments.elmo_table.report import describe_bilms, training_commands
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.slices import DOCUMENTS, EXAMPLES, write_slices
from experiments.elmo_table.tables import ElmoTables, compute_increase, to_markdown
from relmo.cli import app
from relmo.errors import SettingError
from relmo.settings.kinds import model_class, settings_class

TWO = {"small": "small", "large": "models/original"}


def finished(plan: TablePlan, scores: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Results of every training of a plan: each has the score of the longest beginning of its name, in percent, and one
    point more with each further seed; and weights where it mixes layers."""
    results: dict[str, dict[str, Any]] = {}
    for training in plan.trainings():
        known = max((name for name in scores if training.name.startswith(name)), key=len)
        seed = int(training.name.rsplit("-", 1)[-1])
        results[training.name] = {"metric": "f1", "valid_f1": (scores[known] + seed - 1) / 100}
        if "-both-lambda" in training.name:
            mix = {"weights": [0.2, 0.4 + 0.1 * seed, 0.4 - 0.1 * seed], "gamma": float(seed)}
            results[training.name]["elmo_mix"] = {"input": mix, "output": mix}
    return results


@pytest.mark.slow
@pytest.mark.parametrize("reduced", [False, True])
def test_every_training_is_a_command_that_relmo_accepts(reduced: bool) -> None:
    plan = TablePlan(bilms=list(TWO), seeds=1, reduced=reduced)
    lines = training_commands(plan, TWO, Path("data"), Path("out"))
    assert len(set(lines)) == len(lines) > 40
    for line in lines:
        command = shlex.split(line)[1:]
        _, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
        cls = settings_class(command[1])
        sections = {field.name for field in dataclasses.fields(cls)}
        cls(**{k: v for k, v in bound.arguments.items() if k in sections}).check()


def test_a_network_that_several_tables_show_is_trained_once() -> None:
    def names(*tables: str) -> list[str]:
        return [training.name for training in TablePlan(tables, ["snli", "ner"], ["small"], seeds=1).trainings()]

    own = "snli-small-both-lambda-0.001-seed-1"
    assert names("1") == ["snli-plain-seed-1", own, "ner-plain-seed-1", "ner-small-input-lambda-0.001-seed-1"]
    layers = ["snli-plain-seed-1", "snli-small-both-top-seed-1", "snli-small-both-lambda-1-seed-1", own]
    assert names("2") == layers
    assert names("placement") == [
        "snli-small-input-lambda-0.001-seed-1",
        own,
        "snli-small-output-lambda-0.001-seed-1",
    ]
    assert names("weights") == [own, "ner-small-both-lambda-0.001-seed-1"]
    everything = names("1", "2", "placement", "weights")
    assert len(everything) == len(set(everything)) == 4 + 2 + 2 + 1


def test_flags_are_read_as_they_are_typed() -> None:
    assert parse_flags("--preset ner --elmo-norm --epochs 2 --epochs 3") == {
        "--preset": "ner",
        "--elmo-norm": "",
        "--epochs": "3",
    }


def test_the_first_seed_of_everything_comes_first_and_cheap_rows_have_more() -> None:
    trained = TablePlan(["1"], ["squad", "ner"], ["small"]).trainings()
    seeds = [int(training.name.rsplit("-", 1)[-1]) for training in trained]
    assert seeds == sorted(seeds)
    assert sum("squad" in training.name for training in trained) == 2 * ROWS["squad"].seeds
    assert sum("ner" in training.name for training in trained) == 2 * ROWS["ner"].seeds
    assert ROWS["ner"].seeds > ROWS["squad"].seeds
    assert len(TablePlan(["1"], ["squad", "ner"], ["small"], seeds=2).trainings()) == 8


@pytest.mark.parametrize(
    ("row", "relative"),
    [("squad", 24.9), ("snli", 5.8), ("srl", 17.2), ("coref", 9.8), ("ner", 21.0), ("sst5", 6.8)],
)
def test_the_papers_own_rows_give_the_papers_relative_increase(row: str, relative: float) -> None:
    assert compute_increase(*ROWS[row].table1).relative == pytest.approx(relative, abs=0.05)


def test_relative_increase_by_hand() -> None:
    assert compute_increase(60.0, 70.0) == (10.0, 25.0)  # a quarter of the 40 points that were missing
    assert compute_increase(50.0, 45.0) == (-5.0, -10.0)
    assert compute_increase(100.0, 100.0) == (0.0, 0.0)


def test_table_1_has_mean_deviation_increase_the_papers_row_and_what_differs() -> None:
    plan = TablePlan(["1"], ["snli", "srl"], list(TWO))
    results = finished(plan, {"": 59.0, "snli-small": 69.0, "srl": 50.0, "srl-large": 60.0})
    del results["srl-small-input-lambda-0.001-seed-1"]
    (table,) = ElmoTables(plan, results, {"small": "tiny", "large": "huge"}).tables()
    snli, srl = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert snli["plain"] == "60.00 ± 1.00 (3)"
    assert (snli["small"], snli["small: increase"]) == ("70.00 ± 1.00 (3)", "+10.00 / 25.0%")
    assert snli["large: increase"] == "+0.00 / 0.0%"
    assert (snli["paper: plain"], snli["paper: ELMo"], snli["paper: increase"]) == ("88.0", "88.7", "+0.70 / 5.8%")
    assert "78,003" in snli["what differs"]
    assert (srl["plain"], srl["small"], srl["small: increase"]) == ("50.00", "", "")
    assert srl["large: increase"] == "+10.00 / 20.0%"
    assert {"small: tiny", "large: huge"} <= set(table.notes)


def test_tables_of_layers_and_places_have_a_row_for_each_bilm_beside_the_papers() -> None:
    plan = TablePlan(["2", "placement"], ["srl", "ner"], list(TWO))
    scores = {"srl-plain": 60.0, "srl-small": 70.0, "srl-large": 75.0, "srl-small-input-top": 65.0}
    layers, places = ElmoTables(plan, finished(plan, scores), {}).tables()
    assert layers.rows[0] == ["SRL", "small", *("60.00", "65.00", "70.00", "70.00"), *("81.6", "84.1", "84.6", "84.8")]
    assert layers.rows[1][:4] == ["SRL", "large", "60.00", "75.00"]
    assert len(layers.rows) == len(places.rows) == 2  # the paper has no names there
    assert places.rows[1] == ["SRL", "large", "75.00", "75.00", "75.00", "84.7", "84.3", "80.9"]


def test_weights_are_the_mean_over_seeds_and_rows_without_any_are_empty() -> None:
    plan = TablePlan(["weights"], ["ner", "sst5"], ["small"], seeds=2)
    results = {name: each for name, each in finished(plan, {"": 50.0}).items() if name.startswith("ner")}
    (table,) = ElmoTables(plan, results, {}).tables()
    assert table.rows[0] == ["NER", "small", *["0.20", "0.55", "0.25", "1.50"] * 2]
    assert table.rows[1] == ["SST-5", "small", *[""] * 8]


def test_a_summary_has_the_figures_of_all_tables() -> None:
    plan = TablePlan(rows=["snli", "sst5"], bilms=["small"], seeds=1)
    told = ElmoTables(plan, finished(plan, {"": 60.0, "snli-small": 70.0}), {"small": "tiny"}).summary()
    snli = told["rows"]["snli"]
    assert snli["elmo"]["small"] == pytest.approx(
        {"mean": 70.0, "deviation": 0.0, "seeds": 1, "absolute": 10.0, "relative": 25.0}
    )
    assert snli["layers"]["small"]["no ELMo"]["mean"] == pytest.approx(60.0)
    assert snli["layers"]["paper"]["last layer"] == 89.1
    assert snli["placement"]["paper"] == {"input": 88.9, "input and output": 89.5, "output": 88.7}
    assert snli["weights"]["small"]["output"]["weights"] == pytest.approx([0.2, 0.5, 0.3])
    assert "layers" not in told["rows"]["sst5"]
    assert len(told["results"]) == len(plan.trainings())


def test_markdown_has_every_table_and_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan = TablePlan(rows=["snli", "ner"], bilms=list(TWO), seeds=1)
    results = finished(plan, {"": 60.0, "snli-small": 70.0})
    del results[training_name("ner", default_variant(ROWS["ner"], "large"), 1)]
    tables = ElmoTables(plan, results, {})
    names = draw_figures(tables, tmp_path)
    assert names == ["elmo-table.png", "elmo-layers.png", "elmo-placement.png", "elmo-weights.png"]
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in names)
    text = to_markdown(tables.tables(), names)
    assert text.count("\n## ") + text.startswith("## ") == 4
    assert "| SNLI | accuracy | 60.00 | 70.00 | +10.00 / 25.0% | 60.00 |" in text
    assert all(f"]({name})" in text for name in names)
    widths = {line.count("|") for line in text.split("## ")[1].splitlines() if line.startswith("|")}
    assert len(widths) == 1
    nothing = ElmoTables(plan, {}, {})
    assert draw_figures(nothing, tmp_path / "none") == []
    assert nothing.score("ner", PLAIN) is None
    assert "mean nothing" in ElmoTables(plan._replace(reduced=True), {}, {}).tables()[-1].notes[-1]


def test_without_any_bilm_the_plain_networks_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan = TablePlan(rows=["snli", "ner"], bilms=[], seeds=1)
    assert [training.name for training in plan.trainings()] == ["snli-plain-seed-1", "ner-plain-seed-1"]
    tables = ElmoTables(plan, finished(plan, {"": 60.0}), {})
    assert [len(table.rows) for table in tables.tables()] == [2, 0, 0, 0]
    assert tables.tables()[0].rows[0][2] == "60.00"
    assert draw_figures(tables, tmp_path) == ["elmo-table.png"]


def test_slices_are_the_beginning_of_each_file_in_its_own_layout(data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = data("tasks/squad/dev-v1.1.json").parents[2]
    write_slices(folder, list(ROWS), tmp_path)
    for name, row in ROWS.items():
        for part, file in (("train", row.train), ("valid", row.valid)):
            least = (DOCUMENTS if name == "coref" else EXAMPLES)[part]
            text = settings_class(row.kind)().text
            chosen = {"task": "ner"} if name == "ner" else {}
            found = model_class(row.kind).read(str(tmp_path / file), dataclasses.replace(text, **chosen))
            assert least <= len(found) <= 2 * least, name
            assert (tmp_path / file).stat().st_size < 200_000


def test_bilms_have_names_of_their_own() -> None:
    assert name_bilms(["small", "large=/models/b 1", "/models/big/"]) == {
        "small": "small",
        "large": "/models/b 1",
        "big": "/models/big/",
    }
    for wrong in (["small", "x/small"], ["data=x"], ["large="], ["/a b"]):
        with pytest.raises(SettingError, match="NAME=FOLDER"):
            name_bilms(wrong)


def test_rows_and_tables_are_chosen_by_name_in_the_tables_order() -> None:
    assert select_names("--rows", "sst5, squad,sst5", ROWS) == ["squad", "sst5"]
    assert select_names("--rows", None, ROWS) == list(ROWS)
    with pytest.raises(SettingError, match=r"--rows sst: .*squad, snli, srl, coref, ner, sst5"):
        select_names("--rows", "squad,sst", ROWS)
    with pytest.raises(SettingError, match="--rows"):
        select_names("--rows", ",", ROWS)


def test_a_bilm_is_described_before_anything_is_trained() -> None:
    assert "perplexity" in describe_bilms({"small": "small"})["small"]
    with pytest.raises(Exception, match=r"words: .*skipgram"):
        describe_bilms({"w": "words"})
    with pytest.raises(Exception, match="nowhere"):
        describe_bilms({"w": "nowhere"})
