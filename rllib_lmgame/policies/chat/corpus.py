"""Texts of a game for a tokenizer that is trained on the spot."""

from __future__ import annotations

import random

from rllib_lmgame.envs.contract.session import GameSession

MAX_TURNS = 50


def game_corpus(session: GameSession, episodes: int = 64, seed: int = 0) -> list[str]:
    """Observations, legal actions and expert actions of some episodes, played by the expert and at random.

    Args:
        session: The game.
        episodes: Episodes played.
        seed: Seed of levels and random moves; the same seed gives the same texts.
    """
    rng = random.Random(seed)
    texts = [session.instructions]
    for episode in range(episodes):
        session.reset(rng.getrandbits(31))
        for _ in range(MAX_TURNS):
            acting = session.to_act()
            if not acting:
                break
            actions = {}
            for agent in acting:
                observation = session.observe(agent)
                legal = list(observation.legal_actions)
                expert = session.expert_action(agent) if episode % 2 == 0 else None
                actions[agent] = expert or (rng.choice(legal) if legal else "")
                texts += [observation.text, actions[agent], *legal]
            if session.step(actions).done:
                texts += [session.observe(agent).text for agent in session.agent_ids]
                break
    return [text for text in texts if text]
