"""The checker of prose says what is too long, and where."""

from __future__ import annotations

import prose
import pytest

SHORT = "One two three four five. "
LONG = "word " * 36 + "end."


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("README.md", f"# Title\n\n{SHORT * 9}\n", 3),
        ("docs/page.md", f"| a | b |\n|---|---|\n| {SHORT * 9} | b |\n", 3),
        ("docs/page.md", f"Short.\n\n{LONG[:100]}\n{LONG[100:]}\n", 3),
        ("docs/games/page.md", f"- Short.\n- {LONG[:100]}\n  {LONG[100:]}\n", 2),
        ("docs/page.md", f"| a | b |\n|---|---|\n| a | {LONG} |\n", 3),
        ("docs/page.md", "word " * 30 + "[of a\nlink](page.md), and five words more here\n", 1),
        ("rllib_lmgame/module.py", f'def f():\n    """Short.\n\n    {LONG}\n    """\n', 4),
        ("rllib_lmgame/module.py", f'"""Short.\n\nArgs:\n    x: short.\n    y: {LONG}\n"""\n', 5),
        ("rllib_lmgame/module.py", f'X = 1\n"""{LONG}"""\n', 2),
    ],
)
def test_what_is_too_long_is_told_with_its_line(
    name: str, text: str, line: int, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, name, text)
    assert prose.main(tmp_path) == 1
    assert capsys.readouterr().out.startswith(f"{name}:{line}: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/page.md", f"```python\n{LONG * 3}\n```\n\n[long]: https://example.org/{'x' * 300}\n"),
        ("docs/page.md", f"{'`a b c d e f`, ' * 12}.\n"),
        ("docs/page.md", f"- {LONG[:150]}\n- {LONG[:150]}\n"),
        ("docs/page.md", f"| {SHORT * 7} | {SHORT * 7} |\n|---|---|\n"),
        ("rllib_lmgame/module.py", f'X = "{LONG}"\n'),
        ("rllib_lmgame/module.py", f'"""Short::\n\n    {LONG}\n\nShort.\n"""\n'),
    ],
)
def test_code_and_addresses_are_no_prose(name: str, text: str, tmp_path) -> None:
    write(tmp_path, name, text)
    assert prose.main(tmp_path) == 0


def write(root, name: str, text: str) -> None:
    """A project of one file and a short README."""
    for path, content in (("README.md", SHORT), (name, text)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")
