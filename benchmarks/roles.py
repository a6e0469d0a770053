"""How often the players of some roles win, by who plays them and who plays the others: a checkpoint's policy and
scripted players, each with each, on the same levels.

    python benchmarks/roles.py CHECKPOINT --roles werewolf [--games 1000] [--players solver random]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.evaluation.evaluate import engines_for, saved_policies
from rllib_lmgame.measures.statistics import wilson_interval
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_evaluation
from rllib_lmgame.rollouts.records import GameConfig, PlayResult, PlaySettings


def main() -> None:
    """Play, and print a line per pair."""
    arguments = parse()
    try:
        checkpoint = find_checkpoint(arguments.checkpoint)
    except CheckpointError as error:
        raise SystemExit(str(error)) from None
    config = saved_policies(checkpoint)
    with engines_for(config, None) as runner:
        policy = config.trained_policies()[0]
        (game,) = config.training_games()
        model = AgentAssignment(policy, trained=True)
        players = [model, *(AgentAssignment(name, name) for name in arguments.players)]
        print(f"| {', '.join(arguments.roles)} | the others | games | won by {', '.join(arguments.roles)} | 95 % |")
        print("|---|---|---|---|---|")
        for own, others in ((own, others) for own in players for others in players):
            plans = seated(game, arguments.games, arguments.roles, own, others)
            won = outcomes(play(runner, game, list(plans)), arguments.roles)
            low, high = wilson_interval(sum(won), len(won))
            share = sum(won) / len(won)
            print(f"| {own.module_id} | {others.module_id} | {len(won)} | {share:.3f} | {low:.3f} to {high:.3f} |")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="of a run of one game between two sides, or its trial's directory")
    parser.add_argument("--roles", nargs="+", required=True, help="of one side")
    parser.add_argument("--games", type=int, default=1000, help="of every pair")
    parser.add_argument("--players", nargs="*", default=["solver", "random"], help="scripted players")
    return parser.parse_args()


def seated(
    game: GameConfig, games: int, roles: Sequence[str], own: AgentAssignment, others: AgentAssignment
) -> Iterator[EpisodePlan]:
    """The evaluation's levels with ``own`` in the seats of ``roles`` and ``others`` in the rest."""
    session = make_session(game.env, game.env_config)
    assignments = {agent: own if role in roles else others for agent, role in session.roles.items()}
    session.close()
    named = set(roles) & set(session.roles.values())
    if len(named) < len(set(roles)) or named == set(session.roles.values()):
        raise SystemExit(f"--roles must name some of the roles and not all: {', '.join({*session.roles.values()})}")
    for plan in plan_evaluation(1, games):
        yield replace(plan, assignments=assignments)


def play(runner: TextGameEnvRunner, game: GameConfig, plans: list[EpisodePlan]) -> PlayResult:
    """Every plan's game, played to its end."""
    result = runner.play(plans, PlaySettings((game,), keep="nothing"))
    if result.error is not None:
        raise result.error
    if result.failures:
        raise SystemExit(f"{len(result.failures)} games failed; the first: {result.failures[0].message}")
    return result


def outcomes(result: PlayResult, roles: Sequence[str]) -> list[bool]:
    """Per game whether the players of ``roles`` won it; one of them who forfeited has lost whatever the others do."""
    return [any(seat.outcome == "win" for seat in summary.seats if seat.role in roles) for summary in result.summaries]


if __name__ == "__main__":
    main()
