"""The vectorizer in scikit-learn's own hands."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'relmo[sklearn]'")

from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import estimator_checks

import relmo
from relmo.compat.sklearn import ElmoVectorizer
from relmo.errors import ModelError, SettingError
from support.small_models import bilm

TEXTS = ["the cat sat", "the large mat", "a cat", "the mat , the mat"] * 6
LABELS = [1, 0, 1, 0] * 6
WITHOUT_DATA = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("models") / "tiny"
    bilm().save_pretrained(place)
    return str(place)


@pytest.mark.filterwarnings("ignore:Can't test estimator")  # with numbers, as it takes texts
def test_check_estimator_finds_nothing_wrong() -> None:
    estimator_checks.check_estimator(ElmoVectorizer())


@pytest.mark.parametrize("check", WITHOUT_DATA)
def test_checks_that_need_no_numbers_pass(check: str) -> None:
    getattr(estimator_checks, check)("ElmoVectorizer", ElmoVectorizer())


@pytest.mark.parametrize(("layers", "pooling"), [("average", "mean"), ("top", "max"), (0, "mean"), ("all", "max")])
def test_rows_are_the_pooled_vectors_of_the_model(folder: str, layers: Any, pooling: Any) -> None:
    vectorizer = ElmoVectorizer(folder, layers=layers, pooling=pooling)
    texts = ["the cat sat", ["a", "large", "mat"], ""]
    rows = vectorizer.fit_transform(texts)
    vectors = relmo.load(folder, kinds="bilm").embed(texts, layers=layers)
    for row, own in zip(rows[:2], vectors, strict=False):
        pooled = own.mean(axis=-2) if pooling == "mean" else own.max(axis=-2)
        np.testing.assert_allclose(row, pooled.ravel(), rtol=1e-6)
    assert not rows[2].any()
    assert rows.dtype == np.float32
    assert list(vectorizer.get_feature_names_out()) == [f"elmovectorizer{i}" for i in range(rows.shape[1])]


def test_texts_may_be_an_array_and_no_texts_give_no_rows(folder: str) -> None:
    vectorizer = ElmoVectorizer(folder)
    np.testing.assert_array_equal(vectorizer.transform(np.array(TEXTS)), vectorizer.transform(TEXTS))
    assert vectorizer.transform([]).shape == (0, 8)


def test_a_pipeline_is_searched_and_learns(folder: str) -> None:
    pipeline = Pipeline([("elmo", ElmoVectorizer(folder)), ("classify", LogisticRegression(C=100.0))])
    grid = {"elmo__layers": ["average", 0, "all"], "elmo__pooling": ["mean", "max"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(TEXTS, LABELS)
    assert search.best_score_ == 1.0
    assert list(search.predict(["a cat", "the mat , the mat"])) == [1, 0]


def test_a_pickle_holds_no_weights_and_gives_the_same_vectors(folder: str) -> None:
    vectorizer = ElmoVectorizer(folder, layers="top")
    before = vectorizer.fit_transform(TEXTS)
    data = pickle.dumps(make_pipeline(vectorizer))
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data).transform(TEXTS), before)  # noqa: S301
    np.testing.assert_array_equal(clone(vectorizer).transform(TEXTS), before)


def test_a_model_that_is_written_anew_is_loaded_anew(tmp_path: Path) -> None:
    bilm().save_pretrained(tmp_path / "m")
    vectorizer = ElmoVectorizer(tmp_path / "m")
    before = vectorizer.transform(TEXTS)
    bilm(projection=5).save_pretrained(tmp_path / "m")
    assert vectorizer.transform(TEXTS).shape[1] == before.shape[1] + 2


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("the cat", SettingError, "texts"),
        (np.zeros((2, 3)), SettingError, "2 dimensions"),
        ([3], SettingError, "words"),
    ],
)
def test_what_is_no_text_is_one_clear_line(folder: str, given: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        ElmoVectorizer(folder).fit_transform(given)
    with pytest.raises(ModelError, match="exist"):
        ElmoVectorizer("nowhere").fit(["a cat"])
