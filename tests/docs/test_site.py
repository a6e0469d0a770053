"""The documentation builds as a site in which all links and anchors hold.

The whole site is built in slow tests: half a minute, most of it for the example turns of all games.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import browser
import pytest

ROOT = Path(__file__).parents[2]


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--site-dir",
        str(out),
        "--config-file",
        str(root / "mkdocs.yml"),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


class Links(HTMLParser):
    """What a page links to and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        self.loaded += [str(given["src"])] if given.get("src") else []
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect"):
            self.loaded.append(str(given["href"]))


@pytest.mark.slow
def test_every_page_is_there_and_its_links_lead_to_files(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    others = ["index", "contributing", "changelog", "benchmarks", "reference", "parts", "games/index", "games/Sokoban"]
    assert [page for page in [*pages, *others] if not (site / f"{page}.html").is_file()] == []
    inside = 0
    for page in site.rglob("*.html"):
        read = Links()
        read.feed(page.read_text(encoding="utf-8"))
        assert not [each for each in read.loaded if "://" in each], f"{page.name} loads something from elsewhere"
        for link in read.links if page.name != "404.html" else []:
            path = unquote(link.partition("#")[0])
            if "://" in link or not path:
                continue
            assert (page.parent / path).exists(), f"{page.name}: {link}"
            inside += 1
    assert inside > 2000


@pytest.mark.slow
@pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed")
def test_the_site_is_read_and_searched_as_files(site: Path) -> None:
    scheme = "document.body.dataset.mdColorScheme"

    async def look() -> None:
        async with browser.open_page((site / "games" / "KuhnPoker.html").as_uri()) as page:
            await page.until("KuhnPoker")
            before = await page.evaluate(scheme)
            await page.evaluate(
                "document.querySelector('label.md-header__button[for^=__palette]:not([hidden])').click()"
            )
            assert {before, await page.evaluate(scheme)} == {"default", "slate"}
            await page.evaluate("document.querySelector('input[name=query]').focus()")
            await page.command("Input.insertText", text="importance_masked_fraction")
            await page.until("matching document")
            found = await page.evaluate("document.querySelector('a.md-search-result__link').href")
            assert found.startswith((site / "monitoring.html").as_uri())

    asyncio.run(look())


@pytest.mark.slow
def test_links_to_files_of_the_repository_lead_to_their_text(site: Path) -> None:
    for page, path in (
        ("extending.html", "rllib_lmgame/learners/advantages/base.py"),
        ("clusters.html", "docs/cluster/ray-cluster.yaml"),
    ):
        assert f'href="files/{path}.txt"' in (site / page).read_text(encoding="utf-8")
        assert (site / "files" / f"{path}.txt").read_bytes() == (ROOT / path).read_bytes()


def test_links_that_lead_nowhere_end_the_build(tmp_path: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    dead = ["docs/no-such.md", "docs/games.md#no-such", "no/such.py"]
    links = ", ".join(f"[nothing]({target})" for target in dead)
    pages = dict.fromkeys(("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "docs/games.md"), "# A page\n")
    pages |= {"CHANGELOG.md": f"# Changelog\n\n[A page](docs/games.md), {links}\n", "mkdocs.yml": settings}
    pages["docs/site_hooks.py"] = (ROOT / "docs" / "site_hooks.py").read_text(encoding="utf-8")
    pages["docs/generate.py"] = "def pages():\n    return {}\n"
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = build(tmp_path, tmp_path / "out")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert done.returncode == 1 and len(warnings) == len(dead)
    for target in dead:
        assert any("changelog.md" in line and target.replace("docs/", "") in line for line in warnings), target
