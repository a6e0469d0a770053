"""WebArena's tasks on small sites on loopback, in a real browser (7 s); what is refused, and how tasks are judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("browsergym.core")

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.web.browser import host
from rllib_lmgame.envs.games.web.browser.sight import elements_of
from rllib_lmgame.envs.games.web.web_arena import game as game_module
from rllib_lmgame.envs.games.web.web_arena import tasks as tasks_module
from rllib_lmgame.envs.games.web.web_arena.game import WebArena
from rllib_lmgame.envs.games.web.web_arena.judging import ROLE, address_is_right, answer_is_right, includes, same
from rllib_lmgame.envs.games.web.web_arena.tasks import SITES, Task, chosen_numbers, read_tasks, variable_of
from tests.endpoint_server import listening
from tests.envs.chromium import missing_for_browser

if missing := missing_for_browser(lambda: read_tasks({})):
    pytest.skip(missing, allow_module_level=True)

EVERYWHERE = dict.fromkeys(SITES, "http://there")
BIO = "I am a robot"
MEMBERS = """<table><tr><td data-label="Account"><span class="gl-avatar-labeled-sublabel">@vinta</span></td>
<td class="col-max-role"><span>Owner</span></td></tr>
<tr><td data-label="Account"><span class="gl-avatar-labeled-sublabel">@abisubramanya27</span></td>
<td class="col-max-role"><span>Guest</span></td></tr></table>"""
START = """<a href="/dashboard/todos">To-Do List</a> <a href="/f/consoles/9/which" target="_blank">A post</a>
<a href="http://localhost:{port}/">Elsewhere</a> <a href="/dead">Dead</a>"""
BIO_PAGE = """<p class="user-bio__biography">{bio}</p><form action="/bio"><input name="bio" aria-label="Biography">
<button>Save</button></form>"""


class Sites(BaseHTTPRequestHandler):
    """All sites in one, which keeps a biography and says who is logged in."""

    server: Server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/bio":
            self.server.bio = parse_qs(address.query)["bio"][0]
        if address.path == "/dead":
            self.connection.close()
            return
        pages = {
            "/bio": BIO_PAGE.format(bio=self.server.bio),
            "/user/MarvelsGrantMan136": BIO_PAGE.format(bio=self.server.bio),
            "/byteblaze/dotfiles/-/project_members": MEMBERS,
            "/f/consoles/9/which": "A comment",
            "/f/consoles/9/": "<div class='submission__inner'>What is the recommended console to buy these days</div>",
        }
        page = pages.get(address.path, START.format(port=self.server.server_port))
        text = f"<title>Site</title>Cookie: {self.headers.get('Cookie')} {page}{self.server.asks}".encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """The sites' server."""

    daemon_threads = True
    bio = "nothing"
    status = 200
    asks = ""
    """What a page has that asks for a login, for those whose cookie is not known."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Sites on loopback, which the environment names."""
    with listening(Server(("127.0.0.1", 0), Sites)) as serving:
        for site in SITES:
            monkeypatch.setenv(variable_of(site), f"http://127.0.0.1:{serving.server_port}")
        monkeypatch.setattr(game_module, "JUDGED_AFTER_MS", 0)
        yield serving


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[None]:
    """A browser that stays open, so that not every test starts one."""
    pages = host.Pages(30.0)
    pages.begin({})
    yield
    pages.close()


@pytest.fixture
def logins(tmp_path: Path) -> str:
    """What WebArena's script for logins leaves."""
    for name in ("shopping", "shopping_admin", "reddit", "gitlab", "gitlab.reddit"):
        cookie = {"name": "who", "value": name, "domain": "127.0.0.1", "path": "/", "expires": -1}
        cookie |= {"httpOnly": False, "secure": False, "sameSite": "Lax"}
        (tmp_path / f"{name}_state.json").write_text(json.dumps({"cookies": [cookie], "origins": []}))
    return str(tmp_path)


