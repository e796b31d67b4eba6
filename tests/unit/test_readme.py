"""The README leads to every page, and links lead to what is there."""

import re
from pathlib import Path

import pytest

from tests.airflow_version import AIRFLOW

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
LINKS = set(re.findall(r"\]\((?!https?:)([^)#]+)", TEXT))
REPOSITORY = "https://github.com/airflow-provider-snowpipe/airflow-provider-snowpipe/blob/main/"
WORDS = 45_700
"""Of the pages of both distributions; it only goes down."""
PAGES = [page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]


def prose(page):
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """Fragments of a page's headings, as GitHub and MyST make them."""
    headings = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", one)
        for one in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    )
    return {re.sub(r"[^\w -]", "", one.strip().lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_within_the_repository_leads_to_a_file_and_a_heading(page):
    wrong = []
    pictures = re.findall(r"^```{image} (\S+)", page.read_text(), re.MULTILINE)
    for link in pictures + re.findall(r"\]\(([^)\s]+)", prose(page)):
        path, _, anchor = link.removeprefix(REPOSITORY).partition("#")
        if path.startswith(("http:", "https:")):
            continue
        base = ROOT if link.startswith(REPOSITORY) else page.parent
        target = base / path if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            wrong.append(link)

    assert wrong == []


def test_each_page_is_in_the_contents():
    pages = {
        str(page.relative_to(ROOT / "docs"))
        for page in (ROOT / "docs").rglob("*.md")
        if "_build" not in page.parts
    }
    contents = re.findall(r"^:::\{toctree\}\n(.*?)^:::$", (ROOT / "docs/index.md").read_text(), re.M | re.S)
    entries = {f"{line}.md" for one in contents for line in one.splitlines() if re.match(r"[\w/-]+$", line)}

    assert sorted(pages ^ {*entries, "index.md"}) == []


def test_the_pages_of_both_distributions_keep_their_budget_of_words():
    service = ROOT / "snowpipe-local"
    pages = [*(ROOT / "docs").rglob("*.md"), *(service / "docs").glob("*.md")]
    pages += [ROOT / "README.md", service / "README.md"]
    words = {page: len(page.read_text().split()) for page in pages if "_build" not in page.parts}
    most = {page: 900 if page.parent.name == "how-to" else 2_500 for page in words}

    assert sum(words.values()) <= WORDS
    assert [str(page) for page, number in words.items() if number > most[page]] == []


def test_the_readme_leads_to_pages_that_need_no_generator():
    """A package index shows the README, and its links show pages as the repository has them."""
    for link in sorted(one for one in LINKS if one.endswith(".md")):
        text = (ROOT / link).read_text()
        assert "<!-- generated" not in text, link
        assert "{eval-rst}" not in text, link
        for included in re.findall(r"^```\{literalinclude\} (\S+)$", text, re.M):
            assert f"]({included})" in text, link


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="it imports airflow.sdk")
def test_the_dag_of_the_readme_is_one():
    (dag,) = re.findall(r"```python\n(.+?)```", TEXT, re.DOTALL)
    names = {}

    exec(dag, names)  # noqa: S102  the project's own page

    assert "ship_logs" in names
