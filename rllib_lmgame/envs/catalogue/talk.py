"""Games of talk for two."""

from __future__ import annotations

from rllib_lmgame.envs.registry import GameSpec

GAMES: tuple[GameSpec, ...] = (
    GameSpec(
        "lmgame/Negotiation-v0",
        "rllib_lmgame.envs.games.talk.negotiation.game:Negotiation",
        "Share out books, hats and balls by free talk and sealed proposals.",
        kind="aec",
        players="2",
        roles=("first", "second"),
        horizon=10,
        reward_range=(-0.7, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/NegotiationOpen-v0",
        "rllib_lmgame.envs.games.talk.negotiation.game:Negotiation",
        "The same with proposals that are seen and can be accepted.",
        kind="aec",
        players="2",
        roles=("first", "second"),
        horizon=10,
        reward_range=(-0.7, 1.0),
        solver=True,
        defaults={"protocol": "open"},
    ),
    GameSpec(
        "lmgame/CarDealerDuet-v0",
        "rllib_lmgame.envs.games.talk.car_dealer_duet.game:CarDealerDuet",
        "A seller and a buyer, both players, bargain over a car.",
        kind="aec",
        players="2",
        roles=("buyer", "seller"),
        horizon=15,
        reward_range=(-2.6, 1.75),
        solver=True,
    ),
    GameSpec(
        "lmgame/TwentyQuestionsDuet-v0",
        "rllib_lmgame.envs.games.talk.twenty_questions_duet:TwentyQuestionsDuet",
        "One player asks for an object, the other one knows it and answers.",
        kind="aec",
        players="2",
        roles=("asker", "answerer"),
        horizon=20,
        reward_range=(-2.0, 1.0),
        solver=True,
    ),
    GameSpec(
        "lmgame/Debate-v0",
        "rllib_lmgame.envs.games.talk.debate.game:Debate",
        "Speak for or against a statement, before a judge.",
        kind="aec",
        players="2",
        roles=("pro", "con"),
        reward_range=(-1.7, 1.0),
        solver=True,
    ),
)
