"""Hanabi: everybody sees all cards but one's own, and all win or lose together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import InvalidAction, TextAECGame, TextAECOptions, Variant
from rllib_lmgame.envs.games.teams.hanabi.expert import best_move
from rllib_lmgame.envs.games.teams.hanabi.table import Card, Held, Move, Rules, Table

COLOURS = ("red", "yellow", "green", "white", "blue")

RULES = """You play Hanabi with {players} players, all on one side. You see the others' cards, but not your own.
The cards have the colours {colours} and the ranks {ranks}. Of each colour there are {copies}.
Together you build one firework of each colour, rank by rank from 1 to {top}. In your turn do one of these:
- play CARD: if it is the next rank of its colour, it goes onto the firework; else you lose a life and the card.
- discard CARD: the card is lost, and you get an information token back (not while you have all {tokens}).
- tell PLAYER COLOUR or tell PLAYER RANK: costs an information token; the player learns which of its cards have that \
colour or rank, one at least.
You have {tokens} information tokens and {lives} in common. A completed firework gives a token back. \
Cards are numbered from 1; a new card comes last.
The game ends when all fireworks are complete, when no life is left (then all is lost), or one turn each after the \
deck is empty. The score is the number of cards on the fireworks.
Reply with one action, for example: play 1, discard 2, tell {other} {colour}, tell {other} 1."""


class HanabiOptions(TextAECOptions):
    """``env_config`` of Hanabi."""

    players: int = option(2, "Players.", ge=2, le=5)
    colours: int = option(2, "Colours of the cards.", ge=1, le=5)
    ranks: int = option(5, "Ranks of the cards.", ge=2, le=5)
    hand_size: int | None = option(
        2, "Cards of each player; null: 5 for two and three players, 4 for more.", ge=1, le=5
    )
    information_tokens: int = option(3, "Information tokens.", ge=1, le=8)
    life_tokens: int = option(1, "Lives.", ge=1, le=3)


class Hanabi(TextAECGame):
    """All build fireworks together, nobody sees its own cards (small game).

    What players may tell each other is scarce.

    Observation: fireworks, tokens, discards, the others' cards and what they know of them, what one knows of one's own
        cards, and what was done since one's last turn.
    Action: ``play 1``, ``discard 2``, ``tell player_1 red``, ``tell player_1 3``.
    Reward: at the end the score relative to the perfect one, the same for all; 0 if the last life is lost. -0.1 for an
        invalid reply, to the offender alone; three in a row forfeit: the game is over for all with 0. A player who can
        write no more discards its oldest card, else takes the first move there is.
    Horizon: at most 18 replies per player as it is set here: two colours, hands of two, three information tokens, one
        life, which N. Bard et al. (The Hanabi Challenge, Artificial Intelligence 280, 2020) call small; their full game
        is ``{colours: 5, hand_size: null, information_tokens: 8, life_tokens: 3}``.
    Success: the perfect score, of all together or of nobody.
    Measures: ``score``, the cards on the fireworks; ``lives_left``.
    Agents and roles: ``player_0``, ``player_1`` ..., all of the role ``player``. The level is the order of the deck.
    Expert: one convention, that what is told is to be played; no optimum.
    """

    variants = (Variant("lmgame/Hanabi-v0", (-3.7, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = HanabiOptions
    options: HanabiOptions
    zero_sum = False
    cooperative = True
    has_levels = True

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        size = self.size
        if len(size.deck()) < size.players * size.hand_size:
            raise ConfigError(
                "env_config.hand_size",
                f"{size.players} hands of {size.hand_size} need more than the {len(size.deck())} cards there are",
            )

    def seat_roles(self) -> dict[str, str]:
        return {f"player_{i}": "player" for i in range(self.options.players)}

    @property
    def size(self) -> Rules:
        """How large the game is at the present options."""
        chosen = self.options
        hand = (5 if chosen.players < 4 else 4) if chosen.hand_size is None else chosen.hand_size
        return Rules(chosen.players, chosen.colours, chosen.ranks, hand, chosen.information_tokens, chosen.life_tokens)

    @property
    def rules(self) -> str:
        size = self.size
        first = [card[1] for card in size.deck() if card[0] == 0]
        copies = ", ".join(f"{first.count(rank)} of rank {rank + 1}" for rank in range(size.ranks))
        return RULES.format(
            players=size.players,
            colours=", ".join(COLOURS[: size.colours]),
            ranks=", ".join(str(rank + 1) for rank in range(size.ranks)),
            copies=copies,
            top=size.ranks,
            tokens=size.information_tokens,
            lives="1 life" if size.life_tokens == 1 else f"{size.life_tokens} lives",
            other="player_1",
            colour=COLOURS[0],
        )

    def levels(self, rng: random.Random) -> Iterator[tuple[Card, ...]]:
        while True:
            yield self.size.shuffled(rng)

    def level_key(self, level: tuple[Card, ...]) -> str:
        return f"hanabi {self.size} {level}"

    def start(self) -> None:
        self.table = Table(self.size, self.level)
        self._news: dict[str, list[str]] = {agent: [] for agent in self.possible_agents}

    def player_to_move(self) -> str:
        return self.possible_agents[self.table.seat]

    @property
    def finished(self) -> bool:
        return self.table.finished

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return tuple(map(self.text_of, self.table.moves())) if agent == self.player_to_move() else ()

    def text_of(self, move: Move) -> str:
        """The action that makes a move."""
        if move.target < 0:
            return f"{move.kind} {move.value + 1}"
        value = COLOURS[move.value] if move.kind == "colour" else str(move.value + 1)
        return f"tell {self.possible_agents[move.target]} {value}"

    def read_move(self, text: str) -> Move:
        said = " ".join(text.lower().strip(" \t\r\n.!'\"`").split())
        for move in self.table.moves():
            if self.text_of(move) == said:
                return move
        forms = "play CARD, discard CARD, tell PLAYER COLOUR or tell PLAYER RANK"
        raise InvalidAction(f"reply with one action that is possible now: {forms}.{self._why_not(said)}")

    def _why_not(self, said: str) -> str:
        if said.startswith("discard") and self.table.information == self.size.information_tokens:
            return " You cannot discard while you have all information tokens."
        if said.startswith("tell") and not self.table.information:
            return " You cannot tell anything without an information token."
        return ""

    def play_move(self, agent: str, move: Move) -> None:
        self._news[agent] = []
        fits = move.kind == "play" and self.table.fits(self.table.hands[self.table.seat][move.value].card)
        told, card = self.table.play(move)
        for other in self.possible_agents:
            if other != agent:
                self._news[other].append(self._told_of(other, agent, move, told, card, fits))

    def _told_of(self, viewer: str, agent: str, move: Move, told: list[int], card: Card | None, fits: bool) -> str:
        """What ``viewer`` hears of a move of ``agent``."""
        if card is not None:
            what = f"{agent} {'played' if move.kind == 'play' else 'discarded'} {named(card)}"
            return f"{what}." if move.kind == "discard" else f"{what}, which {'fits' if fits else 'does not fit'}."
        target = self.possible_agents[move.target]
        value = COLOURS[move.value] if move.kind == "colour" else f"rank {move.value + 1}"
        cards = ", ".join(str(i + 1) for i in told)
        return f"{agent} told {'you' if target == viewer else target}: {value} is card {cards}, no other."

    def view(self, agent: str) -> str:
        table = self.table
        fireworks = ", ".join(f"{COLOURS[c]} {rank}" for c, rank in enumerate(table.fireworks))
        state = (
            f"Fireworks: {fireworks}. Information tokens: {table.information}. Lives: {table.lives}. "
            f"Cards in the deck: {len(table.deck)}."
        )
        lines = [*self._news[agent], state]
        if table.discards:
            lines.append("Discarded: " + ", ".join(map(named, sorted(table.discards))) + ".")
        seat = self.possible_agents.index(agent)
        for other in table.others(seat):
            hand = ", ".join(f"{i}: {named(h.card)} ({self._knows(h)})" for i, h in enumerate(table.hands[other], 1))
            lines.append(f"{self.possible_agents[other]} holds {hand}.")
        own = ", ".join(f"{i}: {self._knows(held)}" for i, held in enumerate(table.hands[seat], 1))
        lines.append(f"You are {agent}. You know of your cards {own}.")
        if table.finished:
            lines.append(f"The game is over. The score is {table.score} of {self.size.best}.")
        elif not table.deck:
            lines.append(f"The deck is empty: {table.turns_left} turns are left for all together.")
        return "\n".join(lines)

    def _knows(self, held: Held) -> str:
        """What the holder of a card knows of it."""
        colours = "/".join(COLOURS[colour] for colour in sorted(held.colours))
        ranks = "/".join(str(rank + 1) for rank in sorted(held.ranks))
        return f"{'any colour' if len(held.colours) == self.size.colours > 1 else colours} " + (
            "any rank" if len(held.ranks) == self.size.ranks else ranks
        )

    def results(self) -> dict[str, float]:
        return dict.fromkeys(self.possible_agents, self.table.score / self.size.best)

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return dict.fromkeys(self.possible_agents, 0.0)

    def cut_results(self) -> dict[str, float]:
        return self.results()

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        return self.table.score == self.size.best

    def measures(self, agent: str) -> dict[str, float]:
        return {"score": float(self.table.score), "lives_left": float(self.table.lives)}

    def pass_action(self, agent: str) -> str:
        """A player who can write no more discards its oldest card, else takes the first move there is."""
        legal = self.legal_actions(agent)
        return "discard 1" if "discard 1" in legal else next(iter(legal), "")

    def expert_action(self, agent: str) -> str | None:
        return self.text_of(best_move(self.table)) if self.legal_actions(agent) else None


def named(card: Card) -> str:
    """A card in words."""
    return f"{COLOURS[card[0]]} {card[1] + 1}"
