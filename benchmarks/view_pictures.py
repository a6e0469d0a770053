"""The pictures of README.md and docs/monitoring.md: the page of a run in Chromium, light and dark.

    python benchmarks/view_pictures.py ~/ray_results/quickstart-sokoban

The light one shows the last episode that succeeded, the dark one tokens of an episode, beside another on its level if
there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

import browser
from PIL import Image

from rllib_lmgame.servers.viewer import Viewer
from rllib_lmgame.viewer.library import Library, sources_of

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1280, 800


def views(library: Library) -> dict[str, dict[str, str]]:
    """What the address of each picture says."""
    rows: list[dict[str, Any]] = [json.loads(row) for row in library.rows]
    names = [f"{library.sources[row['f']].label}:{row['n']}" for row in rows]
    levels: dict[tuple[str, Any], list[int]] = {}
    for number, row in enumerate(rows):
        levels.setdefault((row["g"], row["lv"]), []).append(number)

    def is_known(number: int) -> bool:
        """Whether an update told of its tokens."""
        return any("old" in turn for seat in library.episode(number)["seats"] for turn in seat["turns"])

    won = [number for number, row in enumerate(rows) if row["ok"] == 1 and is_known(number)]
    if not won:
        raise SystemExit("no episode of training succeeded; train longer")
    pairs = [(number, other) for number in won for other in levels[rows[number]["g"], rows[number]["lv"]]]
    found = [(number, {"c": names[other]}) for number, other in pairs if other != number and is_known(other)]
    shown, beside = found[-1] if found else (won[-1], {})
    light = {"e": names[won[-1]], "by": "-it"}
    dark = {"e": names[shown], **beside, "tk": "1", "col": "advantage", "t": "0", "by": "-it"}
    return {"light": light, "dark": dark}


async def picture(address: str, theme: str, out: Path) -> None:
    """Write what a person sees of the page."""
    async with browser.open_page("about:blank") as page:
        media = [{"name": "prefers-color-scheme", "value": theme}]
        await page.command("Emulation.setEmulatedMedia", features=media)
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await page.command("Emulation.setDeviceMetricsOverride", **size)
        await page.command("Page.navigate", url=address)
        await page.until("at the end")
        await asyncio.sleep(1)  # The list goes to the episode.
        taken = await page.command("Page.captureScreenshot", format="png")
    image = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the directory of a run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", metavar="DIR", help="where viewing-*.png go")
    arguments = parser.parse_args()
    library = Library(sources_of([arguments.run]))
    for _ in library.refresh():
        pass
    pictures = views(library)
    with Viewer(library, Path(arguments.run).name, 0, lambda: ()) as viewer:
        for theme, state in pictures.items():
            address = f"{viewer.address}#{urlencode(state)}"
            asyncio.run(picture(address, theme, arguments.out / f"viewing-{theme}.png"))


if __name__ == "__main__":
    main()
