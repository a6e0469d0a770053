"""The tables at the end of a run."""

from __future__ import annotations

import pytest

from rllib_lmgame.evaluation.learning_report import episode_text, outcome_table, success_table
from rllib_lmgame.experiments.results.outcome import load_report
from rllib_lmgame.settings.plugins import REPORTS


def levels(successes: str, first: int = 0) -> dict[str, float]:
    return {f"game {first + i}": float(success) for i, success in enumerate(successes)}


def test_milestones_pair_by_level() -> None:
    """In another order, and on levels of which some were played only once."""
    before, after = levels("0001"), dict(reversed(levels("011111", first=1).items()))
    _, first, second = success_table({"before": before, "after": after}, "test").splitlines()
    assert first.split()[:4] == ["before", "4", "4", "0.250"]
    # Levels 1, 2, 3 were played both times: 0 -> 0, 0 -> 1, 1 -> 1.
    assert second.split()[:4] == ["after", "6", "6", "0.833"] and "+0.333 (" in second
    assert second.endswith("on 3 episodes")


def on_levels(successes: str, digits: str) -> dict[str, float]:
    return {f"game {i} {digits[i] * 16}": float(success) for i, success in enumerate(successes)}


def test_levels_are_counted_and_not_seeds() -> None:
    """Two levels, each eight times; an older milestone named seeds alone."""
    before, after = levels("0" * 16), on_levels("10" * 8, "ab" * 8)
    _, first, second, greedy, note = success_table(
        {"before": before, "after": after, "after, greedy": after}, "test"
    ).splitlines()
    assert first.split()[:4] == ["before", "16", "16", "0.000"]
    assert second.split()[:4] == ["after", "16", "2", "0.500"] and "+0.500 (" in second
    low, high = map(float, (greedy.split()[5], greedy.split()[7]))
    assert low < 0.1 and high > 0.9
    assert (
        note.strip() == "each of these 2 levels came more than once and ended alike; counted once each: 0.500, exactly"
    )
    _, alone, said = success_table({"after": on_levels("1110", "aaaa")}, "test").splitlines()
    assert alone.split() == ["after", "4", "1", "0.750", "-"] and said.strip().startswith("one level was played")


def test_play_without_success_has_a_table_of_its_own() -> None:
    assert success_table({"before": {}, "after": {}}, "test") == ""
    assert outcome_table({"after": {}}) == ""
    rates = {
        name: {"p": {"first": value}} for name, value in (("win_rate", 0.5), ("draw_rate", 0.3), ("loss_rate", 0.2))
    }
    assert outcome_table({"after": rates}).splitlines()[1].split() == ["after", "p", "first", "0.500", "0.300", "0.200"]


@pytest.mark.parametrize("name", [*REPORTS, *REPORTS.own.values(), *REPORTS.former])
def test_reports_are_found_by_name_and_where_they_stood_before(name: str) -> None:
    assert callable(load_report(name))
    assert REPORTS.is_own(name)


def test_an_episode_ends_in_words() -> None:
    seat = {"agent_id": "player", "outcome": None, "success": True, "return": 9.4}
    record = {
        "steps": [{"observations": {"player": "board"}, "actions": {"player": "Up"}, "rewards": {"player": 9.4}}],
        "final_observations": {"player": "solved"},
        "stop_reason": "max_turns",
        "infos": {"player": {"success": True, "level": "0f3a"}},
        "trajectories": [seat],
    }
    assert episode_text(record).splitlines()[-3:] == ["solved", "ended: max turns", "player: success, return +9.40"]
    record["trajectories"] = [seat | {"agent_id": "X", "outcome": "loss"}, seat | {"agent_id": "O", "success": None}]
    assert episode_text(record).splitlines()[-2:] == ["X: loss, return +9.40", "O: return +9.40"]
