"""Negotiation: two players share out a pool whose things are worth different amounts to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECOptions, Variant
from rllib_lmgame.envs.games.talk.actions import the_action
from rllib_lmgame.envs.games.talk.base import HEARD, TalkGame, TalkOptions
from rllib_lmgame.envs.games.talk.negotiation.contexts import (
    KINDS,
    TOTAL_VALUE,
    Context,
    Share,
    all_contexts,
    read_contexts,
)
from rllib_lmgame.envs.games.talk.negotiation.expert import Sight, claims, open_reply, sealed_reply
from rllib_lmgame.envs.games.talk.negotiation.shares import (
    ACCEPT,
    NO_DEAL,
    PROPOSE,
    proposal_text,
    read_share,
    share_text,
)
from rllib_lmgame.envs.support.bargaining import outcome_measures

SEALED, OPEN = "sealed", "open"

POOL_RULES = """You and another player share out a pool of books, hats and balls. \
The whole pool is worth 10 to each of you, but a thing may be worth much to one and nothing to the other; \
neither knows what things are worth to the other.
Reply with a message to the other player, or with one action. {heard}"""
SEALED_RULES = """`propose: 2 books, 0 hats, 1 ball` is your final proposal: what you take, all three kinds named. \
It ends the talk; the other player does not see it and must make its own proposal. \
If the two proposals share out the whole pool exactly, each gets what it takes.
`no deal` walks away. Without two proposals that fit, both get nothing."""
OPEN_RULES = """`propose: 2 books, 0 hats, 1 ball` offers to take these, all three kinds named, and to leave the rest. \
The other player sees it; it holds until somebody proposes something else.
`accept` takes the other player's proposal, and each gets its part. `no deal` walks away. \
Without a deal both get nothing."""
ALONE = "An action must be all of the reply."


class Move(NamedTuple):
    """A message (``action`` is empty), or an action, of a proposal with what it takes."""

    action: str
    text: str = ""
    share: Share = ()


class NegotiationOptions(TalkOptions):
    """``env_config`` of Negotiation."""

    max_turns: int | None = option(10, "Replies per player, after which there is no deal; null is no limit.", ge=2)
    protocol: str = option(
        SEALED,
        "`sealed`: the first proposal ends the talk, and the other player makes its own without seeing it; `open`: "
        "proposals are seen, and may be accepted or answered.",
        choices=(SEALED, OPEN),
    )
    data: str | None = option(
        None, "File of published contexts (`selfplay.txt` of Deal or No Deal); null draws from all 5,295.", path=True
    )


