"""Packages of models: what `relmo package` writes, and models that are found by name."""

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

import relmo
from relmo.cli.packages import describe_score, gather_installed
from relmo.errors import ModelError, SettingError
from relmo.models.packages import parse_name, write_package
from relmo.store.installed import bundled_models, find_clashes, get_installed, packaged_models
from tests.support.small_models import language_model

PROJECTS = Path(__file__).parents[2] / "models"
ABOUT = {"text": "a cat on a mat", "languages": ["da", "nn"], "license": "CC-BY-4.0"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "letters"
    language_model(hidden=4).save_pretrained(folder)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path of modules, as pip's site-packages is."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(project: Path, site: Path) -> None:
    """Copy a project to where pip would put its module and its metadata."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    module = facts["name"].replace("-", "_")
    shutil.copytree(project / module, site / module)
    metadata = site / f"{module}-{facts['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {facts['name']}\nVersion: {facts['version']}\n")
    ((name, target),) = facts["entry-points"]["relmo.models"].items()
    (metadata / "entry_points.txt").write_text(f"[relmo.models]\n{name} = {target}\n")


def test_a_package_is_found_by_its_name(model: Path, site: Path, tmp_path: Path) -> None:
    names = write_package(model, tmp_path / "project", "relmo-letters", version="1.2", about=ABOUT)
    assert names == ("relmo-letters", "letters", "relmo_letters")
    facts = tomllib.loads((tmp_path / "project" / "pyproject.toml").read_text())["project"]
    assert facts["license"] == "CC-BY-4.0"
    assert facts["dependencies"] == [f"relmo>={relmo.__version__}"]
    with pytest.raises(ModelError, match="letters: does not exist"):
        relmo.load("letters")
    install(tmp_path / "project", site)
    assert "relmo_letters" not in sys.modules
    installed = relmo.load("letters", kinds="lm")
    assert "relmo_letters" not in sys.modules  # no code of the package runs
    assert installed.generate("the", limit=9, seed=1) == relmo.load(model, kinds="lm").generate("the", limit=9, seed=1)
    (package,) = [package for package in packaged_models() if package.name == "letters"]
    record = gather_installed(package)
    assert (record["package"], record["version"], record["text"]) == ("relmo-letters", "1.2", ABOUT["text"])
    assert record["languages"] == ["da", "nn"]


def test_the_packages_of_the_repository_load_by_name(site: Path) -> None:
    for project in sorted(PROJECTS.iterdir()):
        install(project, site)
    assert relmo.load("french", kinds="bilm").embed(["la banque"])[0].shape == (3, 2, 128)
    assert relmo.load("names", kinds="tagger").predict(["Anna lives in Oslo ."])[0].tags[0] == "B-PER"
    tags = relmo.load("french-pos", kinds="tagger").predict(["Le roi dort ."])[0].tags
    assert tags == ["DET", "NOUN", "VERB", "PUNCT"]


def test_a_folder_takes_precedence_over_an_installed_model_of_its_name(
    model: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(model, tmp_path / "project", "letters")
    install(tmp_path / "project", site)
    language_model(hidden=6).save_pretrained(tmp_path / "here" / "letters")
    monkeypatch.chdir(tmp_path / "here")
    assert relmo.load("letters", kinds="lm").settings.model.hidden == 6
    monkeypatch.chdir(tmp_path / "site")
    assert relmo.load("letters", kinds="lm").settings.model.hidden == 4


def test_a_name_in_two_packages_is_one_clear_error(model: Path, site: Path, tmp_path: Path) -> None:
    for project, version in (("relmo-letters", "1.0"), ("letters", "2.0")):
        write_package(model, tmp_path / version, project, version=version)
        install(tmp_path / version, site)
    with pytest.raises(ModelError, match=r"several installed packages; .* letters 2.0, relmo-letters 1.0"):
        relmo.load("letters")
    assert any("letters" in clash for clash in find_clashes())


@pytest.mark.parametrize("name", ["relmo-small", "words", "two words", "-x", "relmo", "3d"])
def test_unusable_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match="name"):
        parse_name(name)


@pytest.mark.parametrize(("key", "value"), [("license", "free, I think"), ("version", "newest")])
def test_pip_would_refuse_other_licences_and_versions(key: str, value: str, model: Path, tmp_path: Path) -> None:
    arguments = {"about": {"license": value}} if key == "license" else {"version": value}
    with pytest.raises(SettingError, match=value):
        write_package(model, tmp_path / "project", "relmo-letters", **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "project").exists()


def test_the_stored_precision_and_the_weights_stay(tmp_path: Path) -> None:
    write_package("prose-lstm", tmp_path / "project", "relmo-tolstoy")
    folder = tmp_path / "project" / "relmo_tolstoy"
    config = json.loads((folder / "config.json").read_text())
    assert config["stored"]["precision"] == "int8"
    assert config["about"]["text"].startswith("War and Peace")
    copy, bundled = relmo.load(folder, kinds="lm"), relmo.load("prose-lstm", kinds="lm")
    for name, tensor in bundled.tensors().items():
        np.testing.assert_array_equal(copy.tensors()[name], tensor)


def test_a_model_built_on_a_folder_is_refused(model: Path, tmp_path: Path) -> None:
    change = json.loads((model / "config.json").read_text())
    change["elmo"] = {"source": str(tmp_path / "elsewhere"), "digest": "0"}
    (model / "config.json").write_text(json.dumps(change))
    with pytest.raises(ModelError, match="--copy"):
        write_package(model, tmp_path / "project", "relmo-letters")


def test_bundled_models_are_listed_with_their_text_and_score() -> None:
    assert next(iter(bundled_models())) == "small"
    records = {name: gather_installed(model) for name, model in bundled_models().items()}
    assert all(record["text"] and record["kind"] for record in records.values())
    assert "perplexity" in records["small"]["score"]
    assert "bits per character" in records["prose"]["score"]
    assert describe_score({"metric": "f1", "valid_f1": 0.789}) == "78.9 f1"
    assert get_installed("no-such-model") is None


@pytest.mark.slow
def test_pip_installs_what_the_command_writes(model: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    command = [sys.executable, "-m", "relmo", "package", model, project, "--name", "relmo-letters", "--language", "da"]
    subprocess.run(command, check=True)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", project], check=True)
    code = "from importlib.metadata import entry_points as e; print(*[p.value for p in e(group='relmo.models')])"
    output = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["relmo_letters"]
    (folder,) = (tmp_path / "env").glob("lib/*/site-packages/relmo_letters")
    assert relmo.load(folder, kinds="lm").vocabulary is not None
