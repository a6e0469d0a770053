"""The pages about the games: one per class, and the index."""

from __future__ import annotations

from collections.abc import Callable

from tables import option_table, table

from rllib_lmgame.envs.checking.sample import docstring_text, example_turn
from rllib_lmgame.envs.games.adapted.agentgym.tasks import TASKS
from rllib_lmgame.envs.games.adapted.agentgym.told import CALLS
from rllib_lmgame.envs.registry import AGENT_PROGRAMS, AT_ADDRESSES, GameSpec, load_factory, own_games, served
from rllib_lmgame.settings.schema import yaml_text


def games_index() -> str:
    """The tables of all games, family by family."""
    parts = [
        "# Games",
        "```console\n"
        "$ rllib games list -f chess                                             # these tables\n"
        "$ rllib play lmgame/Sokoban-v0                                          # play one yourself\n"
        "$ rllib games check lmgame/Sokoban-v0                                   # does it keep the contract?\n"
        "$ rllib collect lmgame/Wordle-v0 --episodes 10 --out wordle.jsonl       # an expert's episodes\n"
        "```",
        "A game for one player is a Gymnasium environment: "
        '`gymnasium.make("lmgame/Sokoban-v0")` after `import rllib_lmgame`, or '
        '`gymnasium.make("rllib_lmgame:lmgame/Sokoban-v0")` without it.',
        "A game for more is a PettingZoo environment: `from rllib_lmgame.envs import kuhn_poker_v0` and "
        "`kuhn_poker_v0.env(players=3)`. There are boards and cards, talk, and dilemmas in which all reply at once. "
        "What TextArena has offline for two to fifteen players comes through an adapter.",
        '`rllib_lmgame.make("lmgame/KuhnPoker-v0", players=3)` makes every game. Replies are counted per player.',
        "What differs from the same tasks elsewhere: [other systems](other-systems.md). A game of your own: "
        "[writing a game](writing-a-game.md).",
    ]
    specs = [*own_games().values(), *served().values()]
    head = ("id", "players", "replies", "return", "expert", "extra", "what it is")
    for family in dict.fromkeys(spec.family for spec in specs):
        parts += [f"## {family}", table(head, [_game_row(spec) for spec in specs if spec.family == family])]
    return "\n\n".join(parts) + "\n"


def game_pages() -> dict[str, Callable[[], str]]:
    """File name -> writer of the page of a game and its variants."""
    by_class: dict[str, list[GameSpec]] = {}
    for spec in own_games().values():
        by_class.setdefault(spec.entry_point, []).append(spec)
    pages = {_page_name(specs[0]): lambda specs=specs: _page(specs) for specs in by_class.values()}  # type: ignore[misc]
    on_sites = served()["lmgame/WebArena-v0"]
    servers, reached = next(iter(served().values())), [served()[form] for form in _REACHED]
    return {
        **pages,
        _page_name(servers): lambda: _page_of_servers(servers),
        _page_name(on_sites): lambda: _page_of_sites(on_sites),
        **{_page_name(spec): lambda spec=spec: _page_of(spec) for spec in reached},  # type: ignore[misc]
    }


def _page_name(spec: GameSpec) -> str:
    return f"{spec.entry_point.split(':')[1]}.md"


def _game_row(spec: GameSpec) -> tuple[str, ...]:
    *cells, extra, summary = spec.cells()
    return (f"[`{spec.game_id}`](games/{_page_name(spec)})", *cells, f"`{extra}`" if extra else "", summary)


