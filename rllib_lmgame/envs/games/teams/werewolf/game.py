"""Werewolf: hidden roles, nights and days, talk and votes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract import TextAECGame, TextAECOptions, Variant, quoted, read_word
from rllib_lmgame.envs.games.teams.werewolf.expert import Claims, Knowledge, night_choice, speech, vote
from rllib_lmgame.envs.games.teams.werewolf.options import WerewolfOptions, rules_text
from rllib_lmgame.envs.games.teams.werewolf.teams import (
    DOCTOR,
    SEER,
    WEREWOLF,
    Team,
    most_named,
    results,
    seats,
    team_of,
    winner,
)

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivy")
NOBODY = "nobody"
NIGHT, TALK, VOTE = "night", "talk", "vote"


class Werewolf(TextAECGame):
    """A village and the werewolves among it: five to nine players, two teams, hidden roles.

    Observation: one's own name and role, who is alive, what happened and what was said since one's last reply, and what
        the role alone knows (werewolves each other, the seer what it has found out).
    Action: at night and to vote a name, or ``nobody``; to speak, any text, of which the others hear 300 characters on
        one line.
    Reward: at the end, by team, dead or alive: a werewolf gets 1 or -1, one of the village ``werewolves / village`` of
        it with the opposite sign. So all rewards sum to zero. 0 for all where nobody has won. -0.1 for an invalid
        reply, to the offender alone. Three in a row forfeit: the offender leaves the game and has lost, whatever its
        team does, and what it loses more than its team goes to all others in equal parts. A player who can write no
        more says nothing and names nobody.
    Horizon: three replies per day, 8 days; most games last 2 or 3.
    Measures: ``village_win`` and ``werewolf_win`` (both 0 in a draw), ``days``.
    Agents and roles: an agent is the seat of a role (``werewolf_0``, ``werewolf_1``, ``seer``, ``doctor``,
        ``villager_0`` ...; roles ``werewolf``, ``seer``, ``doctor``, ``villager``), so that mappings, baselines and win
        rates may go by role. Players never see these ids: the seed decides who sits where at the table and who has
        which of the names Ada, Ben, ..., and every player is known to the others by name alone. There are no levels to
        keep apart; ``split`` changes nothing.
    Expert: follows the other werewolves; as the seer tells what it found; believes who says to be the
        seer. No equilibrium.
    """

    variants = (Variant("lmgame/Werewolf-v0", (-5.9, 2.0)),)
    Options: ClassVar[type[TextAECOptions]] = WerewolfOptions
    options: WerewolfOptions
    forfeit_eliminates = True
    secret_seats = True

    def seat_roles(self) -> dict[str, str]:
        chosen = self.options
        if 2 * self._werewolves >= chosen.players:
            raise ConfigError("env_config.werewolves", f"must be fewer than half of {chosen.players} players")
        return seats(chosen.players, self._werewolves, seer=chosen.seer, doctor=chosen.doctor)

    @property
    def _werewolves(self) -> int:
        chosen = self.options.werewolves
        return (1 if self.options.players <= 6 else 2) if chosen is None else chosen

    @property
    def rules(self) -> str:
        return rules_text(self.options, list(self.roles.values()))

    # -- the table ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.table = self.random.sample(self.possible_agents, len(self.possible_agents))
        """Agents in the order they sit; the first is Ada."""
        self.names = dict(zip(self.table, NAMES, strict=False))
        self.alive = list(self.table)
        self.forfeited: list[str] = []
        self.won_by: Team | None = None
        self.day = 0
        self.claims = Claims()
        self.found: dict[str, bool] = {}
        """What the seer knows: name -> it is a werewolf."""
        self._news: dict[str, list[str]] = {agent: [] for agent in self.table}
        self._queue: list[str] = []
        self._begin_phase(NIGHT)

    @property
    def finished(self) -> bool:
        return self.won_by is not None or self.day >= self.options.max_days

    def player_to_move(self) -> str:
        return self._queue[0] if self._queue else self.table[0]

    def view(self, agent: str) -> str:
        role = self.roles[agent]
        parts = [*self._news[agent], f"You are {self.names[agent]}, {'the' if role in (SEER, DOCTOR) else 'a'} {role}."]
        if role == WEREWOLF:
            parts[-1] += f" The werewolves: {self._listed(self._pack())}."
        if role == SEER and self.found:
            told = (f"{name} is {'a' if wolf else 'no'} werewolf" for name, wolf in self.found.items())
            parts[-1] += f" You know: {', '.join(told)}."
        if self.finished:
            won = "Nobody has won" if self.won_by is None else f"The {self.won_by.value} {_has(self.won_by)} won"
            parts.append(f"The game is over. {won}.")
        elif agent in self.alive:
            parts.append(f"Alive: {self._listed(self.alive)}. {self._question(agent)}")
        else:
            parts.append("You have left the game.")
        return "\n".join(parts)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        if self.finished or agent != self.player_to_move() or self.phase == TALK:
            return ()
        return (*self.choices(agent), NOBODY)

    def choices(self, agent: str) -> tuple[str, ...]:
        """Names that ``agent`` may name now."""
        spared = {agent}
        if self.phase == NIGHT:
            spared = {WEREWOLF: set(self._pack()), DOCTOR: set()}.get(self.roles[agent], spared)
        return tuple(self.names[other] for other in self.table if other in self.alive and other not in spared)

    def random_action(self, agent: str, rng: random.Random) -> str | None:
        """A speech."""
        return f"I suspect {rng.choice(self.choices(agent))}." if self.phase == TALK else None

    def pass_action(self, agent: str) -> str:
        """A player who can write no more says nothing and names nobody."""
        return "" if self.phase == TALK else NOBODY

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent != self.player_to_move():
            return None
        play = {NIGHT: night_choice, TALK: speech, VOTE: vote}[self.phase]
        return play(self._known(agent), self.expert_random)

    # -- play --------------------------------------------------------------------------------------------------------

    def read_move(self, text: str) -> str:
        if self.phase == TALK:
            return " ".join(text.split())[: self.options.talk_length]
        return read_word(text, (*self.choices(self.player_to_move()), NOBODY), "name")

    def play_move(self, agent: str, move: str) -> None:
        self._news[agent] = []
        self._queue.pop(0)
        if self.phase == TALK:
            self._tell_all(quoted(self.names[agent], move), without=agent)
            self.claims.hear(self.names[agent], move)
        else:
            self.named[agent] = None if move == NOBODY else self._called(move)
            self._share(agent, move)
        self._go_on()

    def leave(self, agent: str) -> None:
        self.forfeited.append(agent)
        self._queue = [other for other in self._queue if other != agent]
        self._die(agent, "has left the game")
        self._go_on()

    def results(self) -> dict[str, float]:
        return results(self.roles, self.won_by, self.forfeited)

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return results(self.roles, None, [*self.forfeited, agent])

    def cut_results(self) -> dict[str, float]:
        return results(self.roles, None, self.forfeited)

    def won(self, agent: str, results: Mapping[str, float]) -> bool:
        return self.won_by is team_of(self.roles[agent])

    def measures(self, agent: str) -> dict[str, float]:
        if not self.finished:
            return {}
        wins = {"village_win": self.won_by is Team.VILLAGE, "werewolf_win": self.won_by is Team.WEREWOLVES}
        return {**{name: float(won) for name, won in wins.items()}, "days": float(self.day)}

    def _begin_phase(self, phase: str) -> None:
        """``phase`` begins: nobody has been named, and those who act do so in the order of the table, another one
        first every day.
        """
        self.phase = phase
        self.named: dict[str, str | None] = {}
        first = self.day % len(self.table)
        order = [agent for agent in (*self.table[first:], *self.table[:first]) if agent in self.alive]
        if phase == NIGHT:
            order = [agent for role in (WEREWOLF, SEER, DOCTOR) for agent in order if self.roles[agent] == role]
        self._queue = order * (self.options.talk_rounds if phase == TALK else 1)

    def _go_on(self) -> None:
        """Where all have acted, what comes of it, and the next phase."""
        while not self._queue and not self.finished:
            if self.phase == NIGHT:
                self._end_night()
                self._begin_phase(TALK)
            elif self.phase == TALK:
                self._begin_phase(VOTE)
            else:
                self._end_vote()
                self.day += 1
                self._begin_phase(NIGHT)

    def _end_night(self) -> None:
        """The werewolves' victim dies, unless the doctor has chosen it."""
        chosen = [self.named[agent] for agent in self.named if self.roles[agent] == WEREWOLF]
        victim = most_named(chosen) or (chosen[-1] if chosen else None)
        saved = [self.named[agent] for agent in self.named if self.roles[agent] == DOCTOR]
        if victim is None or victim in saved or victim not in self.alive:
            self._tell_all(f"Day {self.day + 1}: nobody was killed in the night.")
        else:
            self._die(victim, "was killed in the night", f"Day {self.day + 1}: ")

    def _end_vote(self) -> None:
        """Who is named most leaves; everybody hears who named whom."""
        votes = (f"{self.names[a]} named {NOBODY if v is None else self.names[v]}" for a, v in self.named.items())
        self._tell_all(f"Votes: {', '.join(votes)}.")
        out = most_named([vote for vote in self.named.values() if vote in self.alive])
        if out is None:
            self._tell_all("Nobody is sent away.")
        else:
            self._die(out, "is sent away")

    def _die(self, agent: str, how: str, when: str = "") -> None:
        role = f" {self.names[agent]}'s role: {self.roles[agent]}." if self.options.reveal_roles else ""
        self._tell_all(f"{when}{self.names[agent]} {how}.{role}")
        self.alive.remove(agent)
        self.won_by = self.won_by or winner(self.roles[other] for other in self.alive)

    def _share(self, agent: str, name: str) -> None:
        """What a night's choice tells others, or the player itself."""
        if self.phase != NIGHT:
            return
        if self.roles[agent] == WEREWOLF:
            for other in self.alive:
                if other != agent and self.roles[other] == WEREWOLF:
                    self._news[other].append(f"{self.names[agent]} wants to kill {name}.")
        elif self.roles[agent] == SEER and name != NOBODY:
            self.found[name] = self.roles[self._called(name)] == WEREWOLF

    def _tell_all(self, line: str, without: str = "") -> None:
        """A line for all who live (and for who leaves by it)."""
        for agent in self.alive:
            if agent != without:
                self._news[agent].append(line)

    def _pack(self) -> list[str]:
        """The werewolves, in the order of the table, the dead included."""
        return [agent for agent in self.table if self.roles[agent] == WEREWOLF]

    def _known(self, agent: str) -> Knowledge:
        """What ``agent`` knows, for the expert."""
        is_wolf, is_seer = self.roles[agent] == WEREWOLF, self.roles[agent] == SEER
        wanted = [other for wolf, other in self.named.items() if self.roles[wolf] == WEREWOLF and other is not None]
        return Knowledge(
            self.roles[agent],
            self.choices(agent),
            self.claims,
            self.found if is_seer else {},
            [self.names[other] for other in self._pack()] if is_wolf else (),
            [self.names[other] for other in wanted] if is_wolf and self.phase == NIGHT else (),
        )

    def _question(self, agent: str) -> str:
        if self.phase == TALK:
            return "What do you say to all?"
        if self.phase == VOTE:
            return "Whom do you vote to send away?"
        asked = {WEREWOLF: "Whom do you want to kill?", SEER: "Whose role do you want to know?"}
        return f"It is night. {asked.get(self.roles[agent], 'Whom do you protect?')}"

    def _listed(self, agents: Any) -> str:
        return ", ".join(self.names[agent] for agent in agents)

    def _called(self, name: str) -> str:
        return next(agent for agent, own in self.names.items() if own == name)


def _has(team: Team) -> str:
    return "have" if team is Team.WEREWOLVES else "has"
