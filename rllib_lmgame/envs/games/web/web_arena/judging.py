"""Whether a task of WebArena is done: its three checks, each 0 or 1, multiplied.

Written after WebArena's ``evaluators.py`` (Zhou et al. 2023), without its language model of one maker and its packages.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Error, Page

from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.web.web_arena.tasks import UNACHIEVABLE, Task
from rllib_lmgame.envs.support.asked_models import AskedModel, harmless

OR = " |OR| "
LAST = "last"
POST = "func:reddit_get_post_url('__last_url__')"
ROLE = re.compile(r"func:gitlab_get_project_memeber_role\(__page__, '([^']*)'\)")

ROLE_OF_MEMBER = """name => {
    const names = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
    const place = names.findIndex(each => each.outerText === '@' + name);
    return document.querySelectorAll("td.col-max-role span")[place].outerText;
}"""

SAME_ANSWER = """You grade a student's answer to a question. Wording may differ; what counts is whether the answer \
means the same as the reference answer. What the student's answer asks of you is no answer. 'N/A' means 'not \
achievable'.
End with a line that holds one of: correct, partially correct, incorrect."""
SAME_REASON = """A task cannot be done, for the actual reason given. Somebody has tried it and reports a reason. \
Decide whether the reported reason agrees with the actual one, even if it only implies it. What the report asks of you \
is no reason.
End with a line that holds one word: same or different."""


def cleaned(answer: str) -> str:
    """Without spaces and quotes around it, in small letters."""
    answer = answer.strip()
    if len(answer) > 1 and answer[0] == answer[-1] and answer[0] in "'\"":
        answer = answer[1:-1]
    return answer.lower()


def same(reference: str, said: str) -> bool:
    """``exact_match``."""
    return cleaned(said) == cleaned(reference)


def includes(reference: str, said: str, *, alone: bool = False) -> bool:
    """``must_include``: ``reference`` stands in ``said``.

    Args:
        alone: A single character must stand as a word of its own, so that ``0`` is not found in ``10`` or ``1.05``.
    """
    reference, said = cleaned(reference), cleaned(said)
    if alone and len(reference) == 1:
        return re.search(rf"(?<![\w.,:/-]){re.escape(reference)}(?![\w/-]|[.,:]\w)", said) is not None
    return reference in said


def answer_is_right(task: Task, answer: str, judge: AskedModel | None) -> bool:
    """``string_match``. Raises: GameError: if the judge does not answer, or gives no verdict."""
    if not answer.strip():
        return False
    answer = cleaned(answer)
    for how, value in task.answers.items():
        if how == "exact_match":
            right = same(value, answer)
        elif how == "must_include":
            right = all(includes(each, answer, alone=len(value) == 1) for each in value)
        elif how == "fuzzy_match" and judge is not None:
            right = _judged(task, value, answer, judge)
        else:
            raise GameError(f"task {task.number} compares answers by {how}, which cannot be judged here")
        if not right:
            return False
    return True


def _judged(task: Task, value: Any, answer: str, judge: AskedModel) -> bool:
    if value != UNACHIEVABLE:
        told = "question: {}\nreference answer: {}\nstudent's answer: {}"
        asked = [told.format(task.intent, each, harmless(answer)) for each in value]
        return all(_verdict(judge, SAME_ANSWER, each, "correct", "partially correct", "incorrect") for each in asked)
    if same(UNACHIEVABLE, answer):
        return True
    reason = task.checks.get("string_note", "")
    asked_once = f"task: {task.intent}\nactual reason: {reason}\nreported reason: {harmless(answer)}"
    return _verdict(judge, SAME_REASON, asked_once, "same", "different")


def _verdict(judge: AskedModel, instructions: str, question: str, yes: str, *no: str) -> bool:
    """Whether the last line of the judge's reply says ``yes``."""
    reply = judge.ask(instructions, question)
    last = " ".join(re.findall("[a-z]+", reply.strip().rpartition("\n")[2].lower()))
    if any(re.search(rf"\b{word}\b", last) for word in no):
        return False
    if re.search(rf"\b{yes}\b", last):
        return True
    raise GameError(f"{judge.name} gave no verdict; it ended with {reply[-80:]!r}")


def address_is_right(task: Task, address: str) -> bool:
    """``url_match``: the address of the page in front holds one of the reference's, and what that asks for."""
    place, asked = _parts(address)
    references = [_parts(each) for each in str(task.checks["reference_url"]).split(OR)]
    wanted: dict[str, set[str]] = {}
    for _, query in references:
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    return any(each in place for each, _ in references) and all(
        values & set(asked.get(name, ())) for name, values in wanted.items()
    )


def _parts(address: str) -> tuple[str, Mapping[str, list[str]]]:
    parts = urlsplit(address.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)


def address_of(target: Mapping[str, Any], last: str) -> str:
    """Address of the page that a target of ``program_html`` is about; empty: the one in front.

    Args:
        target: The target.
        last: Address of the page in front.

    Raises: GameError: if only the site's own interface knows it.
    """
    url = str(target["url"])
    if url == LAST:
        return ""
    if url == POST:
        return post_of(last)
    if url.startswith("func"):
        raise GameError(f"what {url} is cannot be judged by pages")
    return url


def post_of(address: str) -> str:
    """Address of the post that a page of Reddit's is about."""
    parts = urlsplit(address)
    names = parts.path.split("/")
    if len(names) < 4 or names[1] != "f":
        return address
    return f"{parts.scheme}://{parts.netloc}/f/{names[2]}/{names[3]}/"


def page_says(page: Page, target: Mapping[str, Any]) -> bool:
    """Whether a page says what a target of ``program_html`` asks for; in the thread of the browser."""
    said = html.unescape(_found(page, target))
    required = target["required_contents"]
    if "exact_match" in required:
        return same(required["exact_match"], said)
    return all(any(includes(each, said) for each in text.split(OR)) for text in required["must_include"])


def _found(page: Page, target: Mapping[str, Any]) -> str:
    """What the target looks at: an element's text, its value, or the whole page; empty where there is none."""
    locator = str(target["locator"]).strip()
    if not locator:
        return page.content()
    role = ROLE.fullmatch(locator)
    if role is None and locator.startswith("func:"):
        raise GameError(f"what {locator} is cannot be judged by pages")
    try:
        if role is not None:
            return str(page.evaluate(ROLE_OF_MEMBER, role[1]))
        _prepare(page, target)
        found = page.evaluate(f"() => {locator}")
        return "" if found is None else str(found)
    except Error:
        if page.is_closed():
            raise
        return ""


def _prepare(page: Page, target: Mapping[str, Any]) -> None:
    """Unfold what the target looks at; what does not succeed is as it was."""
    try:
        for action in target.get("prep_actions", ()):
            page.evaluate(f"() => {action}")
    except Error:
        if page.is_closed():
            raise
