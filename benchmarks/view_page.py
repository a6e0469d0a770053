"""How fast `rllib view` is: first paint, filters, size of the exported page and memory of the browser.

    python benchmarks/view_page.py --episodes 5000 --out view.json
    python benchmarks/view_page.py --episodes 5000 --copies 23        # one log of 2 GB, not exported

Episodes are games of random players, with replies of random words as a language model's would be logged: token ids,
log-probabilities and what an update knew of each token. Chromium is driven as a person would use it. Of its processes
the one with the page is measured: the memory that it alone has, and its share of what it has with others. Beside the
time of a filter stands what the page computed: on an idle machine it takes that and the 60 ms it waits for more keys.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

import browser

from rllib_lmgame.rollouts.collect import collect_games
from rllib_lmgame.rollouts.episode_log import EpisodeLog, episode_record
from rllib_lmgame.rollouts.players import Scripted
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.servers.viewer import Viewer
from rllib_lmgame.viewer.library import Library, sources_of
from rllib_lmgame.viewer.page import exported

GAMES = ("lmgame/Sokoban-v0", "lmgame/TicTacToe-v0", "lmgame/FrozenLake-v0")
KINDS = 60
"""Different games of each kind; everything that players say and learners know differs in all episodes."""
WRITES = 250


def episodes(count: int, tokens: int, seed: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Records of a log, each with its records of tokens; replies have up to ``tokens`` tokens."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) + " " for _ in range(4000)]
    made = (collect_games(GameConfig(env=game), Scripted("random"), episodes=KINDS) for game in GAMES)
    played = [episode_record(each) for games in made for some in games for each in some.episodes]
    for number in range(count):
        record = json.loads(json.dumps(played[rng.randrange(len(played))]))
        record["episode_id"], record["iteration"] = f"train-{number // 16}-{number % 16}", number // 16 + 1
        notes = []
        for seat in record["trajectories"]:
            acted = [
                step["actions"][seat["agent_id"]] for step in record["steps"] if seat["agent_id"] in step["actions"]
            ]
            shown = [step["observations"].get(seat["agent_id"], "") for step in record["steps"]]
            seat["turns"] = [
                _turn(action, seen, rng.randint(tokens // 4, tokens), words, rng)
                for action, seen in zip(acted, shown, strict=False)
            ]
            flat = [each for turn in seat["turns"] for each in turn["rollout_logprobs"]]
            note = {"episode_id": record["episode_id"], "agent_id": seat["agent_id"], "version": number // 16}
            note["rollout_sum"] = round(sum(flat), 4)
            note["old_logprobs"] = [float(f"{each + rng.gauss(0, 1e-4):.6g}") for each in flat]
            for name in ("advantages", "entropies"):
                note[name] = [float(f"{rng.gauss(0, 1):.6g}") for _ in flat]
            notes.append(note)
        yield record, notes


def _turn(action: str, seen: str, count: int, words: list[str], rng: random.Random) -> dict[str, Any]:
    ids = [rng.randrange(len(words)) for _ in range(count)]
    said = [words[each] for each in ids]
    said[0], said[-1] = "<think>", f"</think><answer>{action}</answer>"
    return {
        "new_row": False,
        "prompt_ids": [rng.randrange(len(words)) for _ in range(80)],
        "prompt": f"<|im_start|>user\n{seen}<|im_end|>\n<|im_start|>assistant\n",
        "response_ids": ids,
        "rollout_logprobs": [round(-rng.expovariate(2), 6) for _ in ids],
        "text": "".join(said),
        "text_lengths": [len(each) for each in said],
        "reward": 0.0,
        "policy_version": 0,
        "stop_reason": "eos",
    }


def write(directory: Path, count: int, tokens: int) -> int:
    """The log of a run with so many episodes; gives its bytes."""
    waiting: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    log, notes = EpisodeLog(directory / "episodes" / "train-0.jsonl"), directory / "episodes" / "learner-0.tokens"
    for each in episodes(count, tokens, seed=0):
        waiting.append(each)
        if len(waiting) == WRITES:
            _flush(log, notes, waiting)
    _flush(log, notes, waiting)
    return log.path.stat().st_size + notes.stat().st_size


def lengthen(directory: Path, copies: int) -> int:
    """Write a run's log so many times into itself, without what learners knew; gives its bytes."""
    (directory / "episodes" / "learner-0.tokens").unlink()
    log = directory / "episodes" / "train-0.jsonl"
    once = log.read_bytes()
    with log.open("ab") as file:
        for _ in range(copies - 1):
            file.write(once)
    return log.stat().st_size


