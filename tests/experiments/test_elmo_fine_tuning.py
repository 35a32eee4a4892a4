"""Fine-tuning of biLMs on the text of a task: the sentences of the six formats, and the plan."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.elmo_table.fine_tuning import BEFORE, read_sentences, write_texts
from experiments.elmo_table.plan import TablePlan, name_bilms, parse_flags
from experiments.elmo_table.report import training_commands
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.tables import ElmoTables
from relmo.errors import SettingError

PASSAGES = [
    {
        "context": "Ada was born in 1815. She could count.",
        "qas": [
            {"id": "1", "question": "When was Ada born?", "answers": [{"text": "1815", "answer_start": 16}]},
            {"id": "2", "question": "Who could count?", "answers": [{"text": "She", "answer_start": 22}]},
        ],
    }
]
ROLES = {"words": ["Dogs", "bark"], "frames": [{"verb_index": 1, "tags": ["B-ARG0", "B-V"]}]}
MENTIONS = ["Anna\t(1)", "saw\t-", "herself\t(1)", ".\t-", "Anna\t(1)", "slept\t-", ".\t-"]
FILES = {
    "squad": json.dumps({"data": [{"title": "", "paragraphs": PASSAGES}]}),
    "snli": "label\tsentence1\tsentence2\n"
    "entailment\tA dog doesn't run.\tIt sits.\nneutral\tA dog doesn't run.\tIt waits.\n",
    "srl": f"{json.dumps(ROLES)}\n" * 2,
    "coref": "\n".join(["#begin document (GUM_bio_a)", *(f"0\t{word}" for word in MENTIONS), "#end document", ""]),
    "ner": "Anna\tB-PER\nsees\tO\n\nIt\tO\nrains\tO\n\nAnna\tB-PER\nsees\tO\n",
    "sst5": "(3 (2 It) (4 works))\n(1 (2 (2 -LRB-) (2 It)) (0 fails))\n(3 (2 It) (4 works))\n",
}
SENTENCES = {
    "squad": ["Ada was born in 1815 . She could count .", "When was Ada born ?", "Who could count ?"],
    "snli": ["A dog does n't run .", "It sits .", "It waits ."],
    "srl": ["Dogs bark"],
    "coref": ["Anna saw herself .", "Anna slept ."],
    "ner": ["Anna sees", "It rains"],
    "sst5": ["It works", "( It fails"],
}


@pytest.mark.parametrize("row", ROWS)
def test_texts_are_the_words_of_the_tasks_reader_each_once(row: str, tmp_path: Path) -> None:
    path = tmp_path / Path(ROWS[row].train).name
    path.write_text(FILES[row], encoding="utf-8")
    assert read_sentences(ROWS[row], path) == SENTENCES[row]


def test_the_training_text_has_nothing_of_the_development_file(tmp_path: Path) -> None:
    files = {"ner": ("Anna\tB-PER\nsees\tO\n", "It\tO\nrains\tO\n\nAnna\tB-PER\nsees\tO\n")}
    for path, text in zip((ROWS["ner"].train, ROWS["ner"].valid), files["ner"], strict=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    write_texts("ner", tmp_path, tmp_path / "texts")
    assert (tmp_path / "texts" / "ner-train.txt").read_text() == "Anna sees\n"
    assert (tmp_path / "texts" / "ner-valid.txt").read_text() == "It rains\nAnna sees\n"


@pytest.mark.parametrize(
    ("row", "file", "count", "words"),
    [
        ("squad", ROWS["squad"].valid, 6_461, 212_511),
        ("snli", ROWS["snli"].valid, 12_981, 131_525),
        ("srl", ROWS["srl"].valid, 1_875, 24_601),
        ("coref", ROWS["coref"].train, 8_908, 176_494),
        ("ner", ROWS["ner"].train, 11_733, 199_200),
        ("sst5", ROWS["sst5"].train, 8_534, 163_483),
    ],
)
def test_the_published_files_have_these_sentences(
    data: Callable[[str], Path], row: str, file: str, count: int, words: int
) -> None:
    sentences = read_sentences(ROWS[row], data(file))
    assert len(sentences) == len(set(sentences)) == count
    assert sum(len(sentence.split()) for sentence in sentences) == words


def test_each_bilm_is_tuned_once_per_row_and_read_by_its_networks() -> None:
    plan = TablePlan(["1", "2"], ["snli", "ner"], ["small", "large"], seeds=2, fine_tune=True)
    assert plan.columns == ["small", "small-tuned", "large", "large-tuned"]
    tunings = plan.tunings()
    assert [run.name for run in tunings.values()] == [
        *("snli-small-tuned", "snli-large-tuned"),
        *("ner-small-tuned", "ner-large-tuned"),
    ]
    for (row, bilm), run in tunings.items():
        assert run.reads(bilm)
        assert run.reads("texts")
        assert not run.reads("data")
        readers = {network.name for network in plan.trainings() if network.reads(run.name)}
        assert readers == {n.name for n in plan.trainings() if n.name.startswith(f"{row}-{bilm}-tuned-")}
        assert f"{row}-{bilm}-tuned-{'both' if row == 'snli' else 'input'}-lambda-0.001-seed-2" in readers
    assert float(parse_flags(tunings["snli", "small"].text)["--lr"]) < float(
        parse_flags(tunings["ner", "small"].text)["--lr"]
    )
    untuned = plan._replace(fine_tune=False)
    assert untuned.tunings() == {}
    assert set(untuned.trainings()) < set(plan.trainings())
    assert TablePlan(["2"], ["ner"], ["small"], fine_tune=True).tunings() == {}  # Table 2 has no such row


def test_the_commands_of_a_dry_run_begin_with_the_fine_tuning() -> None:
    plan = TablePlan(["1"], ["ner"], ["small"], seeds=1, fine_tune=True)
    tuning, plain, _, tuned = training_commands(plan, {"small": "a/bilm"}, Path("data"), Path("out"))
    assert tuning.startswith("relmo train bilm out/texts/ner-train.txt --valid out/texts/ner-valid.txt --init a/bilm ")
    assert tuning.endswith(" --out out/ner-small-tuned")
    assert "--elmo " not in plain
    assert " --elmo out/ner-small-tuned " in tuned


def test_tables_and_summary_have_the_perplexities() -> None:
    plan = TablePlan(["1"], ["ner", "sst5"], ["small"], seeds=1, fine_tune=True)
    results = {
        "ner-small-tuned": {"train_tokens": 12345, BEFORE: None, "valid_perplexity": 70.04},
        "sst5-plain-seed-1": {"metric": "accuracy", "valid_accuracy": 0.4},
        "sst5-small-tuned-input-lambda-0.001-seed-1": {"metric": "accuracy", "valid_accuracy": 0.5},
    }
    tables = ElmoTables(plan, results, {"small": "tiny"})
    scores, perplexities = tables.tables()
    assert dict(zip(scores.columns, scores.rows[1], strict=True))["small-tuned: increase"] == "+10.00 / 16.7%"
    assert perplexities.rows == [["NER", "small", "12,345", "", "70.0"], ["SST-5", "small", "", "", ""]]
    rows = tables.summary()["rows"]
    assert rows["ner"]["fine_tuning"] == {"small": {"tokens": 12345, "before": None, "after": 70.04}}
    assert rows["sst5"]["elmo"]["small-tuned"]["absolute"] == pytest.approx(10.0)
    assert "fine_tuning" not in ElmoTables(plan._replace(fine_tune=False), results, {}).summary()["rows"]["ner"]


def test_names_of_fine_tuned_bilms_are_not_those_of_others() -> None:
    models = ["small", "small-tuned=models/b"]
    assert list(name_bilms(models)) == ["small", "small-tuned"]
    with pytest.raises(SettingError, match="small-tuned"):
        name_bilms(models, fine_tune=True)
    with pytest.raises(SettingError, match="texts"):
        name_bilms(["texts=models/b"])
