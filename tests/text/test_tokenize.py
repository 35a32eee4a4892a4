import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relmo.text.tokenize import join, split_whitespace, tokenize, words

# Pieces that the rules react to, glued in any order, next to arbitrary characters.
PIECES = [
    "don't",
    "'",
    "’",
    '"',
    ".",
    "...",
    "-",
    "--",
    "@",
    "#",
    "/",
    "://",
    "http://a.b",
    "www.",
    "U.S",
    "Mr.",
    "1,0",
]
PIECES += [
    "é",
    "e\u0301",
    "\u0301",
    "\u200d",
    "漢",
    "ひ",
    "カ",
    "ส",
    "ក្ក",
    "한",
    "👩‍👧",
    "🇫",
    "👍🏽",
    "\ufe0f",
    "1️⃣",
    "_",
    "l'",
    " ",
    "\n",
]
noisy = st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join)


@given(noisy | st.text())
@example("a+b@c.d,e")
@example("\ufeff\u200b\x00\x1c")
def test_tokens_cover_every_visible_character_once_and_in_order(text: str) -> None:
    tokens = tokenize(text)
    assert all(text[token.start : token.end] == token.text != "" for token in tokens)
    assert all(left.end <= right.start for left, right in pairwise(tokens))
    covered = {place for token in tokens for place in range(token.start, token.end)}
    assert covered == {place for place, character in enumerate(text) if not character.isspace()}


@given(noisy)
def test_words_are_the_strings_of_tokenize(text: str) -> None:
    assert words(text) == [token.text for token in tokenize(text)]


@given(noisy)
def test_join_only_adds_or_drops_white_space(text: str) -> None:
    assert "".join(join(words(text)).split()) == "".join(text.split())


@given(noisy)
def test_split_whitespace_is_str_split_with_offsets(text: str) -> None:
    tokens = split_whitespace(text)
    assert [token.text for token in tokens] == text.split()
    assert all(text[token.start : token.end] == token.text for token in tokens)


ENGLISH = [
    "I do|n't , you ca|n't , they cannot|.",
    "It|’s JOHN|'S ; they|'d|'ve , we|'ll , I|'m , you|'re .",
    "O'Brien came at five o'clock|, ma'am|.",
    "the dogs|' toys of the '90s|, 'tis for 'em",
    "Mr. Smith and Dr. J. R. Who left the U.S. at 10:30 a.m. , e.g. by car|.",
    "No. 5 said no|. So did I|. He left|...",
    "It cost $|1,000.50 (|3.14|%|) on 11/28/2000|, or €|5|.",
    "a well-known state-of-the-art and|/|or both -- dash|—|dash",
    "“|quoted|” '|single|' \"|double|\" [|brackets|]",
    "see http://a.b/c?d=e , (|www.x.org|) or bob.b+x@ex.co.uk|, @user_1 #tag #|1",
    "AT&T , R&D and C++ in snake_case|, readme.txt|!!!",
    "_|emphasis|_ :) <3",
]
OTHERS = [
    "l'|homme , c'|est qu'|il d’|accord aujourd'hui , quelqu'un jusqu'|à L'|Europe",
    "dell'|uomo e un'|altra",
    "是|2015|年|5|月|23|日 R&B|公|主",
    "ジョン|・|スミス|は|テレビ|を|見|ま|し|た|。",
    "한국어를 공부합니다|.",
    "हिन्दी में लिखा है|।",
    "العَرَبِيَّة|، می‌خواهم",
    "ส|วั|ส|ดี",
    "ភា|សា|ខ្មែ|រ",
    "မြ|န်|မာ",
    "Türkiye'de м'ята צה״ל",
    "👩‍👩‍👧‍👦|👍🏽|🇫🇷|🇩🇪|❤️ 1️⃣ 😀|😀",
    "e\u0301te\u0301 x",
]


@pytest.mark.parametrize("marked", ENGLISH + OTHERS)
def test_text_splits_at_spaces_and_bars(marked: str) -> None:
    """In the examples a bar marks a split where the text has no space."""
    assert words(marked.replace("|", "")) == re.split(r"[ |]+", marked)


@pytest.mark.parametrize(
    "text",
    [
        "I don't think they'd've said “no” (or “yes”), but it's Mr. O'Brien's.",
        'He said, "I can\'t pay $5.50, or 10%!" and left...',
        "The dogs' toys and/or 'single quotes' are here; see [1]: #1.",
        "It was 1990–95—not before.",
        "— L'homme qu'il a vu n'est pas d'accord.",
        "《妄想女友》是2015年5月23日開始。",
        "ジョン・スミスはテレビを見ました。",
        "สวัสดีครับ",
        "한국어를 공부합니다.",
    ],
)
def test_join_gives_back_readable_text(text: str) -> None:
    assert join(words(text)) == text


def test_join_of_nothing_is_empty_and_an_unpaired_quote_opens_after_a_comma() -> None:
    assert join([]) == ""
    assert join(["He", "said", ",", '"', "I", "am"]) == 'He said, "I am'


@pytest.mark.parametrize(
    "noise", ["a+", "a.", "ab.", "a@", "'d", "l'", "a-", "1,", "a_", "www.", "A&", "n't", "👩‍", "\u0301"]
)
@pytest.mark.timeout(300)  # a second is enough, and the square of the length takes longer on any machine
def test_of_noise_so_long_that_the_square_of_its_length_would_never_end_nothing_is_lost(noise: str) -> None:
    text = noise * 250_000
    assert "".join(words(text)) == text


def ewt_sentences(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The raw text and the forms of each sentence; a multi-word token that its words do not spell counts as one."""
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        text = re.search(r"^# text = (.*)$", block, re.MULTILINE)
        rows = [line.split("\t")[:2] for line in block.split("\n") if re.match(r"[0-9]+(-[0-9]+)?\t", line)]
        forms = []
        while rows:
            number, form = rows.pop(0)
            if "-" in number:
                first, last = map(int, number.split("-"))
                parts = [rows.pop(0)[1] for _ in range(first, last + 1)]
                forms += parts if "".join(parts) == form else [form]
            else:
                forms.append(form)
        assert text
        yield text[1], forms


def spans(text: str, forms: list[str]) -> set[tuple[int, int]]:
    found, end = set(), 0
    for form in forms:
        start = text.index(form, end)
        end = start + len(form)
        found.add((start, end))
    return found


@pytest.mark.parametrize(("treebank", "floor"), [("en_ewt", 0.98), ("fr_sequoia", 0.985), ("af_afribooms", 0.99)])
def test_tokens_agree_with_the_treebank(data: Callable[[str], Path], treebank: str, floor: float) -> None:
    path = data(f"tasks/pos_ud/{treebank}/{treebank}-ud-dev.conllu")
    right = total = 0
    for text, forms in ewt_sentences(path):
        gold, ours = spans(text, forms), {(token.start, token.end) for token in tokenize(text)}
        right += 2 * len(gold & ours)
        total += len(gold) + len(ours)
    assert right / total >= floor
