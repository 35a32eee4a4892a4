"""The pages as a reader has them: links lead somewhere, lines are short, the front page is one page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *SITE, *sorted((ROOT / "src").rglob("README.md"))]
TABLES = ("results.md", "benchmarks.md")  # pages with wide tables
GUIDES = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.name not in TABLES)]
LONGEST_LINE, LONGEST_FRONT_PAGE = 120, 120


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks and bits of code, where a bracket is no link."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)[^`]+?\1(?!\])", "", text)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub and the site call them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{name_of(page)} links to {target}"


def test_the_checker_sees_links_and_headings() -> None:
    assert sum(len(re.findall(r"\]\(([^)\s]+)\)", prose(page))) for page in PAGES) > 50
    assert "six-tasks-with-and-without-elmo" in anchors(ROOT / "docs" / "reproduce.md")


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_no_line_of_a_guide_is_longer_than_a_screen_is_wide(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    assert [f"{name_of(page)}:{number}" for number, line in lines if len(line) > LONGEST_LINE] == []


def test_the_front_page_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_FRONT_PAGE
