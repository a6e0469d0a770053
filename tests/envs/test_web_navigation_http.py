"""The backend for running sites, against a small server: links, forms, redirects, faults, limits."""

from __future__ import annotations

import http.server
import json
import random
import socket
import threading
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import GameError, InvalidAction
from rllib_lmgame.envs.games.web.web_navigation import WebNavigation
from rllib_lmgame.envs.games.web.web_navigation.browser import Browser
from rllib_lmgame.envs.games.web.web_navigation.html_tree import MOST_ELEMENTS, read_page
from rllib_lmgame.envs.games.web.web_navigation.http_backend import HttpBackend

PAGES = {
    "/": """<!doctype html><html><head><title>A &amp; B</title>\
<script>var x = "<a href='/never'>never</a>";</script></head><body>
        <h1>Hello <em>world</em></h1><p>Some <b>bold</b> text.</p><p hidden>unseen</p>
        <a href="/form">The form</a> <a href="http://elsewhere.example/">Away</a> <a href="javascript:go()">Script</a>
        <a href="/loop"><img src=x alt="Round"></a><a href=sub/page?q=1#part>Relative</a></body></html>""",
    "/form": """<title>Form</title><form action="/echo" method="post"><input type="hidden" name="token" value="t0k">
        <label for="n">Name</label><input id="n" name="name" value="old">\
<label>Mail <input name="mail" type="email"></label>
        <textarea name="note" placeholder="Note">first</textarea>
        <select name="size" aria-label="Size"><option value="s">Small<option value="m" selected>Medium</select>
        <label><input type="checkbox" name="news" value="yes"> News</label>
        <label><input type="radio" name="color" value="red" checked>Red</label>\
<label><input type="radio" name="color" value="blue">Blue</label>
        <input type="submit" name="go" value="Send"><button type="button">Script only</button></form>
        <form action="/echo"><input name="q" placeholder="Search"><button>Find</button></form>""",
    "/sub/page?q=1": "<p>Sub page</p>",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """The site of the tests."""

    hold: ClassVar[threading.Event]
    redirects: ClassVar[dict[str, str]] = {
        "/old": "/form",
        "/loop": "/loop",
        "/out": "http://127.0.0.1:1/secret",
        "/scheme": "file:///etc/passwd",
        "/bad": "http://[",
    }

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        path = self.path
        if path in self.redirects:
            self._send(302, "", location=self.redirects[path])
        elif path in PAGES:
            self._send(200, PAGES[path])
        elif path == "/binary":
            self._send(200, "\x00\x01", kind="application/pdf")
        elif path == "/plain":
            self._send(200, "one\ntwo", kind="text/plain; charset=nonsense")
        elif path == "/big":
            self._send(200, "<p>word</p>" * 50_000)
        elif path == "/broken":
            self._send(500, "<h1>Oops</h1>")
        elif path == "/hang":
            self.hold.wait(20)
        elif path == "/drip":
            self._drip()
        elif path == "/cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\n<p>half")
        elif path == "/garbage":
            self.wfile.write(b"\x00\xff no http at all\r\n")
        elif path == "/login":
            self._send(302, "", location="/me", cookie="user=ann; Path=/")
        elif path == "/me":
            self._send(200, f"<p>You are {self.headers.get('Cookie', 'nobody')}</p>")
        elif path.startswith("/echo"):
            self._send(200, f"<p>{json.dumps(parse_qs(urlsplit(path).query))}</p>")
        else:
            self._send(404, "<p>missing</p>")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._send(200, f"<p>{json.dumps(parse_qs(body, keep_blank_values=True))}</p>")

    def _send(
        self, status: int, text: str, kind: str = "text/html; charset=utf-8", location: str = "", cookie: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        for name, value in (("Location", location), ("Set-Cookie", cookie)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def _drip(self) -> None:
        """A byte now and then, so that no single read ever times out."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while not self.hold.wait(0.02):
            try:
                self.wfile.write(b"x")
                self.wfile.flush()
            except OSError:
                return


@pytest.fixture(scope="module")
def site():
    Handler.hold = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Handler.hold.set()
    server.shutdown()
    server.server_close()


def test_a_page_becomes_a_tree(site: str) -> None:
    browser = Browser(HttpBackend(site), "/")
    assert browser.tree().splitlines() == [
        "[1] RootWebArea 'A & B'", "\t[2] heading 'Hello world'", "\t[3] StaticText 'Some bold text.'",
        "\t[4] link 'The form'", "\t[5] link 'Away'", "\t[6] link 'Script'", "\t[7] link 'Round'",
        "\t[8] link 'Relative'",
    ]  # fmt: skip
    for number in (5, 6):
        with pytest.raises(InvalidAction, match="leads nowhere here"):
            browser.click(number)
    browser.click(8)
    assert browser.page.path == "/sub/page?q=1" and "Sub page" in browser.tree()
    browser.back()
    browser.click(4)
    assert browser.page.title == "Form"


def test_a_form_is_filled_in_and_sent(site: str) -> None:
    browser = Browser(HttpBackend(site), "/form")
    page = browser.page
    names = [(element.role, element.name) for element in page.elements if element.form == 0]
    assert names == [
        ("textbox", "Name"),
        ("textbox", "Mail"),
        ("textbox", "Note"),
        ("combobox", "Size"),
        ("option", "Small"),
        ("option", "Medium"),
        ("checkbox", "News"),
        ("radio", "Red"),
        ("radio", "Blue"),
        ("button", "Send"),
    ]
    assert "combobox 'Size' value: 'm'" in browser.tree() and "radio 'Red' checked: True" in browser.tree()
    browser.type(page.find("textbox", "Name") or 0, "Ünal & Co", enter=False)
    for role, name in (("option", "Small"), ("checkbox", "News"), ("radio", "Blue"), ("button", "Send")):
        browser.click(page.find(role, name) or 0)
    sent = json.loads(browser.page.elements[1].name)
    assert sent == {
        "token": ["t0k"],
        "name": ["Ünal & Co"],
        "mail": [""],
        "note": ["first"],
        "size": ["s"],
        "news": ["yes"],
        "color": ["blue"],
        "go": ["Send"],
    }
    browser.open("/form")
    with pytest.raises(InvalidAction, match="sends nothing"):
        browser.click(page.find("button", "Script only") or 0)
    browser.type(page.find("textbox", "Search") or 0, "a b", enter=True)
    assert (browser.page.path, browser.page.elements[1].name) == ("/echo?q=a+b", '{"q": ["a b"]}')


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/old", 200, "textbox 'Name'"),
        ("/loop", 0, "redirects in a circle"),
        ("/out", 0, "leads to another site, which is not opened"),
        ("/scheme", 0, "leads to another site"),
        ("/bad", 0, "leads to another site"),
        ("/binary", 200, "holds application/pdf, not a web page"),
        ("/plain", 200, "StaticText 'two'"),
        ("/broken", 500, "heading 'Oops'"),
        ("/missing ü\x00\ud800", 404, "missing"),
        ("/cut", 0, "could not be loaded: IncompleteRead"),
        ("/garbage", 0, "could not be loaded"),
        ("/login", 200, "You are user=ann"),
    ],
)
def test_what_a_site_may_answer(site: str, path: str, status: int, said: str) -> None:
    browser = Browser(HttpBackend(site), path)
    assert browser.page.status == status and said in browser.tree()


def test_a_page_is_cut_at_its_limit(site: str) -> None:
    page = HttpBackend(site, max_bytes=5_000).request("get", "/big", ())
    assert len(page.elements) < 500
    assert page.elements[-1].name == "(this page is longer than 5000 bytes; the rest is left out)"
    page = HttpBackend(site).request("get", "/big", ())
    assert len(page.elements) == MOST_ELEMENTS + 2 and page.elements[-1].name == "(the rest of this page is left out)"


@pytest.mark.parametrize("path", ["/hang", "/drip"])
def test_a_site_that_is_too_slow_is_given_up(site: str, path: str) -> None:
    page = HttpBackend(site, timeout_s=0.3).request("get", path, ())
    assert page.status == 0 and "did not answer within 0.3 s" in page.elements[1].name


def test_addresses_of_the_site() -> None:
    backend = HttpBackend("http://Shop.example:8080/root/")
    assert backend.root == "/root"
    assert backend.local("a b?c=d e#f", "/x/y") == "/x/a%20b?c=d%20e"
    assert backend.local("http://shop.EXAMPLE:8080") == "/"
    for other in (
        "https://shop.example:8080/",
        "http://shop.example/",
        "//evil.example/",
        "http://shop.example:8080@evil.example/",
        "mailto:x@y",
        "http://[",
    ):
        assert backend.local(other) is None, other
    for wrong in ("shop.example", "ftp://x", "http://", "http://x:port"):
        with pytest.raises(ConfigError, match=r"env_config\.url"):
            HttpBackend(wrong)


def test_broken_html_never_raises() -> None:
    chance = random.Random(0)
    pieces = [
        "<a href=x>", "</a>", "<form>", "</form>", "<input>", "<select>", "<option>", "</select>", "<label>",
        "</label>", "<h1>", "text", "<!--", "-->",
    ]  # fmt: skip
    pieces += [
        "<button>", "<", "<script>", "</script>", "&#99999999;", "<p hidden>", "</p>", "<textarea>", "<![CDATA[",
        "<input type=radio name=r>", "\x00",
    ]  # fmt: skip
    for _ in range(300):
        page = read_page("".join(chance.choices(pieces, k=40)), "/", lambda address: address)
        assert page.elements[0].role == "RootWebArea"
        assert all(element.form is None or element.form < len(page.forms) for element in page.elements)
    assert len(read_page("<a href=x>" * 5000, "/", lambda address: address).elements) == MOST_ELEMENTS + 2


@pytest.mark.parametrize(
    "piece",
    [
        "<a", "<!--", "<![CDATA[", "<![", "</", "<", "&", "<a '", "<script>", "<textarea>", "<option>",
        "<a href='x", "<p><!--x-->",
    ],
)  # fmt: skip
def test_a_megabyte_of_broken_html_is_read_at_once(piece: str) -> None:
    assert len(read_page(piece * (1_000_000 // len(piece)), "/", lambda address: address).elements) <= MOST_ELEMENTS + 2


def test_tags_as_they_occur() -> None:
    html = (
        """<P Class=x>a &lt; b<br/>1 < 2<a HREF = '/x?a=1&amp;b=2' title="a > b" href=/no>L</A >"""
        """<!-- <a href=/c> --><script>"</a>"</SCRIPT>c"""
    )
    page = read_page(html, "/", lambda address: address)
    assert [(element.role, element.name, element.target) for element in page.elements[1:]] == [
        ("StaticText", "a < b", None),
        ("StaticText", "1 < 2", None),
        ("link", "L", "/x?a=1&b=2"),
        ("StaticText", "c", None),
    ]


def task(**changes: object) -> dict[str, object]:
    """A task in WebArena's form."""
    check = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "Hello world"}}
    return {
        "sites": ["shopping"],
        "intent": "What is the heading?",
        "start_url": "__SHOPPING__",
        "eval": check,
        **changes,
    }