def _page(specs: list[GameSpec]) -> str:
    """What a game is, its ids, a turn of it and its options.

    Raises:
        MissingDependencyError: if the game cannot be played here.
    """
    factory = load_factory(specs[0])
    ids = [
        f"- `{spec.game_id}`: {spec.summary}" + (f" `{yaml_text(dict(spec.defaults))}`" if spec.defaults else "")
        for spec in specs
    ]
    extra = f"Needs `pip install 'rllib-lmgame[{specs[0].extra}]'`." if specs[0].extra else ""
    parts = [
        f"# {factory.__name__}",
        docstring_text(factory),
        extra,
        "Ids:\n\n" + "\n".join(ids),
        "In Python:\n\n" + example_code(specs[0]),
        "A turn:\n\n```text\n" + example_turn(specs[0]) + "\n```",
        "Options (`env_config`):\n\n" + option_table(factory.Options),
        "[All games](../games.md)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_ON_SERVERS = """Start a server of [AgentGym](https://github.com/WooooDyy/AgentGym) as its pages say, then name its \
address and the items:

```yaml
env: agentgym:textcraft
env_config:
  url: http://127.0.0.1:36001       # textcraft --host 127.0.0.1 --port 36001
  ids: data:agentgym-ids:textcraft  # rllib data fetch agentgym-ids; or a file, or 0-99
  test_ids: data:agentgym-ids:textcraft-test
  split: all                        # all of `ids`, none kept for validation
language_model: {reply_format: react, conversation_start: user}
evaluation_config:
  games:
    - env: agentgym:textcraft
      env_config: {url: "http://127.0.0.1:36001", ids: 0-99, test_ids: data:agentgym-ids:textcraft-test, split: test}
```

Whole files: [`agentgym-textcraft.yaml`](../../tuned_examples/agentgym-textcraft.yaml), and four tasks in one run,
[`agentgym-tasks.yaml`](../../tuned_examples/agentgym-tasks.yaml).

- **Items** are each played once before any is played again, in an order that the run's seed decides; the games of a \
group share one. An evaluation of as many episodes as the list has plays all of it.

- **Before a run** the server is asked whether it is there and opens a session. `--dry-run` says what is missing.
- **Sessions** are used again from episode to episode, and closed when the run ends, if the server knows `close`. \
SQLGym's server has eight sessions, then it gives out old ones again: play at most eight games at once, \
in one env runner.
- **What goes wrong**, an error, a time-out, an answer of another form, drops the episode and counts it; \
another takes its place. A server that is busy (503) or not there is asked again, up to `retries` times.
- **The token** of a server that asks for one, as [this package's](../serving-games.md#agentgyms-clients), \
stands in an environment variable, which `token_variable` names. It is sent to that address alone.
- **Time** of a request is limited by `timeout_s`, not by `text_rollouts.env_step_timeout_s`. No other game waits.
- **Replies** are what the task asks for, read by `reply_format`. What belongs to a reply of AgentGym's own form \
(`Action:`, a fence) is put around the action where a server looks for it.
- SearchQA's tags reach its server with `answer_tag: [search, answer]` and `think: optional`.
- **Functions** ({functions}) have AgentGym's names, for `reply_format: function_calling`.
- **Not here**: AgentGym's own words to the player. The rules are told in words of this package.
"""


_OPENENV = """Name the address of the environment, [one of this package's](../serving-games.md) or anybody's:

```yaml
env: openenv:http://127.0.0.1:8000
env_config: {max_turns: 30}
```

- **Before a run** the server is asked for a session. `--dry-run` says what is missing.
- **Sessions** are used again from episode to episode, and closed when the run ends. Play at most as many games at \
once as the server has sessions; one that finds all taken asks again, up to `retries` times.
- **What goes wrong**, an error, a time-out, an answer of another form, drops the episode and counts it; another \
takes its place. A value that the server says is wrong (`VALIDATION_ERROR` with its `loc`) is an invalid reply.
- **Time** of a message is limited by `timeout_s`, not by `text_rollouts.env_step_timeout_s`. No other game waits.
- **Seats** of games of this package: `reset: {seats: [remote, minimax]}`.
- **The token** stands in an environment variable, which `token_variable` names. It is sent to that address alone.
- **Not here**: tools of the Model Context Protocol, and actions that are no JSON of texts and numbers.
"""

_MRLM = """Name the environment and the address of its server, [one of this \
package's](../serving-games.md#mrlms-clients) or anybody's. Without a port it is 50051:

```yaml
env: mrlm:math@127.0.0.1:50051
env_config: {max_turns: 30}
```

- **Before a run** the server is asked whether it lists the environment. `--dry-run` says what is missing.
- **Sessions**: every episode begins one. The service has no call that ends one: a server of this package frees it \
when the game is over, or after `--session-timeout`. One that finds all taken asks again, up to `retries` times.
- **What goes wrong**, a status, a time-out, a lost session, an answer of another form, drops the episode and counts \
it; another takes its place.
- **Time** of a call is limited by `timeout_s`, not by `text_rollouts.env_step_timeout_s`. No other game waits.
- **Levels**: `Reset` is sent the `seed` in its `config`, beside what `reset` says (`{split: test, seats: \
'remote,minimax'}`). MRLM's own server reads none of it: its levels are chance, and splits mean nothing there.
- **MRLM's own server** has one copy of an environment for all sessions, so play one game at once there \
(`num_env_runners: 0`, `num_envs_per_env_runner: 1`).
- **The token** stands in an environment variable, which `token_variable` names, and travels as it is: there is no TLS.
"""

_OF_PROGRAMS = """Name the program, [which is written so](../agent-programs.md):

```yaml
env: agent:rllib_lmgame.envs.games.adapted.agent_program.trail:follow
env_config: {max_turns: 4}
```
"""

_REACHED = dict(zip((*AT_ADDRESSES, AGENT_PROGRAMS), (_OPENENV, _MRLM, _OF_PROGRAMS), strict=True))


def _page_of(spec: GameSpec) -> str:
    """Games that are not in this package: how they are reached, the options."""
    factory = load_factory(spec)
    parts = [
        f"# {factory.__name__}",
        docstring_text(factory),
        _REACHED[spec.game_id].strip(),
        "Options (`env_config`):\n\n" + option_table(factory.Options),
        "[All games](../games.md)",
    ]
    return "\n\n".join(parts) + "\n"


def _page_of_servers(spec: GameSpec) -> str:
    """The tasks on servers: what they are, how they are reached, the options."""
    factory = load_factory(spec)
    head = ("id", "its server", "replies", "reply format", "what it is")
    rows = [
        (f"`agentgym:{name}`", f"`{task.start}` of `{task.package}`", str(task.turns), f"`{task.form}`", task.summary)
        for name, task in TASKS.items()
    ]
    parts = [
        f"# {factory.__name__}",
        docstring_text(factory),
        table(head, rows),
        _ON_SERVERS.replace("{functions}", ", ".join(CALLS)),
        "Options (`env_config`):\n\n" + option_table(factory.Options),
        "[All games](../games.md)",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


_ON_SITES = """Start the sites as WebArena's \
[pages](https://github.com/web-arena-x/webarena/tree/main/environment_docker) say, then:

```console
$ apt-get install chromium                # or RLLIB_LMGAME_CHROMIUM names the browser
$ pip install --no-deps browsergym-core libwebarena   # actions and the list of tasks; their requirements are not needed
$ export WA_SHOPPING=http://HOST:7770 WA_SHOPPING_ADMIN=http://HOST:7780/admin WA_REDDIT=http://HOST:9999
$ export WA_GITLAB=http://HOST:8023 WA_WIKIPEDIA=http://HOST:8888/wikipedia WA_MAP=http://HOST:3000
```

```yaml
env: lmgame/WebArena-v0
env_config: {storage_state: .auth, split: all}  # .auth: made by WebArena's auto_login.py
```

- **Which tasks** are played without `ids`: those whose sites have an address (on every node; \
`WA_HOMEPAGE` is needed by none), and \
which can be judged here. A task that is named and cannot be played is refused with the reason.
- **Logins**: 684 of the tasks are for a player who is logged in. WebArena's `auto_login.py` writes the files; a \
login that has run out is not noticed.
- **Judged here**, by WebArena's rules: answers (`exact_match`, `must_include`), addresses (`url_match`), and what \
pages say (`program_html`).
- **Judged by a language model**, option `judge`: {fuzzy} tasks whose answers may be worded freely (`fuzzy_match`).
- **Not judged**: {closed}, which ask the shop's database. They are left out, never scored 0.
- **Before a run** the sites are asked whether they answer. `--dry-run` says which tasks are left out, and why.
- **What goes wrong**, a page that does not load or does not answer in time, drops the episode and counts it.
- **The sites keep** what was done to them, for all games and episodes: reset them as WebArena's pages say.
- **Not here**: tabs of the browser show no pages but those of the sites; nothing keeps a page from asking others.
"""


def _page_of_sites(spec: GameSpec) -> str:
    """WebArena: what it is, how it is set up, the options."""
    from rllib_lmgame.envs.games.web.web_arena.tasks import SITES, read_tasks

    factory = load_factory(spec)
    tasks = read_tasks({})
    everything = dict.fromkeys(SITES, "")
    closed = [task.number for task in tasks if task.hindrance(everything, judge=True, logins=True)]
    fuzzy = sum(task.hindrance(everything, judge=False, logins=True) != "" for task in tasks) - len(closed)
    text = _ON_SITES.replace("{fuzzy}", str(fuzzy)).replace("{closed}", ", ".join(map(str, closed)))
    parts = [
        f"# {factory.__name__}",
        docstring_text(factory),
        f"Needs `pip install 'rllib-lmgame[{spec.extra}]'`.",
        text,
        "Options (`env_config`):\n\n" + option_table(factory.Options),
        "[All games](../games.md)",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def example_code(spec: GameSpec) -> str:
    """How the game is made and played by hand: as a Gymnasium environment, or as one of PettingZoo's two kinds."""
    return _EXAMPLES[spec.kind].format(game=spec.game_id, module=spec.module)


_EXAMPLES = {
    "gymnasium": """```python
import gymnasium
import rllib_lmgame

env = gymnasium.make("{game}")
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step("a reply")
```""",
    "aec": """```python
from rllib_lmgame.envs import {module}

env = {module}.env()  # Without PettingZoo's checks: {module}.raw_env(), or rllib_lmgame.make("{game}").
env.reset(seed=0)
for agent in env.agent_iter():
    observation, reward, termination, truncation, info = env.last()
    env.step(None if termination or truncation else "a reply")
```""",
    "parallel": """```python
from rllib_lmgame.envs import {module}

env = {module}.parallel_env()  # Or rllib_lmgame.make("{game}").
observations, infos = env.reset(seed=0)
while env.agents:
    replies = {{agent: "a reply" for agent in env.agents}}
    observations, rewards, terminations, truncations, infos = env.step(replies)
```""",
}
"""Kind of a game -> how it is made and played."""
