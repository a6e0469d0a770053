"""A game as its page and ``rllib info`` show it: its docstring as text, and a turn of it."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

from rllib_lmgame.envs.checking.golden import expected_action
from rllib_lmgame.envs.registry import GameSpec, make_session


def docstring_text(factory: Any) -> str:
    """A class docstring as Markdown: what begins with a word and a colon is an item of a list, a paragraph one line."""
    lines = inspect.cleandoc(factory.__doc__ or "").replace("``", "`").splitlines()
    result: list[str] = []
    for line in lines:
        item = re.match(r"([A-Z][A-Za-z ]+)(?: \([a-z ]+\))?: ", line)
        if item:
            if result and not result[-1].startswith("- ") and result[-1]:
                result.append("")
            result.append(f"- **{item.group(0)[:-2]}**: {line[item.end() :]}")
        elif result and result[-1] and line.strip():
            result[-1] += " " + line.strip()
        else:
            result.append(line)
    return "\n".join(result)


def as_played(spec: GameSpec) -> GameSpec:
    """``spec`` with the players, roles and expert that the game has on its first level, which nobody wrote down of a
    game of one's own.
    """
    session = make_session(spec.game_id, {})
    try:
        session.reset(0)
        roles = tuple(session.roles[agent] for agent in session.agent_ids)
        solver = all(session.expert_action(agent) is not None for agent in session.to_act())
        return replace(spec, players=str(len(roles)), roles=roles, solver=solver)
    finally:
        session.close()


def example_turn(spec: GameSpec, seed: int = 0) -> str:
    """Instructions, the first observation of seed 0, the expert's reply and what came of it."""
    session = make_session(spec.game_id, {})
    session.reset(seed)
    actors = session.to_act()
    agent = actors[0]
    lines = [f"[instructions]\n{session.instructions}", f"[observation of {agent}]\n{session.observe(agent).text}"]
    actions = {actor: expected_action(session, actor) for actor in actors}
    outcome = session.step(actions)
    lines += [
        f"[reply of {actor}]\n{action}" if len(actors) > 1 else f"[reply]\n{action}"
        for actor, action in actions.items()
    ]
    rewards = ", ".join(f"{name} {reward:g}" for name, reward in outcome.rewards.items())
    after = session.to_act()[0] if session.to_act() else agent
    lines.append(f"[reward]\n{rewards}" + (", the game is over" if outcome.done else ""))
    lines.append(f"[observation of {after}]\n{session.observe(after).text}")
    session.close()
    return "\n".join(lines)
