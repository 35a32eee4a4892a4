"""What is given beside a model, and what the explorer makes of it: other models, a training text, pairs, figures,
tags; all equal to the library's, or to their definitions."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import read, tracks
from relmo.analysis.core.trace import trace
from relmo.analysis.meaning.occurrences import normalize as of_length_one
from relmo.analysis.memory.gradients import gradient_flow
from relmo.analysis.syntax.agreement import agreement
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.analysis.units import compare
from relmo.analysis.units.compare import copied, emergence, find_copies
from relmo.cli import main
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.explorer import words
from relmo.explorer.comparison import split_at_copies
from relmo.explorer.extras import Extras, find_packs, read_figures
from relmo.explorer.session import Session, find_busiest
from relmo.explorer.words import get_tags, project
from relmo.explorer.work import Worker
from relmo.text.minimal_pairs import MinimalPair, read_pairs
from relmo.text.trees import ConlluWord
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model

LAKRETZ = "the cat sat\tsingular\tcorrect\t1\nthe cat sit\tsingular\twrong\t1\n"
LAKRETZ += "the mat sit\tplural\tcorrect\t2\nthe mat sat\tplural\twrong\t2\n"


def quiet(share: float) -> None:
    pass


class Stopped(Exception):
    pass


def stopping_after(calls: int) -> Any:
    left = [calls]

    def progress(share: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped

    return progress


def one_way(cell: str = "lstm") -> Session:
    made = Session(language_model(cell), "mine")
    made.set_text("a text", TEXT)
    return made


def both_ways(text: str = SENTENCES) -> Session:
    made = Session(bilm(), "both")
    made.set_text("sentences", text)
    return made


def tagged(count: int = 60) -> list[list[ConlluWord]]:
    """Sentences in which a word's tag hangs on the word before it."""
    rows = [("the", "DET"), ("cat", "NOUN"), ("sat", "VERB")], [("a", "DET"), ("mat", "NOUN")], [("cat", "VERB")]
    return [
        [ConlluWord(form, form, tag, "_", "_", 0, "_", "_", "_") for form, tag in rows[n % 3]] for n in range(count)
    ]


