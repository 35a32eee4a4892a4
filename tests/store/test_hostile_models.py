"""Models that mean harm: folders and archives are refused in one line, before much memory or time is taken."""

import json
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

import relmo
from experiments.senses import read_framework
from relmo.cli.models import gather
from relmo.disk.files import fingerprint
from relmo.errors import MAX_MESSAGE_LENGTH, RelmoError
from relmo.explorer.extras import read_figures
from relmo.models.lm import LanguageModel
from relmo.store.folder import read_tensors, write_tensors
from relmo.text.minimal_pairs import read_pairs
from relmo.text.readers.labelled import read_labelled
from relmo.text.readers.tagged import read_tagged
from relmo.text.vocabulary import Vocabulary
from support import fuzz_models, small_models, tagging

MEMORY = 100_000  # kilobytes
Edit = Callable[[dict[str, Any]], object]


def refused(source: object, *words: str, load: Callable[[Any], object] = relmo.load) -> str:
    """What is said of a source; it takes no memory to say it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RelmoError) as caught:
        load(source)
    said = str(caught.value)
    assert len(said) <= MAX_MESSAGE_LENGTH
    assert said.isprintable()
    for word in words:
        assert word in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY
    return said


def edited(folder: Path, edit: Edit, name: str = "config.json") -> Path:
    """The folder, with something else in its JSON."""
    values = json.loads((folder / name).read_text(encoding="utf-8"))
    edit(values)
    (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.fixture
def bilm(tmp_path: Path) -> Path:
    small_models.bilm().save_pretrained(tmp_path / "bilm")
    return tmp_path / "bilm"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    fuzz_models.make_original(tmp_path / "original")
    return tmp_path / "original"


@pytest.mark.parametrize("kind", [[], {}, None, 5, True])
def test_a_kind_that_is_no_word(kind: Any, bilm: Path) -> None:
    refused(edited(bilm, lambda config: config.update(kind=kind)), "config.json", "kind")


def test_numbers_and_depths_that_python_does_not_read(bilm: Path) -> None:
    text = (bilm / "config.json").read_text()
    for raw, word in (("9" * 5000, "too many digits"), ("[" * 50_000, "too deeply"), ('"\\ud800"', "'\\ud800'")):
        (bilm / "config.json").write_text(text.replace('"bilm"', raw, 1))
        refused(bilm, word)


@pytest.mark.parametrize(
    ("section", "changes", "word"),
    [
        ("train", {"lr": float("inf")}, "lr must be above 0"),
        ("train", {"lr": float("nan")}, "lr must be above 0"),
        ("train", {"seed": 10**30}, "seed must be from"),
        ("model", {"cell_clip": float("inf")}, "cell_clip must be from"),
        ("model", {"filters": ["1x1"] * 200_000}, "at most 1000"),
        ("model", {"filters": ["1x1," * 200_000]}, "at most 1000"),
        ("model", {"filters": ["1x1"] * 1000, "highway": 1000, "layers": 1000}, "does not match config.json"),
        ("model", {"hidden": 1 << 24, "projection": 1 << 24, "layers": 1000}, "does not match config.json"),
        ("model", {"input": "x" * 1_000_000}, "input must be one of"),
        ("model", {"x" * 1_000_000: 1}, "unknown setting 'model.xxx"),
    ],
    ids=["infinite", "nan", "seed", "clip", "filters", "in one", "many", "huge", "long value", "long key"],
)
def test_settings_that_no_model_has(section: str, changes: dict[str, Any], word: str, bilm: Path) -> None:
    refused(edited(bilm, lambda config: config["settings"][section].update(changes)), word)


@pytest.mark.parametrize("size", [20_000, 1 << 20])
def test_a_tuned_bilm_that_the_weights_do_not_hold_takes_no_memory(size: int, tmp_path: Path) -> None:
    fuzz_models.make_with_parts(tmp_path / "model", tagging.tiny_bilm(), elmo_tune=True)
    relmo.load(tmp_path / "model", device="cpu")
    edited(tmp_path / "model", lambda config: config["bilm"]["model"].update(hidden=size, projection=size))
    refused(tmp_path / "model", "weights", "the files have")


def test_info_asks_nothing_of_a_config_that_is_not_there(bilm: Path) -> None:
    edited(bilm, lambda config: (config.pop("relmo_version"), config.update(results=[1, {"a": {}}])))
    assert gather(str(bilm))["relmo_version"] is None


def test_a_symbol_that_is_half_a_character_is_refused(bilm: Path, tmp_path: Path) -> None:
    path = bilm / "vocabulary.txt"
    path.write_text(path.read_text().replace("cat", "\\ud800"))
    edited(bilm, lambda config: config["digests"].update({"vocabulary.txt": fingerprint(path)}))
    refused(bilm, "vocabulary.txt:5", "surrogate")
    path.write_text("a\n\\u00e9\n")
    assert Vocabulary.load(path).symbols[-1] == "é"


def test_tables_of_n_grams_that_are_no_probabilities(tmp_path: Path) -> None:
    small_models.ngram_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    sound, _ = read_tensors(path)
    for name, tensor in (("gamma_2", sound["gamma_2"] - 2), ("keys_2", sound["keys_2"].flip(0))):
        write_tensors(path, sound | {name: tensor})
        refused(tmp_path, "probabilities")
    write_tensors(path, sound)
    assert isinstance(relmo.load(tmp_path, device="cpu"), LanguageModel)


def test_a_model_without_probabilities_generates_nothing() -> None:
    model = small_models.language_model(scale=float("nan"))
    refused(model, "probabilities", load=lambda model: model.generate(limit=3))


def test_original_options_with_filters_without_number(original: Path) -> None:
    edited(original, lambda options: options["char_cnn"].update(filters=[[1, 1]] * 20_000), "options.json")
    refused(original, "at most 1000")
    edited(original, lambda options: options["char_cnn"].update(filters=[[1, 1]] * 200_000), "options.json")
    refused(original, "too large")


def test_original_options_with_numbers_of_any_size(original: Path) -> None:
    for key, value in (("dim", 10**400), ("cell_clip", 10**400), ("cell_clip", float("inf")), ("n_layers", 10**9)):
        edited(original, lambda options, k=key, v=value: options["lstm"].update({k: v}), "options.json")
        refused(original, "options.json")
        edited(original, lambda options: options["lstm"].update(dim=10, cell_clip=3, n_layers=2), "options.json")
    text = (original / "options.json").read_text()
    (original / "options.json").write_text(text.replace("10", "9" * 5000, 1))
    refused((original / "options.json", original / "weights.hdf5"), "too many digits")


def test_an_archive_with_thousands_of_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(20_000):
            archive.writestr(zipfile.ZipInfo(f"{number}.json"), "{}")
    refused(tmp_path / "a.zip", "a.zip", "list of members is too long")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for number in range(2_000):
            archive.writestr(zipfile.ZipInfo(f"{number}.json"), "{}")
    refused(tmp_path / "b.zip", "it has 2,000 members")


def test_of_many_files_few_are_looked_into(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(300):
            archive.writestr(zipfile.ZipInfo(f"{number}.json"), "{}")
        for number in range(20):
            archive.writestr(zipfile.ZipInfo(f"{number}.hdf5"), b"")
    read: list[str] = []
    monkeypatch.setattr(relmo.store.original.Member, "read", lambda member: read.append(member.name) or b"{}")
    refused(tmp_path / "a.zip", "but no .json with", "and 97 more")
    assert len(read) <= 200


def test_pieces_of_a_dataset_that_are_larger_than_itself(original: Path) -> None:
    with h5py.File(original / "weights.hdf5", "r+") as file:
        shape = file["char_embed"].shape
        del file["char_embed"]
        file.create_dataset("char_embed", shape, "f4", chunks=(30_000, 30_000), maxshape=(None, None), compression=1)
    refused(original, "char_embed", "larger than itself")


def test_a_reference_with_a_name_that_no_system_takes(tmp_path: Path) -> None:
    fuzz_models.make_with_parts(tmp_path / "model", tagging.tiny_bilm())
    for name, place in (("vectors", "./vectors"), ("elmo", "./bilm")):
        for source in ("x" * 5000, "a\0b", "/dev/zero", "./" + "y/" * 3000):
            edited(tmp_path / "model", lambda config, n=name, s=source: config[n].update(source=s))
            refused(tmp_path / "model")
        edited(tmp_path / "model", lambda config, n=name, s=place: config[n].update(source=s))
    relmo.load(tmp_path / "model", device="cpu")


def test_numbers_of_thousands_of_digits_in_files_of_tasks(tmp_path: Path) -> None:
    digits = "9" * 5000
    (tmp_path / "set.gold").write_text(f"{digits}\tare\tis\t1\n")
    (tmp_path / "set.text").write_text("cats are\n")
    refused(tmp_path / "set.gold", "set.gold:1", load=read_pairs)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": {digits}}}\n')
    refused(tmp_path / "a.jsonl", "a.jsonl:1", load=lambda path: list(read_labelled(path, split=str.split)))
    (tmp_path / "a.conllu").write_text("1\ta\ta\tX\t_\t_\t0\t_\t_\t_\n")
    refused(tmp_path / "a.conllu", load=lambda path: list(read_tagged(path, column=digits)))


def test_what_is_no_file_among_labelled_texts_is_passed_over(tmp_path: Path) -> None:
    for label in ("good", "bad"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "one.txt").write_text("a text")
    os.mkfifo(tmp_path / "bad" / "two.txt")
    assert len(list(read_labelled(tmp_path, split=str.split))) == 2


def test_figures_of_any_kind(tmp_path: Path) -> None:
    row = {"name": "layer 1", "ours": {"all words": 10**400}}
    for table in ({"name": [], "rows": [row]}, {"name": "pos", "rows": [row]}):
        (tmp_path / "figures.json").write_text(json.dumps({"pos": table}))
        if table["name"]:
            assert read_figures(tmp_path / "figures.json")[0]["rows"] == []
        else:
            refused(tmp_path / "figures.json", "measurements", load=read_figures)
    refused(Path("/dev/zero"), "too large", load=read_figures)


def test_a_file_of_senses_that_never_ends(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("a b%1:1:1::\n")
    refused("/dev/full", load=lambda path: read_framework(path, tmp_path / "gold"))
