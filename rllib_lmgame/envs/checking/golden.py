"""Golden playthroughs: one committed game per registered id, compared word for word in the tests.

``python -m rllib_lmgame.envs.checking.golden --write`` writes them again after a change that is meant; without
``--write`` it compares and exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.contract.splits import level_digest
from rllib_lmgame.envs.registry import game_spec, make_session, own_games

DIRECTORY = Path("tests/envs/golden")
SEED = 7
NONSENSE = "dance"
MAX_REPLIES = 60
MAX_LISTED, SHOWN = 60, 10


def playthrough(game: str, seed: int = SEED) -> dict[str, Any]:
    """A whole game: the expert's replies (else the first legal action), the second reply being nonsense.

    Returns:
        JSON-ready: instructions, and per reply the agent, observation, legal actions, action, rewards and flags.
    """
    session = make_session(game, {"show_rules": False, "show_legal_actions": False})
    session.reset(seed)
    steps: list[dict[str, Any]] = []
    while session.to_act() and len(steps) < MAX_REPLIES:
        actors = session.to_act()
        seen = {agent: session.observe(agent) for agent in actors}
        actions = {agent: NONSENSE if len(steps) == 1 else expected_action(session, agent) for agent in actors}
        result = session.step(actions)
        steps.append(
            {
                "observations": {agent: view.text.split("\n") for agent, view in seen.items()},
                "legal_actions": {agent: listed(view.legal_actions) for agent, view in seen.items()},
                "turns_left": {agent: view.turns_left for agent, view in seen.items()},
                "actions": actions,
                "rewards": {agent: round(reward, 9) for agent, reward in result.rewards.items()},
                "invalid": [agent for agent in actors if result.infos[agent]["invalid_action"]],
                "terminated": result.terminated,
                "truncated": result.truncated,
            }
        )
    final = {agent: session.observe(agent).text.split("\n") for agent in session.agent_ids}
    success = {agent: bool(info.get("success")) for agent, info in result.infos.items()}
    return {
        "game": game,
        "seed": seed,
        "instructions": session.instructions.split("\n"),
        "steps": steps,
        "final": final,
        "success": success,
    }


def expected_action(session: GameSession, agent: str) -> str:
    """The expert's reply; without an expert the first legal action, and where none is listed what a
    random player types.
    """
    legal = session.observe(agent).legal_actions
    found = session.expert_action(agent) or (legal[0] if legal else session.random_action(agent, random.Random(SEED)))
    return found or ""


def listed(actions: Sequence[str]) -> list[str]:
    """The actions; of a long list its beginning, its length and its digest."""
    if len(actions) <= MAX_LISTED:
        return list(actions)
    return [*actions[:SHOWN], f"... {len(actions)} in all, digest {level_digest(repr(list(actions)))}"]


def golden_path(game: str, directory: Path = DIRECTORY) -> Path:
    """File of the golden playthrough of a game."""
    return directory / (game.split("/")[-1] + ".json")


def as_text(record: dict[str, Any]) -> str:
    """The file's content."""
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write or compare all playthroughs."""
    parser = argparse.ArgumentParser(prog="python -m rllib_lmgame.envs.checking.golden", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the files again")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("games", nargs="*", help="ids; all games of this package by default")
    args = parser.parse_args(argv)
    chosen = [game_spec(game).game_id for game in args.games] or list(own_games())
    differing = []
    for game in chosen:
        path, text = golden_path(game, args.directory), as_text(playthrough(game))
        if args.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(str(path))
    if differing:
        print("differ from what the games do now: " + ", ".join(differing), file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
