"""Hooks of MkDocs, which builds the site with ``make docs``.

- The README is the first page; ``CONTRIBUTING.md``, ``CHANGELOG.md`` and ``benchmarks/README.md`` are pages too.
- The reference, the parts and the pages of the games are added from ``generate.pages()``.
- A link to another file of the repository leads to a copy of it, as text, below ``files/``.
- Headings have the anchors that they have on GitHub.

So pages are written for the repository, and the same links work on the site. MkDocs ends the build at a dead link.
"""

from __future__ import annotations

import os.path
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Files outside of ``docs/`` that are pages: where they lie, and their place in the site."""
LEFT_OUT = ("docs/cluster/", "docs/grafana/")
"""Folders of ``docs/`` without pages; ``mkdocs.yml`` leaves them out too."""
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)#\s]+)", re.MULTILINE)
FENCE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def anchor(heading: str, separator: str) -> str:
    """GitHub's: lower case, without punctuation, a dash for each space."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]*>", "", heading).strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from elsewhere, the generated ones, and the files that pages link to."""
    sys.path.insert(0, str(ROOT / "docs"))
    import generate

    elsewhere = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in PAGES.items()}
    for page, content in {**elsewhere, **generate.pages()}.items():
        files.append(File.generated(config, page, content=content))
    linked = set()
    for file in files.documentation_pages():
        for _, target in LINK.findall(FENCE.sub("", file.content_string)):
            linked.add(_in_repository(file.src_uri, target))
    for path in sorted(each for each in linked if each and not _page(each)):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, _copy(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave ``docs/`` into links of the site."""

    def resolved(match: re.Match[str]) -> str:
        path = _in_repository(page.file.src_uri, match[2])
        if path is None:
            return match[0]
        target = _page(path) or _copy(path)
        return match[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    parts = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(resolved, part) for i, part in enumerate(parts))


def _in_repository(page: str, target: str) -> str | None:
    """Where a page's relative link leads, from the repository's root; None for other links, and if it leads nowhere."""
    if ":" in target:
        return None
    source = next((path for path, name in PAGES.items() if name == page), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / path).is_dir():
        path += "/__init__.py"  # which says what is in there
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _page(path: str) -> str | None:
    """Its place in the site, of what lies in ``docs/`` or is a page from elsewhere."""
    if path in PAGES:
        return PAGES[path]
    inside = path.startswith("docs/") and not path.endswith(".py") and not path.startswith(LEFT_OUT)
    return path.removeprefix("docs/") if inside else None


def _copy(path: str) -> str:
    return f"files/{path}" + ("" if os.path.splitext(path)[1] in (".txt", ".png", ".csv") else ".txt")