@pytest.fixture
def begin(server: Server, logins: str) -> Iterator[Callable[..., WebArena]]:
    """Begins the task of a number."""
    made: list[WebArena] = []

    def begun(ids: int, **options: Any) -> WebArena:
        made.append(WebArena(**{"ids": ids, "split": "all", "storage_state": logins, **options}))
        made[-1].reset(seed=0)
        return made[-1]

    yield begun
    for game in made:
        game.close()


def element(game: WebArena, name: str) -> str:
    """Number of the element of a name on the page in front."""
    return next(each.id for each in elements_of(game.board()) if each.id and each.name == name)


def ended(game: WebArena, reply: str = "send_msg_to_user('done')") -> float:
    """Reward of a reply that ends the task."""
    _, reward, done, cut, info = game.step(reply)
    assert done and not cut and info["success"] == (reward == 1.0)
    return reward


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("send_msg_to_user('quest lumaflex™ band')", 1.0),
        ("send_msg_to_user('Quest')", 0.0),
        pytest.param("report_infeasible('no such thing')", 0.0, marks=pytest.mark.slow),
    ],
)
def test_a_task_with_an_answer(begin: Callable[..., WebArena], reply: str, reward: float) -> None:
    game = begin(0)
    assert "Goal: What is the top-1 best-selling product in 2022" in game.board()
    assert "Cookie: who=shopping_admin" in game.board()
    assert ended(game, reply) == reward


def test_a_task_whose_page_must_be_found(begin: Callable[..., WebArena]) -> None:
    assert ended(begin(44)) == 0.0
    game = begin(44)
    board, *_ = game.step(f"click('{element(game, 'To-Do List')}')")
    assert re.search(r"Tab 0 \(in front\): http://127.0.0.1:\d+/dashboard/todos", board)
    assert ended(game) == 1.0


def test_a_task_that_changes_a_page(begin: Callable[..., WebArena], server: Server) -> None:
    assert ended(begin(399)) == 0.0
    game = begin(399)
    game.step(f"goto('http://127.0.0.1:{server.server_port}/user/MarvelsGrantMan136')")
    game.step(f"fill('{element(game, 'Biography')}', '{BIO}')")
    game.step(f"click('{element(game, 'Save')}')")
    assert server.bio == BIO and ended(game) == 1.0
    assert ended(begin(399, max_turns=1), "noop(0)") == 1.0  # The last turn is judged without being asked.


@pytest.mark.slow
def test_tabs(begin: Callable[..., WebArena], server: Server) -> None:
    game = begin(44)
    assert "Tab 1 (in front): about:blank" in game.step("new_tab()")[0]
    assert "/dashboard" in game.step(f"goto('http://127.0.0.1:{server.server_port}/dashboard')")[0]
    assert "Tab 0 (in front)" in game.step("tab_focus(0)")[0]
    assert "The last action failed" in game.step("tab_focus(7)")[0]
    board, *_ = game.step("tab_close()")
    assert "Tab 0 (in front)" in board and "/dashboard" in board and "Tab 1" not in board
    assert "about:blank" in game.step("tab_close()")[0]


def test_no_other_address_can_be_gone_to(begin: Callable[..., WebArena]) -> None:
    game = begin(44, max_invalid_actions=None)
    for url in ("file:///etc/passwd", "http://localhost/", "javascript:alert(1)", "http://[", "x"):
        board, reward, done, _, info = game.step(f"goto('{url}')")
        assert info["invalid_action"] and reward == -0.1 and not done and "no address on these sites" in board, url


def test_a_page_of_another_site_ends_the_task(begin: Callable[..., WebArena]) -> None:
    game = begin(44)
    board, reward, done, _, info = game.step(f"click('{element(game, 'Elsewhere')}')")
    assert (reward, done, info["success"], info["measures"]) == (0.0, True, False, {"left_sites": 1.0})
    assert "another site" in board