class Negotiation(TalkGame):
    """Share out books, hats and balls by free talk ("Deal or No Deal", Lewis et al. 2017).

    Observation: the pool, what each thing is worth to oneself, and what the other player has said since one's last
        move.
    Action: a message in free words; or, as all of the reply, ``propose: 2 books, 0 hats, 1 ball`` (what one takes),
        ``no deal``, and under ``protocol: open`` also ``accept``. An action among other words is invalid.
    Reward: a tenth of the value of what one gets, for both, so 0 to 1; 0 for both without a deal. -0.1 for an invalid
        reply, to the offender alone; three in a row forfeit (no deal). The game is not zero-sum. Success is a deal that
        gives one something.
    Deal: under ``protocol: sealed`` (as published) the first proposal ends the talk and the other player makes its own
        without seeing it; there is a deal if the two share out the pool exactly. Under ``open`` proposals are seen and
        can be accepted or answered by others.
    Horizon: 10 replies per player; then there is no deal (``terminated``).
    Agents: ``player_0`` (role ``first``), who begins, and ``player_1`` (role ``second``).
    Levels: 1 to 4 of each kind, 5 to 7 things in all. The values make the whole pool worth 10 to each player, every
        kind worth something to somebody and one at least to both. A context and its mirror image belong to one split.
    Measures: ``deal``, ``pareto_efficient``, ``joint_share`` (of the best joint value), ``nash_share`` (of the largest
        product of the two values).
    Expert: asks for much, comes down along a concession curve, leaves what the other player asks for where it costs
        little, and takes what is as good as its next demand.
    """

    variants = (
        Variant(
            "lmgame/Negotiation-v0", (-0.7, 1.0), "Share out books, hats and balls by free talk and sealed proposals."
        ),
        Variant(
            "lmgame/NegotiationOpen-v0",
            (-0.7, 1.0),
            "The same with proposals that are seen and can be accepted.",
            {"protocol": "open"},
        ),
    )
    Options: ClassVar[type[TextAECOptions]] = NegotiationOptions
    options: NegotiationOptions
    seats: ClassVar[Mapping[str, str]] = {"player_0": "first", "player_1": "second"}
    names: ClassVar[Mapping[str, str]] = {"player_0": "Other player", "player_1": "Other player"}

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        data = self.options.data
        self._contexts = all_contexts() if data is None else read_contexts(data)

    @property
    def rules(self) -> str:
        protocol = SEALED_RULES if self.options.protocol == SEALED else OPEN_RULES
        return "\n".join((POOL_RULES.format(heard=HEARD), protocol, ALONE))

    def levels(self, rng: random.Random) -> Iterator[Context]:
        while True:
            yield rng.choice(self._contexts)

    def level_key(self, level: Context) -> str:
        return level.key()

    def start(self) -> None:
        self.start_talk()
        self._context: Context = self.level
        self._to_move = self.possible_agents[0]
        self._proposals: dict[str, Share] = {}
        self._walked = False
        self._deal: tuple[Share, Share] | None = None

    def player_to_move(self) -> str:
        return self._to_move

    def view(self, agent: str) -> str:
        values = self._context.values[self._seat(agent)]
        worth = ", ".join(f"a {kind} {value}" for kind, value in zip(KINDS, values, strict=True))
        lines = [f"The pool: {share_text(self._context.counts)}. Worth to you: {worth}.", self.heard(agent)]
        return "\n".join(line for line in (*lines, self._state(agent)) if line)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """The actions once the talk is over; while it goes on anything may be said, so that none are listed."""
        may_talk = self._is_open or not self._proposals
        return () if may_talk or self.finished or agent != self._to_move else self._actions(agent)

    def random_action(self, agent: str, rng: random.Random) -> str:
        """A proposal, or another action."""
        return rng.choice(self._actions(agent))

    def _actions(self, agent: str) -> tuple[str, ...]:
        accept = (ACCEPT,) if self._is_open and self.other(agent) in self._proposals else ()
        return (*accept, *map(proposal_text, self._context.shares()), NO_DEAL)

    def read_move(self, text: str) -> Move:
        action = the_action(text, (PROPOSE,), (ACCEPT, NO_DEAL) if self._is_open else (NO_DEAL,))
        if action is None:
            if self._proposals and not self._is_open:
                raise InvalidAction("the talk is over; reply with your proposal, or with `no deal`.")
            return Move("", text)
        if action == ACCEPT and self.other(self._to_move) not in self._proposals:
            raise InvalidAction("there is no proposal of the other player to accept.")
        if action in (ACCEPT, NO_DEAL):
            return Move(action)
        return Move(PROPOSE, share=read_share(action.removeprefix(PROPOSE), self._context.counts))

    def play_move(self, agent: str, move: Move) -> None:
        other = self.other(agent)
        if not move.action:
            self.talk.say(agent, move.text)
        elif move.action == NO_DEAL:
            self._walked = True
        elif move.action == ACCEPT:
            self._agree(other, self._proposals[other])
        else:
            self._propose(agent, move.share)
        self.talk.moved(agent)
        self._to_move = other

    def _propose(self, agent: str, share: Share) -> None:
        if self._is_open:
            self._proposals = {agent: share}
            return
        self._proposals[agent] = share
        other = self.other(agent)
        if other in self._proposals and share == self._context.rest(self._proposals[other]):
            self._agree(agent, share)

    def _agree(self, agent: str, share: Share) -> None:
        rest = self._context.rest(share)
        self._deal = (share, rest) if self._seat(agent) == 0 else (rest, share)

    @property
    def finished(self) -> bool:
        return self._walked or self._deal is not None or len(self._proposals) == len(self.possible_agents)

    def results(self) -> dict[str, float]:
        return {agent: self._value(agent) / TOTAL_VALUE for agent in self.possible_agents}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return dict.fromkeys(self.possible_agents, 0.0)

    def measures(self, agent: str) -> dict[str, float]:
        outcome = None if self._deal is None else [self._value(player) for player in self.possible_agents]
        return outcome_measures(outcome, self._context.outcomes())

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent != self._to_move:
            return None
        return (open_reply if self._is_open else sealed_reply)(self._sight(agent))

    def _sight(self, agent: str) -> Sight:
        """What ``agent``, who is to move, knows."""
        turns, left = self.options.max_turns, self.referee.turns_left(agent)
        own, others = self.talk.said_by(agent), self.talk.said_by(self.other(agent))
        return Sight(
            self._context,
            self._seat(agent),
            turn=len(own) if turns is None or left is None else turns - left,
            turns=turns,
            claims=claims(own, self._context.counts),
            heard=claims(others, self._context.counts),
            offered=self._proposals.get(self.other(agent)) if self._is_open else None,
            must_propose=bool(self._proposals) and not self._is_open,
        )

    @property
    def _is_open(self) -> bool:
        return self.options.protocol == OPEN

    def _seat(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _value(self, agent: str) -> int:
        seat = self._seat(agent)
        return 0 if self._deal is None else self._context.worth(seat, self._deal[seat])

    def _state(self, agent: str) -> str:
        """How things stand, in words for ``agent``."""
        if self._deal is not None:
            share = self._deal[self._seat(agent)]
            return f"Deal: you get {share_text(share)}, worth {self._value(agent)} to you."
        if self.finished or self._over():
            return "There is no deal."
        standing = [self._proposal_text(agent, proposer, share) for proposer, share in self._proposals.items()] or [
            "There is no proposal yet."
        ]
        return " ".join(standing)

    def _proposal_text(self, agent: str, proposer: str, share: Share) -> str:
        own = proposer == agent
        if self._is_open:
            rest = share_text(self._context.rest(share))
            who = "You propose" if own else "The other player proposes"
            return f"{who} to take {share_text(share)}; that leaves {rest}."
        if own:
            return f"You proposed to take {share_text(share)}."
        return "The other player has made its final proposal; make yours now."
