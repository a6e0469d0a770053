"""``rllib play``: play a game in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rllib_lmgame.cli.games import parse_env_config
from rllib_lmgame.envs.session import GameSession, StepResult
from rllib_lmgame.errors import ConfigError

HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, an empty line or Ctrl-D leaves."


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``play`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser("play", help="play a game in the terminal", description=__doc__)
    parser.add_argument("game", metavar="GAME", help="id, entry point name or package.module:Class")
    parser.add_argument("--seed", type=int, default=0, help="seed of the level (default 0)")
    parser.add_argument("--env-config", default="{}", metavar="JSON", help="options of the game, as JSON")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Play one game, all seats by hand; returns the exit status."""
    from rllib_lmgame.envs import GameError, make_session

    try:
        session = make_session(args.game, parse_env_config(args.env_config))
    except (ConfigError, GameError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    session.reset(args.seed)
    print(session.instructions, HELP, sep="\n\n")
    totals = dict.fromkeys(session.agent_ids, 0.0)
    while session.to_act():
        actions: dict[str, str] = {}
        for agent in session.to_act():
            action = _ask(session, agent)
            if action is None:
                print("left")
                return 0
            actions[agent] = action
        result = session.step(actions)
        for agent, reward in result.rewards.items():
            totals[agent] += reward
        _report(session, result, totals)
    session.close()
    return 0


def _ask(session: GameSession, agent: str) -> str | None:
    """The person's action, or ``None`` to leave."""
    seen = session.observe(agent)
    left = "" if seen.turns_left is None else f" ({seen.turns_left} turns left)"
    print(f"\n{seen.text}")
    while True:
        try:
            text = input(f"{agent}{left}> ").strip()
        except EOFError:
            return None
        if text == "?":
            print(", ".join(seen.legal_actions) or "the game does not list them")
        elif text == "!":
            expert = session.expert_action(agent)
            print(expert or "the game has no expert")
            if expert:
                return expert
        else:
            return text or None


def _report(session: GameSession, result: StepResult, totals: dict[str, float]) -> None:
    print("reward: " + ", ".join(f"{agent} {reward:g}" for agent, reward in result.rewards.items()))
    if not result.done:
        return
    print(f"\n{session.observe(session.agent_ids[0]).text}\n")
    ending = "the game is over" if result.terminated else "the budget is used up"
    print(f"{ending}; return: " + ", ".join(f"{agent} {total:g}" for agent, total in totals.items()))
    won = [agent for agent in session.agent_ids if result.infos.get(agent, {}).get("success")]
    print("success: " + (", ".join(won) or "none"))
