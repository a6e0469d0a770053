"""Says where prose is too long: a line or a table's cell above 200 characters, a sentence above 35 words.

    python docs/prose.py        # pages at the top, docs/**/*.md and the docstrings of the package

Code is not prose: a name in backticks counts as one word, a fenced block as none, a link as its text.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CHARACTERS = 200
WORDS = 35
ROOT = Path(__file__).resolve().parents[1]

Paragraph = tuple[int, str]
"""Number of its first line, and its text on one line."""

ITEM = re.compile(r"\s*([-*] |\d+\. |#+ |\w[\w, *]*: *$|[A-Z][\w ]*: |``\S+``$|``.*  )|\s{4,}\w+: ")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|eq|sec|fig|al)\.", re.IGNORECASE)
DEFINITION = re.compile(r"\[[^\]]+\]: \S+$")


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph, with code as one word and links as their text."""
    text = re.sub(r"(`+).*?\1", "code", text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = ABBREVIATION.sub(r"\1", text)
    return re.split(r"(?<=[.!?])[)*_\"']*\s+", text)


def words(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def cells(row: str) -> list[str]:
    """Cells of a table's row; a bar after a backslash separates none."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def paragraphs(lines: list[str]) -> Iterator[Paragraph]:
    """Paragraphs, items of lists and cells of tables, without fenced or indented code."""
    start, held, fenced, code_follows = 0, "", False, False
    for number, line in enumerate([*lines, ""], 1):
        fence, table = line.lstrip().startswith("```"), line.lstrip().startswith("|")
        code = fenced or fence or (code_follows and line.startswith("    ")) or bool(DEFINITION.match(line))
        fenced ^= fence
        if line.strip() and not code:
            code_follows = line.rstrip().endswith("::")
        if held and (code or table or not line.strip() or ITEM.match(line)):
            yield start, held
            held = ""
        if table and not code:
            yield from ((number, cell) for cell in cells(line))
        elif line.strip() and not code:
            start, held = (start, f"{held} {line.strip()}") if held else (number, line.strip())


def long_sentences(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, text in paragraphs(lines):
        for sentence in sentences(text):
            if words(sentence) > WORDS:
                yield number, f"a sentence of {words(sentence)} words: {sentence[:60]} ..."


def long_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= line.lstrip().startswith("```")
        if fenced or DEFINITION.match(line):
            continue
        longest = max(map(len, cells(line) if line.lstrip().startswith("|") else [line]))
        if longest > CHARACTERS:
            yield number, f"{longest} characters: {line.strip()[:60]} ..."


def docstrings(source: str) -> Iterator[tuple[int, list[str]]]:
    """Strings that stand as statements: number of the first line, and the lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, inspect.cleandoc(node.value.value).splitlines()


def complaints(path: Path) -> list[tuple[int, str]]:
    """What is too long in a page or in a module's docstrings, by line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return sorted([*long_lines(text.splitlines()), *long_sentences(text.splitlines())])
    found = [(first, lines) for first, lines in docstrings(text)]
    return sorted((first + number - 1, what) for first, lines in found for number, what in long_sentences(lines))


def main(root: Path = ROOT) -> int:
    paths = [
        root / "README.md",
        *root.glob("CONTRIBUTING.md"),
        *(root / "docs").rglob("*.md"),
        *(root / "rllib_lmgame").rglob("*.py"),
    ]
    found = 0
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        for number, what in complaints(path):
            print(f"{name}:{number}: {what}")
            found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