@pytest.mark.parametrize(
    "asks",
    [
        "<form>Password <input type='password'></form>",
        pytest.param("<a href='/login'>Log in</a>", marks=pytest.mark.slow),
    ],
)
def test_a_login_that_has_expired_drops_the_episode(begin: Callable[..., WebArena], server: Server, asks: str) -> None:
    game = begin(44)
    server.asks = asks
    with pytest.raises(
        GameError, match=r"the login of gitlab_state\.json has expired: http.* asks for one; .*login\.py"
    ):
        game.reset(seed=0)
    begin(356).close()  # A task of the map, which nobody is logged in to.
    server.asks = "<a href='/f/books/7/login'>Login</a><a href='/login' hidden>Log in</a><input type='password' hidden>"
    game.reset(seed=0)
    assert ended(game) == 0.0


def test_a_site_that_fails_drops_the_episode(begin: Callable[..., WebArena], server: Server) -> None:
    game = begin(44)
    with pytest.raises(GameError, match="does not load"):
        game.step(f"click('{element(game, 'Dead')}')")
    server.status = 502
    with pytest.raises(GameError, match="status 502"):
        game.reset(seed=0)
    server.status = 200
    game.reset(seed=0)
    assert ended(game) == 0.0


def test_sites_are_asked_before_a_run(begin: Callable[..., WebArena], monkeypatch: pytest.MonkeyPatch) -> None:
    assert begin(44).check_ready() == "has 1 tasks whose sites answer"
    game = begin(None)  # type: ignore[arg-type]
    assert re.fullmatch(r"has 679 tasks .*; left out 118: .*judge.*; left out 15: .*database.*", game.check_ready())
    monkeypatch.setenv("WA_GITLAB", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"gitlab at http://127.0.0.1:9 \(WA_GITLAB\) does not answer"):
        WebArena(ids=44, storage_state=game.options.storage_state).check_ready()
    with pytest.raises(GameError, match="task 44"):
        WebArena(ids=44, split="all", storage_state=game.options.storage_state).reset(seed=0)