def _flush(log: EpisodeLog, notes: Path, waiting: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> None:
    log.write([record for record, _ in waiting])
    EpisodeLog(notes).write([note for _, some in waiting for note in some])
    waiting.clear()


FILTERS = {
    "game": ("g", "lmgame/TicTacToe-v0"),
    "success": ("ok", "success"),
    "iteration": ("i0", "100"),
    "text of one episode": ("q", "train-150-3"),
    "text of many": ("q", "sokoban"),
}
_FILTER = """new Promise(done => {{
  const count = document.getElementById("count"), before = count.textContent, start = performance.now();
  const field = document.getElementById("f-{key}");
  const watch = new MutationObserver(() => {{
    if (count.textContent === before || count.textContent.startsWith("searching")) return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done([performance.now() - start, count.textContent])));
  }});
  watch.observe(count, {{childList: true, characterData: true, subtree: true}});
  field.value = {value}; field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
}})"""
_PAINT = "performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint')?.startTime ?? null"
_ROWS = """new Promise(done => { const look = () => document.querySelector('#scroll .row') ?
  requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : setTimeout(look, 5); look(); })"""


async def measure(url: str, count: int) -> dict[str, Any]:
    """Seconds and megabytes of the page at ``url``; the first filter by text may unpack what later ones search."""
    async with browser.open_page(url) as page:
        found: dict[str, Any] = {"rows_s": await page.evaluate(_ROWS) / 1000}
        found["first_paint_s"] = await page.evaluate(_PAINT) / 1000
        await page.until(f"{count:,} of {count:,}", 900)
        found["all_rows_s"] = await page.evaluate("performance.now()") / 1000
        await asyncio.sleep(5)  # As long as a person looks at the list before searching.
        found["filter_s"], found["filter_cpu_s"] = {}, {}
        for name, (key, value) in FILTERS.items():
            before = _cpu_s()
            took, shown = await page.evaluate(_FILTER.format(key=key, value=json.dumps(value)))
            found["filter_s"][name], found["filter_cpu_s"][name] = took / 1000, _cpu_s() - before
            print(f"  {name}: {took:.0f} ms, {shown}", file=sys.stderr)
            await page.evaluate(_FILTER.format(key=key, value='""'))
        took = await page.evaluate(
            "(async () => { const start = performance.now(); await pick(order[2000 % order.length]); toggleTokens();"
            "await open(); return performance.now() - start; })()"
        )
        found["episode_with_tokens_s"] = took / 1000
        for at in range(0, min(count, 2000), 100):
            await page.evaluate(f"pick(order[{at}])")
        found["heap_mb"] = await page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        found["memory_mb"] = max(_memory_mb(each) for each in _renderers())
        return found


def _renderers() -> list[int]:
    """Process ids of the pages of this script's browser."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if b"--type=renderer" in (path / "cmdline").read_bytes() and os.getpid() in _ancestors(int(path.name)):
                found.append(int(path.name))
    return found


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        yield process


def _cpu_s() -> float:
    """What the browser's pages have computed so far: less than the time that passes where others compute too."""
    tasks = [path for process in _renderers() for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


def _memory_mb(process: int) -> float:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1000


def exported_page(library: Library, out: Path, count: int) -> dict[str, Any]:
    """Size and figures of the page as one file."""
    with out.open("w", encoding="utf-8") as file:
        head = {"title": "run", "files": [source.label for source in library.sources], "problems": []}
        file.writelines(exported(library, head))
    size = out.stat().st_size / 1e6
    print(f"{size:.1f} MB; exported page", file=sys.stderr)
    return {"exported_mb": size, "exported": asyncio.run(measure(out.as_uri(), count))}


def _resident_mb() -> float:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=5000, metavar="N")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="the most of a reply (default 64)")
    parser.add_argument("--copies", type=int, default=1, metavar="N", help="times that the log is written")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where logs are written (default: as of tempfile)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as directory:
        run, count = Path(directory, "run"), arguments.episodes
        figures: dict[str, Any] = {"log_mb": write(run, count, arguments.tokens) / 1e6}
        if arguments.copies > 1:
            figures["log_mb"], count = lengthen(run, arguments.copies) / 1e6, count * arguments.copies
        figures["episodes"], before = count, _resident_mb()
        library, began, worked = Library(sources_of([str(run)])), time.perf_counter(), time.process_time()
        figures["reader_mb"] = max(_resident_mb() for _ in library.refresh()) - before
        figures["read_s"], figures["read_cpu_s"] = time.perf_counter() - began, time.process_time() - worked
        if arguments.copies == 1:
            figures |= exported_page(library, Path(directory, "page.html"), count)
        print(f"{figures}; served page", file=sys.stderr)
        library = Library(sources_of([str(run)]))
        with Viewer(library, "run", 0, lambda: ()) as viewer:
            figures["served"] = asyncio.run(measure(viewer.address, count))
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
