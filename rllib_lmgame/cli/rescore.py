"""``rllib rescore``: rewards of stored episodes computed anew by a function."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.new_files import new_file, writing
from rllib_lmgame.base.plugin import asking, find_in_current_directory, import_path
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option
from rllib_lmgame.cli.tables import Row, lines_of, number
from rllib_lmgame.cli.view import PATHS, check_read
from rllib_lmgame.envs.contract.adapters import MAX_REWARD

MOST_CHANGED = 5


class Rescored(NamedTuple):
    """A seat's return and success, each before and after."""

    agent_id: str
    policy: str
    returns: tuple[float, float]
    success: tuple[bool | None, bool | None]

    @property
    def changed(self) -> bool:
        before, after = self.returns
        return abs(after - before) > 1e-9 * max(1.0, abs(before)) or self.success[0] is not self.success[1]


@options.command(
    "Compute the rewards of stored episodes anew. The function gets the trajectory of a trained seat; it returns its "
    "return, a list with the reward of each turn, or {'reward': one of these, 'success': bool}.",
    PATHS,
    Option("--reward FUNCTION", "package.module:function", required=True),
    Option("--out FILE", "episode log to write, with the new rewards; it must not exist yet"),
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.rollouts.episode_log import EpisodeLog
    from rllib_lmgame.viewer.library import DAMAGED, Library, sources_of

    find_in_current_directory(args.reward)
    function = import_path(args.reward, "--reward")
    library = Library([source for source in sources_of(args.words) if not source.of_tokens])
    found: dict[tuple[str, str, str], list[Rescored]] = defaultdict(list)
    most: list[tuple[float, str]] = []
    with ExitStack() as held:
        log = None if args.out is None else EpisodeLog(held.enter_context(new_file(args.out)))
        for file, line, record in library.records():
            try:
                seats = [*rescored(record, function, f"{file}, line {line}")]
                game = str(record["game"])
            except ConfigError:
                raise
            except DAMAGED as error:
                library.tell_of(file, line, error)
                continue
            for seat in seats:
                found[seat.policy, game, re.sub(r"(-\d+)?\.jsonl$", "", file)].append(seat)
                line_of = f"{record['episode_id']} ({file}:{line}) {_line(seat)}"
                most += [(-abs(seat.returns[1] - seat.returns[0]), line_of)] * seat.changed
            most = sorted(most)[:MOST_CHANGED]
            if log is not None:
                with writing(args.out):
                    log.write([record])
        check_read(library, len(found))
    lines = lines_of([_row(key, seats) for key, seats in sorted(found.items())], 3)
    print(printable("\n".join([*lines, *(line for _, line in most)])))
    return 0


def trajectory_of(record: Mapping[str, Any], seat: Mapping[str, Any]) -> dict[str, Any]:
    """An episode as one of its seats played it: a record (:func:`~rllib_lmgame.rollouts.episode_log.episode_record`)
    with the keys of the seat's entry in ``trajectories`` on top, ``level``, and ``turns``.

    A turn has ``observation``, ``action`` (what the game read), ``thought``, ``reward`` (until the next one; the first
    has all before it), ``info`` and of models what the record has: ``text``, ``response_ids``, ``rollout_logprobs`` ...

    Raises: KeyError, TypeError, ValueError, AttributeError: it is no such record.
    """
    from rllib_lmgame.rollouts.episodes import level_in

    agent, steps, moves = seat["agent_id"], record["steps"], _moves(record, seat)
    turns = [
        {
            **turn,  # Its reward has what training takes off for the form of a reply; a seat's return has not.
            "reward": sum(step["rewards"].get(agent, 0.0) for step in steps[begin:end]),
            **{key: steps[t][f"{key}s"].get(agent) for key in ("observation", "action", "thought", "info")},
        }
        for turn, t, (begin, end) in zip(_turns(seat, moves), moves, pairwise([0, *moves[1:], len(steps)]), strict=True)
    ]
    level = level_in((record["infos"], *(step["infos"] for step in steps)))
    return deepcopy({**record, **seat, "level": level, "turns": turns})


def rescored(record: dict[str, Any], function: Callable[[dict[str, Any]], Any], where: str) -> Iterator[Rescored]:
    """Give a record its new rewards, in place; yields the numbers of each trained seat (of all if none is trained).

    A return stands at the seat's last turn. Raises: ConfigError: the function raises, or returns anything else; as
    :func:`trajectory_of`.
    """
    everybody, assigned = record["trajectories"], record["assignments"]
    own = [seat for seat in everybody if assigned[seat["agent_id"]]["trained"]] or everybody
    judged = record["success"] is not None
    for seat in own:
        if not (moves := _moves(record, seat)):  # It had no turn that could be rewarded.
            continue
        trajectory, before, said = trajectory_of(record, seat), float(seat["return"]), _judged(seat["success"])
        agent, policy = seat["agent_id"], str(seat["module_id"])
        with asking(f"{where}: the reward of {agent} in episode {record['episode_id']}", "--reward"):
            rewards, success = _read(function(trajectory), len(moves), said)
        for step in record["steps"]:
            step["rewards"] |= dict.fromkeys({agent} & step["rewards"].keys(), 0.0)
        for t, turn, reward in zip(moves, _turns(seat, moves), rewards, strict=True):
            record["steps"][t]["rewards"][agent] = turn["reward"] = reward
        seat["return"], seat["success"] = sum(rewards), success
        if success is not said:
            judged = True
            record["infos"].setdefault(agent, {})["success"] = success
        yield Rescored(agent, policy, (before, sum(rewards)), (said, success))
    record["return"] = (fmean if len(own) < len(everybody) else sum)(seat["return"] for seat in own)
    if judged:
        record["success"] = fmean(bool(seat["success"]) for seat in own)
    record.get("evaluated", {}).pop("summary", None)  # The numbers of before.


def _moves(record: Mapping[str, Any], seat: Mapping[str, Any]) -> list[int]:
    return [t for t, step in enumerate(record["steps"]) if seat["agent_id"] in step["actions"]]


def _turns(seat: Mapping[str, Any], moves: Sequence[int]) -> Sequence[dict[str, Any]]:
    return seat.get("turns") or [{} for _ in moves]


def _read(value: Any, turns: int, success: bool | None) -> tuple[list[float], bool | None]:
    import numpy as np

    said: Any = value if isinstance(value, Mapping) else {"reward": value}
    reward, success = said.get("reward"), said.get("success", success)
    rewards: list[float] = []
    with suppress(TypeError, ValueError):  # A text is no number.
        each = reward if np.ndim(reward) else [0.0] * (turns - 1) + [reward]
        rewards = [float(one + 0.0) for one in each]
    if (
        not said.keys() <= {"reward", "success"}
        or len(rewards) != turns
        or not all(abs(one) <= MAX_REWARD for one in rewards)
    ):
        ask = f"a number up to {MAX_REWARD:g}, a list of {turns} (one for each turn)"
        raise ValueError(f"return {ask}, or {{'reward': one of these, 'success': bool}}; got {value!r}")
    return rewards, _judged(success)


def _judged(success: Any) -> bool | None:
    if success not in (None, True, False):
        raise ValueError(f"success must be true, false or null, got {success!r}")
    return None if success is None else bool(success)


def _row(key: Sequence[str], seats: Sequence[Rescored]) -> Row:
    row = [*zip(("policy", "game", "log"), key, strict=True), ("seats", str(len(seats)))]
    for after, new in enumerate(("", "new ")):
        judged = [each for seat in seats if (each := seat.success[after]) is not None]
        row += [(f"{new}return", number(fmean(seat.returns[after] for seat in seats), "+.3f"))]
        row += [(f"{new}success", number(fmean(judged) if judged else None, ".3f"))]
    row += [("changed", str(sum(seat.changed for seat in seats)))]
    return [*row, ("rank correlation", number(rank_correlation([seat.returns for seat in seats]), ".3f"))]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rho of numbers before and after, ties at their mean rank; ``None`` where one side is all equal."""
    import numpy as np

    def ranks(values: Sequence[float]) -> Any:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    before, after = map(ranks, zip(*pairs, strict=True))
    return float(np.corrcoef(before, after)[0, 1]) if np.ptp(before) and np.ptp(after) else None


def _line(seat: Rescored) -> str:
    said = [{True: ", success", False: ", no success", None: ""}[each] for each in seat.success]
    before, after = (f"{value:+g}{more}" for value, more in zip(seat.returns, said, strict=True))
    return f"{seat.agent_id}: {before} -> {after}"