def test_what_cannot_be_played_is_refused(server: Server, logins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for ids, message in (
        (436, "task 436 cannot be played: it is judged by the shop's database"),
        ("44, 101", "task 101 cannot be played: .*`judge`"),
        (812, "names no task; WebArena's are 0-811"),
    ):
        with pytest.raises(ConfigError, match=rf"env_config.ids: .*({message})"):
            WebArena(ids=ids, storage_state=logins)
    with pytest.raises(ConfigError, match="task 44 cannot be played: its player must be logged in"):
        WebArena(ids=44)
    Path(logins, "gitlab_state.json").write_text('{"cookies": [')
    with pytest.raises(ConfigError, match="damaged"):
        WebArena(ids=44, storage_state=logins)
    Path(logins, "gitlab_state.json").unlink()
    with pytest.raises(ConfigError, match=r"gitlab_state.json cannot be read .*auto_login.py"):
        WebArena(ids=44, storage_state=logins)
    for site in SITES:
        monkeypatch.delenv(variable_of(site))
    with pytest.raises(ConfigError, match=r"none of WebArena's tasks can be played.*WA_SHOPPING"):
        WebArena()
    monkeypatch.setattr(tasks_module.importlib.util, "find_spec", lambda name: None)
    tasks_module._as_published.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install --no-deps libwebarena"):
        WebArena()


def test_every_task_can_be_judged_or_says_why_not() -> None:
    tasks = read_tasks(EVERYWHERE)
    assert [task.number for task in tasks] == list(range(812))
    assert not any("__" in url for task in tasks for url in task.starts)
    played = [task for task in tasks if not task.hindrance(EVERYWHERE, judge=True, logins=True)]
    assert len(played) == 797
    for task in played:
        assert set(task.checks["eval_types"]) <= {"string_match", "url_match", "program_html"}
        assert task.answers.keys() <= {"exact_match", "must_include", "fuzzy_match"}
        assert task.answers or task.targets or task.checks["reference_url"]
        for target in task.targets:
            locator = target["locator"]
            assert not locator or ROLE.fullmatch(locator) or locator.startswith(("document.", "[...document."))
            assert len(target["required_contents"]) == 1
    assert chosen_numbers(" 3, 1-2,2", "ids") == [3, 1, 2]


def task_of(**checks: Any) -> Task:
    """A task with these checks."""
    kinds = [
        kind for kind, key in (("string_match", "reference_answers"), ("url_match", "reference_url")) if key in checks
    ]
    return Task(7, "How?", ("http://a",), (), "", {"eval_types": kinds, "program_html": [], **checks})


@pytest.mark.parametrize(
    ("said", "right"),
    [("There are 6.", True), ("(6)", True), ("16", False), ("6.5", False), ("1,6", False), ("6-7", False)],
)
def test_a_single_figure_stands_alone(said: str, right: bool) -> None:
    assert includes("6", said, alone=True) is right and includes("6", said)
    tokens = pytest.importorskip("nltk.tokenize").NLTKWordTokenizer().tokenize(said)
    assert ("6" in tokens) is right  # As WebArena cuts words.


def test_answers() -> None:
    assert same("'Yes'", '"yes" ') and not same("yes", "yes.") and not same("'", "")
    both = task_of(reference_answers={"must_include": ["One", "Two"]})
    assert answer_is_right(both, "two, then ONE", None) and not answer_is_right(both, "two", None)
    assert not answer_is_right(both, " ", None)
    free = task_of(reference_answers={"fuzzy_match": ["20 minutes"], "must_include": ["20"]})
    with pytest.raises(GameError, match="fuzzy_match, which cannot be judged"):
        answer_is_right(free, "20", None)


class Judge:
    """Says what it is given; keeps what it was asked."""

    name = "a judge"

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), []

    def ask(self, instructions: str, question: str) -> str:
        self.asked.append(question)
        return self.replies.pop(0)


def test_answers_that_a_model_compares() -> None:
    free = task_of(reference_answers={"fuzzy_match": ["20 minutes", "by bus"]})
    judge = Judge("It is not incorrect.\nCorrect", "correct.", "correct", "Partially correct", "Well", "incorrect")
    assert answer_is_right(free, "20 min <b>by bus", judge)  # type: ignore[arg-type]
    assert "20 minutes" in judge.asked[0] and "by bus" in judge.asked[1] and "< b>" in judge.asked[0]
    assert not answer_is_right(free, "20 min", judge)  # type: ignore[arg-type]
    with pytest.raises(GameError, match="a judge gave no verdict"):
        answer_is_right(free, "20 min", judge)  # type: ignore[arg-type]
    assert not answer_is_right(free, "no", judge)  # type: ignore[arg-type]
    never = task_of(reference_answers={"fuzzy_match": "N/A"}, string_note="there is no bus")
    judge = Judge("same", "different")
    assert answer_is_right(never, "n/a", judge) and not judge.asked  # type: ignore[arg-type]
    assert answer_is_right(never, "no bus goes", judge) and "there is no bus" in judge.asked[0]  # type: ignore[arg-type]
    assert not answer_is_right(never, "too far", judge)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "right"),
    [
        ("http://a/f/x/?sort=new", True),
        ("http://a/f/x/9?more=1&sort=old", True),
        ("http://b/f/y?sort=new", True),
        ("http://a/f/x", False),
        ("http://a/f/x?sort=top", False),
        ("http://a/f?sort=new", False),
    ],
)
def test_addresses(address: str, right: bool) -> None:
    task = task_of(reference_url="http://a/f/x?sort=new |OR| http://b/f/y?sort=old/")
    assert address_is_right(task, address) is right
