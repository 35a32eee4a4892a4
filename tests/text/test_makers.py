"""Makers of pairs: every answer is right, nothing that is held out is learned from, longer ones are longer."""

import re
from datetime import date, datetime

import pytest

from relmo.errors import SettingError
from relmo.text.makers import MakerOptions, make_pairs

SMALL = {"count": 300, "held_out": 40, "longer": 5}


@pytest.mark.parametrize("operators", ["+", "+-*"])
def test_sums_are_right_and_of_every_length(operators: str) -> None:
    made = make_pairs("arithmetic", MakerOptions(size=3, operators=operators, **SMALL))  # type: ignore[arg-type]
    used = set()
    for source, target in [*made.train, *made.held_out, *made.longer]:
        found = re.fullmatch(r"(\d+) ([-+*]) (\d+) = \?", source)
        assert found is not None
        a, b = int(found[1]), int(found[3])
        assert {"+": a + b, "-": a - b, "*": a * b}[found[2]] == int(target)
        used.add(found[2])
    assert used == set(operators)
    digits = [max(map(len, re.findall(r"\d+", source))) for source, _ in made.train]
    assert {1, 2, 3} == set(digits)
    assert [max(map(len, re.findall(r"\d+", s))) for s, _ in made.longer] == [n for n in (4, 5, 6) for _ in range(5)]


@pytest.mark.parametrize("name", ["arithmetic", "copy", "reverse", "dates"])
def test_what_is_held_out_is_not_learnt_from_and_a_seed_makes_the_same(name: str) -> None:
    options = MakerOptions(size=4, **SMALL)  # type: ignore[arg-type]
    made = make_pairs(name, options)
    assert (len(made.train), len(made.held_out)) == (300, 40)
    assert not set(made.held_out) & set(made.train)
    assert not set(made.longer) & set(made.train)
    assert made == make_pairs(name, options)
    assert made != make_pairs(name, MakerOptions(size=4, seed=1, **SMALL))  # type: ignore[arg-type]


def test_copies_and_reversals_go_up_to_ten_times_the_length() -> None:
    for name, step in (("copy", 1), ("reverse", -1)):
        made = make_pairs(name, MakerOptions(size=6, letters=3, **SMALL))  # type: ignore[arg-type]
        assert all(target == source[::step] for source, target in [*made.train, *made.longer])
        assert {len(source) for source, _ in made.train} == {1, 2, 3, 4, 5, 6}
        assert [len(source) for source, _ in made.longer[::5]] == [12, 18, 30, 60]
        assert set("".join(source for source, _ in made.train)) == set("abc")


def test_dates_are_days_however_they_are_written() -> None:
    made = make_pairs("dates", MakerOptions(**SMALL))  # type: ignore[arg-type]
    forms = ("%d %B %Y", "%B %d, %Y", "%d %b %Y", "%d of %B, %Y", "%d/%m/%Y", "%d.%m.%Y")
    used = set()
    for source, target in [*made.train, *made.longer]:
        plain = re.sub(r"(\d)(st|nd|rd|th) of", r"\1 of", source)
        for form in forms:
            try:
                day = datetime.strptime(plain, form).date()
            except ValueError:
                continue
            used.add(form)
            assert day == date.fromisoformat(target)
    assert used == set(forms)
    assert all(1900 <= int(target[:4]) < 2030 for _, target in made.train)
    assert all(1600 <= int(target[:4]) < 1900 for _, target in made.longer)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sums", {}, "'sums'"),
        ("copy", {"letters": 27}, "letters must be from 1 to 26"),
        ("copy", {"size": 1, "letters": 2, "count": 5, "held_out": 1}, "6 different pairs"),
        ("arithmetic", {"operators": "/"}, "operators must be"),
        ("copy", {"count": 5, "held_out": 6}, "held_out must be from 1 to 5"),
    ],
)
def test_what_cannot_be_made_is_an_error(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        make_pairs(name, MakerOptions(**options))  # type: ignore[arg-type]
