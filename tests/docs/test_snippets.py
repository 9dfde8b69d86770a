"""Every Python snippet of README and docs runs, page by page, in the order it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS_MODEL = "# runs with: model"


def snippets(page: Path, *, model: bool) -> list[str]:
    found = SNIPPET.findall(page.read_text(encoding="utf-8"))
    return [code for code in found if code.startswith(NEEDS_MODEL) == model]


def run(page: Path, codes: list[str]) -> None:
    scope: dict[str, object] = {"__name__": "snippet"}
    for code in codes:
        exec(compile(code, str(page), "exec"), scope)


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, model=False)], ids=lambda p: p.stem)
def test_snippets_of_a_page_run(page: Path) -> None:
    run(page, snippets(page, model=False))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, model=True)], ids=lambda p: p.stem)
def test_snippets_that_need_the_model_run(page: Path) -> None:
    run(page, snippets(page, model=True))


def test_the_docs_hold_snippets_at_all() -> None:
    assert sum(len(snippets(page, model=False)) for page in PAGES) >= 8