def test_models_beside_are_named_in_their_order_and_sorted_by_what_they_are(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        language_model("lstm").save_pretrained(tmp_path / "run" / f"epoch-{number}")
    bilm().save_pretrained(tmp_path / "both")
    found = Extras([str(tmp_path / "run"), str(tmp_path / "both")])
    assert list(found.models) == ["epoch-2", "epoch-9", "epoch-10", "both"]
    assert found.about("lm")["beside"] == ["epoch-2", "epoch-9", "epoch-10"]
    assert found.about("bilm")["beside"] == ["both"]
    assert found.model("epoch-9") is found.model("epoch-9")
    with pytest.raises(ModelError, match="does not exist"):
        Extras([str(tmp_path / "nothing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="is not a model"):
        Extras([str(tmp_path / "empty")])
    with pytest.raises(ModelError, match="skipgram"):
        Extras(["words"])
    with pytest.raises(CorpusError, match="--train"):
        Extras(train=tmp_path / "nothing.txt")


def test_packs_are_the_files_that_hold_pairs_by_name_and_all_of_a_kind_together(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "agreement" / "lakretz"
    folder.mkdir(parents=True)
    for name in ("simple", "adv_adv"):
        (folder / f"{name}.txt").write_text(LAKRETZ, encoding="utf-8")
    (folder / "README.txt").write_text("what this is\n", encoding="utf-8")
    (folder / "counts.txt").write_text("the\tcat\t5\t7\n", encoding="utf-8")
    (folder / "mine.csv").write_text("condition,good,bad\none,a cat,a cats\n", encoding="utf-8")
    (folder / "other.csv").write_text("name,count\n", encoding="utf-8")
    (folder / "lonely.gold").write_text("1\tis\tare\t0\n", encoding="utf-8")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\t\t\t\n")
    found = find_packs(tmp_path)
    assert list(found) == ["lakretz/*.txt", "lakretz/adv_adv.txt", "lakretz/simple.txt", "lakretz/mine.csv"]
    assert found["lakretz/simple.txt"].title == "Lakretz et al. 2019: simple"
    assert found["lakretz/*.txt"].pairs() == [*read_pairs(folder / "adv_adv.txt"), *read_pairs(folder / "simple.txt")]
    assert find_packs(tmp_path / "tasks" / "agreement" / "lakretz" / "README.txt") == {}
    with pytest.raises(CorpusError, match="--data"):
        find_packs(tmp_path / "nowhere")


def test_pairs_of_a_pack_are_asked_about_with_progress_and_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "simple.txt").write_text(LAKRETZ, encoding="utf-8")
    session = both_ways()
    session.extras = Extras(data=tmp_path)
    assert session.answer("about", {})["packs"] == [{"name": "simple.txt", "title": "Lakretz et al. 2019: simple"}]
    told: list[float] = []
    found = Worker(session).run("agree", {"pack": "simple.txt"}, told.append)
    expected = agreement(session.model, read_pairs(tmp_path / "simple.txt")).as_dict()["conditions"]
    assert [each["accuracy"] for each in found["conditions"]] == [each["accuracy"] for each in expected]
    assert found["title"] == "Lakretz et al. 2019: simple"
    assert told == sorted(told)
    assert len(told) >= 4
    with pytest.raises(Stopped):
        Worker(session).run("agree", {"pack": "simple.txt"}, stopping_after(1))
    with pytest.raises(SettingError, match="--data DIR"):
        Worker(both_ways()).run("agree", {"pack": "simple.txt"}, quiet)
    with pytest.raises(SettingError, match="--data DIR"):
        Worker(session).run("agree", {"pack": "../simple.txt"}, quiet)


def test_gates_are_the_librarys_by_condition_of_those_that_are_chosen() -> None:
    session = one_way()
    pairs = [[f"c{n}", f"the cat {'a' * n} sat", f"the cat {'a' * n} mat"] for n in range(1, 9)]
    found = Worker(session).run("gates", {"pairs": pairs, "unit": "c0.3"}, quiet)
    assert [each["condition"] for each in found["conditions"]] == [f"c{n}" for n in range(1, 7)]
    assert found["all"] == [f"c{n}" for n in range(1, 9)]
    expected = gate_traces(session.model, [MinimalPair(*pair) for pair in pairs], Unit("c", 0, 3))
    for each in found["conditions"]:
        for gate, values in each["means"].items():
            np.testing.assert_allclose(values, expected.means[each["condition"]][gate])
    chosen = Worker(session).run("gates", {"pairs": pairs, "unit": "c0.3", "conditions": ["c8"]}, quiet)
    assert [each["condition"] for each in chosen["conditions"]] == ["c8"]
    with pytest.raises(SettingError, match="forward"):
        Worker(both_ways()).run("gates", {"unit": "c0.3b"}, quiet)
    with pytest.raises(SettingError, match="c9"):
        Worker(session).run("gates", {"pairs": pairs, "unit": "c0.3", "conditions": ["c9"]}, quiet)


def test_an_index_is_built_once_for_a_text_and_again_after_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    real = words.build_index
    monkeypatch.setattr(words, "build_index", lambda *given, **more: built.append(1) or real(*given, **more))
    session = both_ways()
    worker, given = Worker(session), {"text": "given", "sentence": "a large mat", "position": 2}
    with pytest.raises(Stopped):
        worker.run("mean", given, stopping_after(0))
    first = worker.run("mean", given, quiet)
    assert worker.run("mean", given | {"position": 0}, quiet)["words"] == ["a", "large", "mat"]
    assert len(built) == 2  # the one that was stopped, and the one that is kept
    assert worker.run("mean", given, quiet) == first
    name = session.add("a cat\nthe mat\nthe large mat")["text"]
    assert worker.run("mean", given | {"text": name}, quiet) != first
    assert len(built) == 3
    folders = [index.folder for index in worker.indexes.values()]
    for n in range(words.MAX_INDEXES):
        worker.run("mean", given | {"text": session.add(f"a cat {n}\nthe mat")["text"]}, quiet)
    assert [folder.exists() for folder in folders] == [False, False]
    assert len(worker.indexes) == words.MAX_INDEXES
    scratch = next(iter(worker.indexes.values())).folder.parent
    worker.close()
    assert not scratch.exists()


def test_the_plane_shows_where_vectors_differ_most_and_each_points_context() -> None:
    session = both_ways()
    found = Worker(session).run("mean", {"text": "given", "sentence": "a large mat", "position": 2}, quiet)["plane"]
    lines = [line.split() for line in SENTENCES.strip().split("\n")]
    places = [(line, i) for line in lines for i, word in enumerate(line) if word == "mat"]
    assert found["count"] == len(found["points"]) == len(places)
    for point, (line, i) in zip(found["points"], places, strict=True):
        assert point == {"before": " ".join(line[:i]), "word": "mat", "after": " ".join(line[i + 1 :])}
    assert found["layers"][0]["shares"] is None  # without context all are the same
    model: Any = session.model
    vectors = [model.embed([line])[0][:, i] for line, i in places]
    own = model.embed([["a", "large", "mat"]])[0][:, 2]
    for layer in (1, 2):
        rows = of_length_one(np.stack([own[layer], *(each[layer] for each in vectors)]))
        np.testing.assert_allclose(found["layers"][layer]["cosines"], rows[1:] @ rows[0], atol=0.02)
        spread = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1]
        np.testing.assert_allclose(found["layers"][layer]["shares"], spread[:2] / spread.sum(), atol=0.02)


def test_vectors_that_lie_on_a_plane_keep_their_distances_on_it() -> None:
    generator = np.random.default_rng(0)
    angles = generator.uniform(0, 2 * math.pi, 12)
    basis, _ = np.linalg.qr(generator.normal(size=(5, 2)))
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ basis.T
    found = project(rows[1:], rows[:1])
    flat = np.array([found["x"], found["y"]]).T
    np.testing.assert_allclose(
        np.linalg.norm(flat[:, None] - flat, axis=2), np.linalg.norm(rows[:, None] - rows, axis=2), atol=1e-3
    )
    assert sum(found["shares"]) == pytest.approx(1, abs=2e-3)


def test_tags_are_learnt_from_some_sentences_and_asked_of_others_beside_controls() -> None:
    session = Session(bilm(), "both")
    session.texts.set_annotated("tagged", tagged())
    assert [each["tagged"] for each in session.answer("about", {})["texts"]].count(True) == 1
    found = Worker(session).run("tags", {"text": "given"}, quiet)
    assert [(row["name"], row["layer"]) for row in found["rows"]] == [
        (name, layer) for name in ("", "the same untrained") for layer in range(3)
    ]
    assert found["words"] + found["asked"] == sum(len(each) for each in tagged())
    values = {(row["name"], row["layer"]): row["value"] for row in found["rows"]}
    assert values["", 1] == 100  # what a cat is, its neighbours tell
    assert values["", 0] < 100
    assert found["most_frequent"]["value"] < 100
    with pytest.raises(Stopped):
        Worker(session).run("tags", {"text": "given"}, stopping_after(3))
    with pytest.raises(SettingError, match="no tags"):
        Worker(both_ways()).run("tags", {"text": "given"}, quiet)
    short = Session(bilm(), "both")
    short.texts.set_annotated("tagged", tagged(4))
    with pytest.raises(SettingError, match="too short"):
        Worker(short).run("tags", {"text": "given"}, quiet)


def test_a_tag_is_that_of_the_word_though_others_have_spaces_in_them() -> None:
    session = Session(bilm(), "both")
    words = tagged(3)
    words[0].insert(1, words[0][1]._replace(form="10 000 000", upos="NUM"))
    session.texts.set_annotated("tagged", words)
    document = session.document("given")
    expected = ["DET", *["NUM"] * 3, "NOUN", "VERB", "DET", "NOUN", "VERB"]
    assert get_tags(document) == expected
    assert get_tags(document.head(5)) == expected[:5]


def test_copies_are_those_that_stand_in_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    training, ids = generator.integers(0, 3, 200), generator.integers(0, 3, 60)
    windows = [training[at : at + 5] for at in range(196)]
    starts = np.array([any((window == ids[at : at + 5]).all() for window in windows) for at in range(60 - 5 + 1)])
    assert 0 < starts.sum() < 56
    monkeypatch.setattr(compare, "CHUNK", 64)
    there, short = find_copies([ids, ids[:3]], training, 5, quiet)
    np.testing.assert_array_equal(there, starts)
    assert there.mean() == pytest.approx(copied(ids, training, [5])[5])
    assert len(short) == 0

    model = language_model("lstm")
    text = "the cat (a cat) sat" + "tt" + TEXT[40:70]
    (there,) = find_copies([model.encode(text)], model.encode(TEXT), 10, quiet)
    parts = split_at_copies(read(model, text), there, 10)
    assert "".join(part for part, _ in parts) == text
    assert [part for part, there in parts if there] == ["the cat (a cat) sat", TEXT[40:70]]

    path = tmp_path / "train.txt"
    path.write_text(TEXT, encoding="utf-8")
    session = one_way()
    session.extras = Extras(train=path)
    found = Worker(session).run("compare", {"text": "given", "other": "n-gram", "order": 3, "train": "train"}, quiet)
    rows = {row["name"]: row["shares"] for row in found["copies"]["rows"]}
    assert found["copies"]["of"] == "train.txt"
    half = model.encode(TEXT[len(TEXT) // 2 :])
    expected = copied(half, model.encode(TEXT), found["copies"]["lengths"])
    assert rows["the evaluated text"] == [100 * share for share in expected.values()] == [100.0] * 4
    assert rows["samples of mine"][0] < 50
    for sample in found["samples"]:
        assert "".join(part for part, _ in sample["parts"]) == sample["text"]
    by_name = Worker(session).run("compare", {"text": "given", "other": "untrained", "train": "given"}, quiet)
    assert by_name["copies"]["of"] == "a text"
    with pytest.raises(Stopped):
        Worker(session).run("compare", {"text": "given", "other": "untrained", "train": "train"}, stopping_after(3))
    with pytest.raises(SettingError, match="--train FILE"):
        Worker(one_way()).run("compare", {"text": "given", "other": "untrained", "train": "train"}, quiet)


def test_a_unit_is_looked_back_on_through_checkpoints_and_others_are_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    early = language_model("lstm", scale=1.0)
    early.save_pretrained(tmp_path / "early")
    language_model("gru").save_pretrained(tmp_path / "gru")
    language_model("lstm", hidden=9).save_pretrained(tmp_path / "larger")
    ngram_model().save_pretrained(tmp_path / "counts")
    bilm().save_pretrained(tmp_path / "both")
    session = one_way()
    session.extras = Extras([str(tmp_path / name) for name in ("early", "gru", "larger", "counts", "both")])
    found = Worker(session).run("emerge", {"text": "given", "feature": "depth"}, quiet)
    assert [frame["model"] for frame in found["frames"]] == ["untrained", "early", "mine"]
    assert found["left_out"] == ["gru", "larger", "counts", "both"]
    document = session.document("given")
    track = tracks(document, ["depth"])["depth"]
    models: dict[str, Any] = {"early": session.extras.model("early"), "mine": session.model}
    expected = emergence(models, document, track)
    assert found["unit"] == str(expected.unit)
    unit = expected.unit
    for frame, model in zip(found["frames"][1:], models.values(), strict=True):
        values = trace(model, TEXT).unit(unit.state, unit.layer, unit.number)
        assert frame["r"] == pytest.approx(np.corrcoef(values, track)[0, 1], abs=1e-3)
        begin = find_busiest(track, 160)
        np.testing.assert_allclose(frame["values"], (values - values.mean())[begin : begin + 160], atol=1e-3)
    assert "".join(found["stretch"]) == TEXT[find_busiest(track, 160) :][:160]
    named = Worker(session).run("emerge", {"text": "given", "feature": "depth", "unit": "h0.2"}, quiet)
    assert named["unit"] == "h0.2"
    with pytest.raises(SettingError, match="does not change"):
        Worker(session).run("emerge", {"text": "given", "feature": "quotes"}, quiet)


def test_memory_has_jacobians_where_they_are_asked_for_and_the_models_beside(tmp_path: Path) -> None:
    language_model("gru").save_pretrained(tmp_path / "gru")
    session = one_way()
    session.extras = Extras([str(tmp_path / "gru")])
    given = {"text": "given", "lags": 10, "positions": 4, "jacobians": 2, "beside": True}
    told: list[float] = []
    found = Worker(session).run("memory", given, told.append)["networks"]
    assert [each["name"] for each in found] == ["mine", "gru"]
    options = {"lags": 10, "positions": 4, "warm_up": len(TEXT) // 4, "jacobian_positions": 2}
    expected = gradient_flow(session.model, [list(TEXT)], **options).jacobians
    assert [each["part"] for each in found[0]["jacobians"]] == ["h", "c", "state"]
    for each, other in zip(found[0]["jacobians"], expected, strict=True):
        np.testing.assert_allclose(each["median"], other.median, rtol=1e-5)
    assert told == sorted(told)
    assert len(told) > 20  # so that it can be stopped meanwhile
    with pytest.raises(Stopped):
        Worker(session).run("memory", given, stopping_after(3))
    plain = Worker(session).run("memory", {"text": "given", "lags": 10, "positions": 4}, quiet)["networks"]
    assert [(each["name"], each["jacobians"]) for each in plain] == [("mine", [])]


def test_figures_by_layer_are_read_from_what_relmo_prints_as_json(tmp_path: Path) -> None:
    rows = [{"name": "layer 1", "ours": {"all words": 94.5}}, {"name": "a paper's", "ours": {}}, "nonsense"]
    table = {"name": "pos", "title": "parts of speech", "rows": rows}
    expected = {"name": "pos", "title": "parts of speech", "column": "all words"}
    path = tmp_path / "figures.json"
    for given in ({"pos": table}, {"reproductions": [{"name": "perplexity", "rows": []}, table]}):
        path.write_text(json.dumps(given), encoding="utf-8")
        assert read_figures(path) == [expected | {"rows": [{"name": "layer 1", "value": 94.5}]}]
    about = Extras(figures=path).about
    assert about("bilm")["figures"][0]["name"] == "pos"
    assert about("lm")["figures"] == []
    for wrong in ("[]", "{}", "not JSON", '{"reproductions": 5}', '{"pos": {"name": "pos"}}'):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(SettingError, match=r"figures\.json"):
            read_figures(path)
    with pytest.raises(SettingError, match="--figures"):
        read_figures(tmp_path / "nothing.json")


def test_a_task_with_elmo_opens_the_model_it_reads_and_shows_its_mixes(tmp_path: Path) -> None:
    lines = "".join(
        "".join(f"{i}\t{w.form}\t_\t{w.upos}\t_\t_\t0\t_\t_\t_\n" for i, w in enumerate(each, 1)) + "\n"
        for each in tagged(30)
    )
    (tmp_path / "train.conllu").write_text(lines, encoding="utf-8")
    bilm().save_pretrained(tmp_path / "both")
    arguments = ["train", "tagger", str(tmp_path / "train.conllu"), "--valid", str(tmp_path / "train.conllu")]
    arguments += ["--preset", "pos", "--elmo", str(tmp_path / "both"), "--elmo-at", "both", "--epochs", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "tagger"), "--quiet"])
    assert not ended.value.code
    session = Session.open(str(tmp_path / "tagger"), device="cpu")
    assert session.answer("about", {})["kind"] == "bilm"
    assert session.answer("about", {})["mixes"]
    (task,) = session.answer("mixes", {})["tasks"]
    assert [mix["name"] for mix in task["mixes"]] == ["input", "output"]
    assert all(sum(mix["shares"]) == pytest.approx(1) for mix in task["mixes"])
    extras = Extras([str(tmp_path / "tagger")])
    assert extras.models == {}
    assert extras.mixes() == [{"task": "tagger", "mixes": task["mixes"]}]
