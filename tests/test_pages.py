"""Tests of the documentation pages: links, line lengths, length of the README."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *SITE, *sorted((ROOT / "src").rglob("README.md"))]
TABLES = ("results.md", "lab-notebook.md", "benchmarks.md")  # pages with wide tables
GUIDES = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.name not in TABLES)]
MAX_LINE_LENGTH, MAX_README_LINES = 120, 120


def get_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read_prose(page: Path) -> str:
    """Return a page without code, where brackets are not links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)[^`]+?\1(?!\])", "", text)


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read_prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{get_name(page)} links to {target}"
        assert not anchor or anchor in find_anchors(file), f"{get_name(page)} links to {target}"


def test_the_checker_sees_links_and_headings() -> None:
    assert sum(len(re.findall(r"\]\(([^)\s]+)\)", read_prose(page))) for page in PAGES) > 50
    assert "six-tasks-with-and-without-elmo" in find_anchors(ROOT / "docs" / "reproduce.md")


@pytest.mark.parametrize("page", GUIDES, ids=get_name)
def test_no_line_of_a_guide_is_longer_than_a_screen_is_wide(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    assert [f"{get_name(page)}:{number}" for number, line in lines if len(line) > MAX_LINE_LENGTH] == []


def test_the_front_page_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES
