"""The README leads to every page, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.airflow_version import AIRFLOW

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
LINKS = set(re.findall(r"\]\((?!https?:)([^)#]+)", TEXT))


def test_each_link_leads_to_a_file():
    assert LINKS
    assert [link for link in sorted(LINKS) if not (ROOT / link).is_file()] == []


def test_each_page_is_linked():
    pages = {
        str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts
    }
    assert sorted(pages - LINKS - {"docs/index.md"}) == []


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="it imports airflow.sdk")
def test_the_dag_of_the_readme_is_one():
    (dag,) = re.findall(r"```python\n(.+?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}

    exec(dag, names)  # noqa: S102  the project's own page

    assert "ship_logs" in names