def test_tasks_are_played_on_the_site(site, tmp_path) -> None:
    path = tmp_path / "tasks.json"
    elsewhere = task(sites=["reddit"])
    by_program = task(eval={"eval_types": ["program_html"]})
    by_model = task(eval={"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["x"]}})
    by_address = task(
        intent="Open the form.",
        eval={"eval_types": ["url_match"], "reference_url": "__SHOPPING__/form |OR| __SHOPPING__/other"},
    )
    path.write_text(json.dumps([task(), elsewhere, by_program, by_model, by_address]))
    game = WebNavigation(url=site, tasks=str(path), site="shopping", split="all", show_rules=False)
    solved = set()
    for seed in range(12):
        observation, _ = game.reset(seed=seed)
        assert "[4] link 'The form'" in observation and game.expert_action() is None
        if game._job.intent == "Open the form.":
            game.step("click [4]")
            _, reward, *_ = game.step("stop []")
        else:
            _, reward, *_ = game.step("stop [hello world]")
        assert reward == 1.0
        solved.add(game._job.intent)
    assert solved == {"What is the heading?", "Open the form."}
    game.reset(seed=0)
    assert game.step("stop [no]")[1] == 0.0


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([task(start_url="http://elsewhere.example")], "has no task that can be played: 1 are on other sites"),
        ([task(eval={})], "record 1: eval.eval_types must be a list of texts"),
        ([task(), task(eval={"eval_types": ["string_match"]})], "record 2: eval.reference_answers must be an object"),
        (
            [task(eval={"eval_types": ["string_match"], "reference_answers": {"must_include": [1]}})],
            "must_include must be a text or a list of texts",
        ),
        ([{"intent": "x"}], "record 1: field 'start_url' is missing"),
        ([3], "record 1: expected a JSON object, got int"),
    ],
)
def test_faults_of_a_task_file_are_named(tmp_path, records, said) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(records))
    with pytest.raises(ConfigError) as caught:
        WebNavigation(url="http://127.0.0.1:1", tasks=str(path))
    assert said in str(caught.value) and "env_config.tasks" in str(caught.value)


def test_a_site_that_is_not_there_is_named(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        path = tmp_path / "tasks.jsonl"
        path.write_text(json.dumps(task()))
        game = WebNavigation(url=url, tasks=str(path), split="all")
        with pytest.raises(
            GameError, match=r"cannot open http://127.0.0.1:\d+/: The page could not be loaded: ConnectionRefusedError"
        ):
            game.reset(seed=0)
