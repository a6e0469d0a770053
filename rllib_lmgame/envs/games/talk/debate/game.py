"""Debate: two players speak for and against a statement, and a judge decides."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.base.plugin import import_path_or
from rllib_lmgame.base.registry import check_call, made
from rllib_lmgame.envs.contract import InvalidAction, TextAECOptions, Variant
from rllib_lmgame.envs.contract.base import MAX_QUOTED
from rllib_lmgame.envs.games.talk.base import TalkGame, TalkOptions
from rllib_lmgame.envs.games.talk.debate.expert import speech_of
from rllib_lmgame.envs.games.talk.debate.judging import MAX_WORDS, ModelJudge, RuleJudge, Speech, verdict
from rllib_lmgame.envs.games.talk.debate.topics import CON, PRO, Topic, own_topics, read_topics, splits_of
from rllib_lmgame.envs.support.asked_models import MODEL, AskedModel, is_model

SIDES = {"pro": PRO, "con": CON}
RULES_JUDGE = "rules"

RULES = """You debate a statement: PRO speaks for it, CON against it, {speeches} each in turn, PRO first. \
The first observation says which side you are on.
Reply with your speech. The other side and the judge hear its first {heard:,} characters.
{judge}
The winner gets 1, the loser -1; a draw gives 0."""
JUDGED_BY_RULE = f"""The judge reads {MAX_WORDS} words of a speech. \
It counts the sentences that make a new point on the topic in plain words, more if they give a reason or example, and \
from the second speech on if they answer what the other side said. Three points are enough; repetitions, lists of \
keywords and empty sentences make a speech worth less."""
JUDGED_BY_OTHERS = "A judge decides who has made the better case."


class DebateOptions(TalkOptions):
    """``env_config`` of Debate."""

    speeches: int = option(2, "Speeches of each side.", ge=1, le=5)
    judge: str = option(
        RULES_JUDGE,
        "`rules`, a language model (`openai:MODEL@URL`), or `package.module:Class`, whose `decide(topic, speeches)` "
        "returns above 0 for PRO, below 0 for CON.",
    )
    data: str | None = option(
        None,
        "File of topics, a line each: `statement | point; point | point; point`; null takes this package's 31.",
        path=True,
    )


class Debate(TalkGame):
    """Speak for or against a statement, before a judge.

    Observation: the statement, one's side, and what the other side has said since one's last speech.
    Action: a speech in free words; a reply without words is invalid.
    Reward: 1 to the winner, -1 to the loser, 0 to both for a draw, at the end. -0.1 for an invalid reply, to the
        offender alone; three in a row forfeit (-1, the other side 1).
    Judge: by rule, from the words alone, as ``RuleJudge`` in ``rllib_lmgame.envs.games.talk.debate.judging`` says. It
        reads 120 words of a speech and is made so that length, repetition, copying and keywords do not help; it cannot
        tell whether what is said is true, nor whose side it is on. A language model (``openai:MODEL@URL``)
        reads the speeches and ends with PRO, CON or DRAW. It, or a judge of one's own (option ``judge``), is called
        within the limit of ``text_rollouts.env_step_timeout_s``. If it fails, takes longer or gives no verdict, the
        episode is dropped and counted, and nobody is paid.
    Horizon: two speeches of each side.
    Agents: ``pro``, who begins, and ``con``; roles of the same names.
    Levels: 31 statements, a tenth of them (three) each for validation and test; or those of a file (option ``data``).
    Measures: ``pro_wins`` (1/2 for a draw), to see whether the sides are even, and, of the judge by rule, each side's
        own ``speech_score``, 0 to 1.
    Expert: says the points that this package's list has for its side, and answers the other side's first sentence.
    """

    variants = (Variant("lmgame/Debate-v0", (-1.7, 1.0)),)
    Options: ClassVar[type[TextAECOptions]] = DebateOptions
    options: DebateOptions
    zero_sum: ClassVar[bool] = True
    seats: ClassVar[Mapping[str, str]] = {"pro": "pro", "con": "con"}
    names: ClassVar[Mapping[str, str]] = SIDES

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self._topics = own_topics() if chosen.data is None else read_topics(chosen.data)
        self._splits = splits_of(self._topics)
        self._judge = RuleJudge() if chosen.judge == RULES_JUDGE else own_judge(chosen.judge)
        self.slow_calls = chosen.judge != RULES_JUDGE

    def check_ready(self) -> str:
        """Ask a judge that is a language model whether it is there. Raises: ConfigError: it is not."""
        return self._judge.model.check() if isinstance(self._judge, ModelJudge) else ""

    @property
    def rules(self) -> str:
        count = self.options.speeches
        return RULES.format(
            speeches=f"{count} {'speech' if count == 1 else 'speeches'}",
            heard=MAX_QUOTED,
            judge=JUDGED_BY_RULE if self.options.judge == RULES_JUDGE else JUDGED_BY_OTHERS,
        )

    def levels(self, rng: random.Random) -> Iterator[Topic]:
        while True:
            yield rng.choice(self._topics)

    def level_key(self, level: Topic) -> str:
        return f"debate {level.statement}"

    def split_of_level(self, digest: str, level: Topic) -> str:
        return self._splits[level.statement]

    def start(self) -> None:
        self.start_talk()
        self._topic: Topic = self.level
        self._speeches: list[Speech] = []
        self._verdict: int | None = None
        self._scores: dict[str, float] = {}

    def player_to_move(self) -> str:
        return self.possible_agents[len(self._speeches) % len(self.possible_agents)]

    def view(self, agent: str) -> str:
        side = SIDES[agent]
        stand = "for" if side == PRO else "against"
        lines = [f'You are {side}: you speak {stand} the statement "{self._topic.statement}."', self.heard(agent)]
        return "\n".join(line for line in (*lines, self._state(agent)) if line)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        """None are listed: anything may be said."""
        return ()

    def random_action(self, agent: str, rng: random.Random) -> str:
        """Some of the topic's points, for whichever side."""
        points = [*self._topic.pro, *self._topic.con]
        return " ".join(f"{point}." for point in rng.sample(points, rng.randint(1, min(3, len(points)))))

    def read_move(self, text: str) -> str:
        if not any(mark.isalnum() for mark in text):
            raise InvalidAction("reply with your speech.")
        return text

    def play_move(self, agent: str, move: str) -> None:
        self.talk.say(agent, move)
        self._speeches.append(Speech(SIDES[agent], move[:MAX_QUOTED]))
        if self.finished:
            self._verdict = verdict(self._judge, self._topic, self._speeches)
            if isinstance(self._judge, RuleJudge):
                self._scores = self._judge.scores(self._topic, self._speeches)

    @property
    def finished(self) -> bool:
        return len(self._speeches) >= len(self.possible_agents) * self.options.speeches

    def results(self) -> dict[str, float]:
        return {agent: float((self._verdict or 0) * (1 if side == PRO else -1)) for agent, side in SIDES.items()}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent)

    def measures(self, agent: str) -> dict[str, float]:
        if self._verdict is None:
            return {}
        found = {"pro_wins": (self._verdict + 1) / 2}
        if self._scores:
            found["speech_score"] = self._scores[SIDES[agent]]
        return found

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent != self.player_to_move():
            return None
        said = {side: [speech.text for speech in self._speeches if speech.side == side] for side in (PRO, CON)}
        side = SIDES[agent]
        return speech_of(self._topic, side, said[side], said[CON if side == PRO else PRO])

    def _state(self, agent: str) -> str:
        if self._verdict is not None:
            return ("The debate is a draw.", f"{PRO} has won.", f"{CON} has won.")[self._verdict]
        if self._over():
            return "The debate is over."
        number = sum(speech.side == SIDES[agent] for speech in self._speeches) + 1
        return f"Your speech {min(number, self.options.speeches)} of {self.options.speeches} comes next."


def own_judge(path: str) -> Any:
    """The judge at an import path, or a language model.

    Raises:
        ConfigError: if there is no such class, it cannot be made without arguments, or has no method ``decide``; or
            there is no such model, or its endpoint's address or key is none.
    """
    key = "env_config.judge"
    if is_model(path):
        return ModelJudge(AskedModel(path, key))
    judge = made(import_path_or(path, key, f"{RULES_JUDGE}, {MODEL}"), path, key)
    takes = "a judge of debates has a method decide(topic, speeches)"
    check_call(getattr(judge, "decide", None), f"{path}.decide", key, takes, None, None)
    return judge
