"""Properties of the routing policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.inference.serving.client import AffinityRouter

KEYS = st.one_of(st.none(), st.integers(0, 12).map(str))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), KEYS),
        st.tuples(st.just("finish"), st.integers(0, 50)),
        st.tuples(st.just("mark"), st.tuples(st.integers(0, 3), st.booleans())),
        st.tuples(st.just("forget"), st.integers(0, 12).map(str)),
    ),
    max_size=120,
)


@given(st.integers(1, 4), EVENTS)
def test_affinity_liveness_and_balance(num_engines: int, events: list) -> None:
    router = AffinityRouter(num_engines)
    up, home, flying = [True] * num_engines, {}, []
    for kind, value in events:
        if kind == "request":
            engine = router.route(value)
            assert (engine is None) == (not any(up))
            if engine is None:
                continue
            assert up[engine]
            if value is not None and value in home and up[home[value]]:
                assert engine == home[value]
            else:
                assert flying.count(engine) == min(flying.count(e) for e in range(num_engines) if up[e])
            if value is not None:
                home[value] = engine
            router.started(engine)
            flying.append(engine)
        elif kind == "finish" and flying:
            router.finished(flying.pop(value % len(flying)))
        elif kind == "mark":
            engine, alive = value[0] % num_engines, value[1]
            router.mark(engine, alive)
            up[engine] = alive
        elif kind == "forget":
            router.forget(value)
            home.pop(value, None)


@given(st.integers(1, 5), st.integers(1, 60))
def test_new_games_are_spread_evenly(num_engines: int, games: int) -> None:
    router = AffinityRouter(num_engines)
    homes = [router.route(str(game)) for game in range(games)]
    counts = [homes.count(engine) for engine in range(num_engines)]
    assert max(counts) - min(counts) <= 1


def test_forgets_the_key_that_was_not_used_for_longest() -> None:
    router = AffinityRouter(2, max_keys=2)
    assert [router.route(key) for key in ("a", "b", "a", "c")] == [0, 1, 0, 0]
    router.started(0)
    assert router.route("a") == 0  # Remembered: a new key would go to the other engine now.
    router.started(1)
    router.started(1)
    assert router.route("b") == 0


def test_needs_an_engine() -> None:
    with pytest.raises(ValueError, match="at least one"):
        AffinityRouter(0)
