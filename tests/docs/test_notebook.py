"""The notebook has the lines of the README's example, which tests/docs/test_code.py runs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import notebook_page
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_its_cells_are_the_example_and_nothing_is_shown_that_was_not_run() -> None:
    written = (DOCS / "quickstart.ipynb").read_text(encoding="utf-8")
    assert written == notebook_page.notebook()
    cells = json.loads(written)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    joined = "\n".join("".join(cell["source"]) for cell in code)
    assert ast.dump(ast.parse(joined)) == ast.dump(ast.parse(notebook_page.example()))
    assert [line for line in notebook_page.example().splitlines() if line] == joined.splitlines(), "comments too"
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_an_example_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_page, "example", lambda: "import rllib_lmgame\nprint(rllib_lmgame.__version__)\n")
    with pytest.raises(ValueError, match=r"\['Import', 'Expr'\]: say in docs/notebook_page.py"):
        notebook_page.notebook()
