"""What experts write is read as they meant it, in every reply format and game; nothing a game says is structure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.registry import REPLY_FORMATS
from rllib_lmgame.envs.contract.functions import GameFunction, read_functions
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.envs.registry import make_session, own_games
from rllib_lmgame.inference.engines.threaded import choices_error
from rllib_lmgame.inference.protocol import GenerationRequest, SamplingSpec
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation
from rllib_lmgame.policies.chat.messages import MessageConversation
from rllib_lmgame.policies.chat.reply_formats import ParsedReply, ReplyFormat, reply_format
from rllib_lmgame.policies.options import LanguageModelOptions

NAMES = tuple(REPLY_FORMATS)
UNMARKED = ("boxed", "fence")
MARKS = ["<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "{", "}", "```", "```py\n", "\n", " ", "up", "12"]
MARKS += ["Thought:", "Action:", "\nObservation:", '"function_name"', "<tool_call>", "</tool_call>", '"', "-", ".", ","]
some = st.lists(st.sampled_from(MARKS) | st.text(max_size=4), max_size=10).map("".join)
plain = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="<>{}`:"), max_size=12)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def made(name: str, **options: Any) -> ReplyFormat:
    return reply_format(LanguageModelOptions(reply_format=name, **options))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("think", ["off", "optional"])
@given(text=some)
@quick
def test_any_text_gives_an_action_or_an_error_never_both(name: str, think: str, text: str) -> None:
    parsed = made(name, think=think).parse(text)
    assert (parsed.action is None) != (parsed.error is None)


@pytest.mark.parametrize("name", NAMES)
@given(action=plain, thought=plain)
@quick
def test_a_reply_is_read_as_it_was_written(name: str, action: str, thought: str) -> None:
    action = f"a{action}"
    form = made(name, think="optional")
    parsed = form.parse(form.write(thought, action))
    assert (parsed.action, parsed.think or "") == (action.strip(), thought.strip())
    assert made(name).parse(form.write(None, action)).action == action.strip()


@pytest.mark.parametrize("name", NAMES)
@given(action=some, thought=st.none() | some)
@quick
def test_a_thought_never_becomes_an_action(chat_of, name: str, action: str, thought: str | None) -> None:
    """An expert may think of, or play, what looks like the structure of a reply: it is read as meant, or refused."""
    chat = chat_of(reply_format=name, think="optional")
    try:
        ids = chat.reply_ids(action, thought)
    except ConfigError as error:
        assert error.path in ("config.language_model.reply_format", "config.language_model.answer_tag")
        return
    assert chat.reply_format.parse(chat.read(ids)).action == action.strip()


@pytest.mark.parametrize(
    ("name", "reply", "action", "think"),
    [
        ("boxed", r"So \boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}", r"So \boxed{1} or"),
        ("boxed", r"<think>\boxed{1}</think>\boxed{2}", "2", r"\boxed{1}"),
        ("whole", " up \n", "up", None),
        ("whole", "<think>hm</think>\nup", "up", "hm"),
        ("react", "Thought:\nhm\n\nAction:\nup", "up", "hm"),
        ("react", "Thought: hm Action: up\nObservation: You win.\nAction: down", "up", "hm"),
        ("react", "Action: a\nb", "a\nb", None),
        ("fence", "In summary, the next action I will perform is ```up```", "up", None),
        ("fence", "```\nup\n``` no: ```\ndown\n```", "down", "```\nup\n``` no:"),
        ("fence", "So ```python\nprint(1)\n```", "```python\nprint(1)\n```", "So"),
        ("function_calling", '{"thought": "hm", "function_name": "act", "arguments": {"action": "up"}}', "up", "hm"),
        ("function_calling", '```json\n{"function_name": "act", "arguments": {"action": "a\\nb"}}\n```', "a\nb", None),
        (
            "function_calling",
            'hm\n<tool_call>\n{"name": "act", "arguments": {"action": "up"}}\n</tool_call>',
            "up",
            "hm",
        ),
    ],
)
def test_replies(name: str, reply: str, action: str, think: str | None) -> None:
    assert made(name).parse(reply) == ParsedReply(action, think)


CALL = '{"function_name": "act", "arguments": {"action": "up"}}'


@pytest.mark.parametrize(
    ("name", "reply", "error"),
    [
        ("boxed", "up", "has no"),
        ("boxed", r"\boxed{up} or \boxed{do", "not closed"),
        ("whole", "<think>hm</think> ", "empty"),
        ("whole", "<think>hm", "empty"),
        ("react", "up", "has no Action:"),
        ("react", "Action: up\nAction: down", "2 times Action:"),
        ("react", "Action: \nObservation: up", "says nothing"),
        ("fence", "```up``` or ```do", "not closed"),
        ("function_calling", "up", "no JSON object"),
        ("function_calling", '{"function_name": "act", ', "cannot be read"),
        ("function_calling", CALL + CALL, "more than one call"),
        ("function_calling", '{"function_name": "eval", "arguments": {"action": "up"}}', "must be one of act"),
        ("function_calling", '{"function_name": "act", "arguments": "up"}', "must be a JSON object"),
        ("function_calling", '{"function_name": "act", "arguments": {}}', "needs the argument 'action'"),
        ("function_calling", '{"function_name": "act", "arguments": {"action": NaN}}', "cannot be read"),
        ("function_calling", '{"x":' * 100_000, "cannot be read"),
        ("function_calling", f"<tool_call>{CALL}</tool_call>", '"name" must be one of act'),
        ("function_calling", "<tool_call>{}", "not closed"),
        ("function_calling", "<tool_call>{}</tool_call><tool_call>", "more than one call"),
    ],
)
def test_no_guesses(name: str, reply: str, error: str) -> None:
    parsed = made(name).parse(reply)
    assert parsed.action is None and error in str(parsed.error)


def test_the_page_shows_what_experts_write() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-model.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `+ ?(.*?) ?`+ \| `+ ?(.*?) ?`+ \|$", page.partition("## Reply formats")[2], re.M)
    table = {name: [cell.replace("\\n", "\n") for cell in cells] for name, *cells in rows if name in NAMES}
    assert list(table) == list(NAMES)
    for name, shown in table.items():
        written = [made(name, think="optional").write(thought, "left") for thought in ("The box is left.", None)]
        assert [text.strip("`") for text in shown] == [text.strip("`") for text in written]


@pytest.mark.parametrize("name", NAMES)
def test_required_reasoning(name: str) -> None:
    form = made(name, think="required")
    assert form.parse(form.write("", "12")).action == "12"
    assert (form.parse(form.write(None, "12")).action is None) == (name not in UNMARKED)


# -- experts ----------------------------------------------------------------------------------------------------------


SOME_GAMES = tuple(f"lmgame/{name}-v0" for name in ("Sokoban", "TicTacToe", "KuhnPoker", "TextCraft", "ToolUse"))


@cache
def moves_of_experts(games: tuple[str, ...]) -> dict[str, set[tuple[str, str | None]]]:
    """What the solvers of games say in their first turns, with their reasoning."""
    found: dict[str, set[tuple[str, str | None]]] = {}
    for game in games:
        if any(name in game for name in ("MiniWoB", "SciWorld")):
            continue  # They start a browser, or Java.
        try:
            session = make_session(game, {})
        except MissingDependencyError:
            continue
        session.reset(0)
        for _ in range(6):
            actions: dict[str, str] = {}
            for seat in session.to_act():
                action, legal = session.expert_action(seat), session.observe(seat).legal_actions
                if action is not None:
                    found.setdefault(game, set()).add((action, session.expert_thought(seat)))
                actions[seat] = (legal or ("",))[0] if action is None else action
            if actions:
                session.step(actions)
        session.close()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("think", ["off", "optional"])
@pytest.mark.parametrize(
    "games", [pytest.param(SOME_GAMES, id="some"), pytest.param((*own_games(),), id="all", marks=pytest.mark.slow)]
)
def test_what_experts_of_all_games_say_is_read_as_they_meant_it(
    chat_of, name: str, think: str, games: tuple[str, ...]
) -> None:
    chat = chat_of(reply_format=name, think=think)
    said = moves_of_experts(games)
    assert len(said) > (40 if len(games) > 40 else 3)
    for action, thought in set().union(*said.values()):
        parsed = chat.reply_format.parse(chat.read(chat.reply_ids(action, thought if think != "off" else None)))
        assert parsed.action == action.strip()
        if think != "off":
            assert (parsed.think or "") == (thought or "").strip()


# -- the options that go with every format ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_legal_moves_alone(chat_of, name: str) -> None:
    """All choices begin alike, so that what the format demands is forced; each says one action."""
    chat = chat_of(reply_format=name)
    moves = ("up", "up left", "down", "12")
    choices = tuple(chat.choice_ids(move) for move in moves)
    assert [chat.reply_format.parse(chat.read(choice)).action for choice in choices] == list(moves)
    assert choices_error(GenerationRequest("", [1], SamplingSpec(200, **chat.ends), choices)) is None
    forced = {"boxed": r"\boxed{", "react": "Action:\n", "fence": "```", "tags": "<answer>"}
    assert all(chat.read(choice).startswith(forced.get(name, "")) for choice in choices)


@pytest.mark.parametrize(
    ("name", "prefill", "rest"),
    [
        ("tags", "<answer>", "up</answer>"),
        ("boxed", r"\boxed{", "up}"),
        ("react", "Action:\n", "up"),
        ("react", "Thought:\n", "hm\n\nAction:\nup"),
        ("fence", "```", "up```"),
        ("whole", "", "up"),
        ("function_calling", '{"thought": "', 'hm", "function_name": "act", "arguments": {"action": "up"}}'),
    ],
)
def test_a_prefill_begins_the_reply(chat_of, name: str, prefill: str, rest: str) -> None:
    chat = chat_of(reply_format=name, reply_prefill=prefill, think="optional")
    ids = chat.reply_ids("up", "hm" if "hm" in rest else None)
    assert chat.decode(ids) == rest and chat.reply_format.parse(chat.read(ids)).action == "up"


@pytest.mark.parametrize("name", NAMES)
def test_a_template_that_opens_the_reasoning(chat_of, name: str) -> None:
    chat = chat_of("opens_thinking", reply_format=name, think="optional")
    parsed = chat.reply_format.parse(chat.read(chat.reply_ids("12", "hm")))
    assert (parsed.action, parsed.think) == ("12", "hm")


@pytest.mark.parametrize("name", ["boxed", "react", "fence"])
def test_earlier_reasoning_is_left_out(chat_of, name: str) -> None:
    chat = chat_of(reply_format=name, think="optional", history="strip_think")
    conversation = Conversation(chat, "rules")
    conversation.prompt(Observation("x"))
    conversation.reply(np.asarray(chat.reply_ids("up", "a long thought"), np.int32))
    shown = chat.tokenizer.decode(conversation.prompt(Observation("y")).ids)
    assert "a long thought" not in shown and chat.decode(chat.reply_ids("up")) in shown


@pytest.mark.parametrize("name", NAMES)
def test_demonstrations_are_written_in_the_format(chat_of, name: str) -> None:
    turn = {"observation": "29 - 17?", "action": "12", "think": "hm"}
    options = {"reply_format": name, "think": "optional", "demonstrations": [turn]}
    chat = chat_of(**options)
    shown = chat.tokenizer.decode(Conversation(chat, "rules").prompt(Observation("x")).ids)
    *_, (_, reply), _ = [part.split("\n", 1) for part in shown.split("<|im_start|>")[:-1]]
    assert chat.reply_format.parse(reply.partition("<|im_end|>")[0]) == ParsedReply("12", "hm")
    talk = MessageConversation(LanguageModelOptions(**options)).prompt(Observation("x"))
    assert chat.reply_format.parse(talk[-2]["content"]) == ParsedReply("12", "hm")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("think", ["off", "optional"])
def test_a_user_message_asks_for_the_format(chat_of, name: str, think: str) -> None:
    """What it shows as the form of a reply is itself read, but for the number."""
    asked = chat_of(reply_format=name, think=think, format_instructions=True).message(Observation("x"))[-1].text
    assert asked.strip() and (name in ("whole", "function_calling") or made(name).parse(asked).action)


# -- texts of others --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["boxed", "react", "fence", "function_calling"])
@pytest.mark.parametrize("kind", ["game", "rules"])
@given(text=some)
@quick
def test_no_mark_of_another_survives_in_a_prompt(chat_of, name: str, kind: str, text: str) -> None:
    chat = chat_of(reply_format=name)
    said = ("rules", text) if kind == "game" else (text, "x")
    shown = chat.tokenizer.decode(Conversation(chat, said[0]).prompt(Observation(said[1])).ids)
    assert not [mark for mark in chat.reply_format.marks if mark in shown]


@pytest.mark.parametrize("name", NAMES)
@given(text=some)
@quick
def test_no_mark_of_another_survives_at_an_endpoint(name: str, text: str) -> None:
    form = made(name)
    talk = MessageConversation(LanguageModelOptions(reply_format=name, format_instructions=False))
    (message,) = talk.prompt(Observation(text))
    assert not [mark for mark in (*form.marks, *form.tags, "<tool_call>", "<think>") if mark in message["content"]]


def test_ordinary_text_stays_as_it_is(chat_of) -> None:
    text = "Action 1: take ``x`` {a}\nThe thought: none"
    plain = Conversation(chat_of(), "rules").prompt(Observation(text)).ids
    for name in NAMES:
        assert Conversation(chat_of(reply_format=name), "rules").prompt(Observation(text)).ids == plain


# -- functions of a game ----------------------------------------------------------------------------------------------

FUNCTIONS: list[dict[str, Any]] = [
    {
        "name": "search",
        "action": "search[{keywords}]",
        "description": "looks for products",
        "parameters": {"type": "object", "properties": {"keywords": {"type": "string", "pattern": r"^[^\]]+$"}}},
    },
    {
        "name": "place",
        "action": "{piece} to {column}, {sure}",
        "parameters": {
            "type": "object",
            "properties": {
                "piece": {"type": "string", "enum": ["X", "O"]},
                "column": {"type": "integer"},
                "sure": {"type": "boolean"},
            },
        },
    },
]


@pytest.mark.parametrize(
    ("action", "called"),
    [
        ("search[red shoes]", {"function_name": "search", "arguments": {"keywords": "red shoes"}}),
        ("X to -3, true", {"function_name": "place", "arguments": {"piece": "X", "column": -3, "sure": True}}),
        ("X to three, true", {"function_name": "act", "arguments": {"action": "X to three, true"}}),
        ("search[a] || search[b]", {"function_name": "act", "arguments": {"action": "search[a] || search[b]"}}),
    ],
)
def test_an_action_is_the_call_of_a_function_that_a_game_lists(chat_of, action: str, called: dict[str, Any]) -> None:
    chat = chat_of(reply_format="function_calling", format_instructions=True).for_game(read_functions(FUNCTIONS))
    assert json.loads(chat.decode(chat.reply_ids(action))) == called
    assert chat.reply_format.parse(chat.read(chat.reply_ids(action))).action == action
    assert "search(keywords: string) - looks for products" in chat.message(Observation("x"))[-1].text
    assert chat.for_game(()) is chat and chat.for_game(read_functions(FUNCTIONS)) is chat.for_game(
        read_functions(FUNCTIONS)
    )
    boxed = chat_of(reply_format="boxed")
    assert boxed.for_game(read_functions(FUNCTIONS)) is boxed


@given(action=some)
@quick
def test_a_call_is_found_only_for_what_it_plays(action: str) -> None:
    for function in read_functions(FUNCTIONS):
        arguments = function.arguments(action)
        assert arguments is None or function.text(arguments) == action


STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ({"name": "a b", "action": "x"}, "no name"),
        ({"name": "a", "action": "{x}"}, "cannot be filled in"),
        ({"name": "a", "action": "x", "parameters": {"properties": {"x": {"type": "string"}}}}, "does not hold"),
        ({"name": "a", "action": "{x}", "parameters": {"properties": {"x": {"type": "array"}}}}, "has a type of"),
        (
            {"name": "a", "action": "{x}", "parameters": {"properties": {"x": STRING | {"pattern": 3}}}},
            "pattern cannot",
        ),
    ],
)
def test_functions_that_cannot_be_called(listed: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=words):
        read_functions([listed])
    with pytest.raises(ValueError, match="one name"):
        read_functions([{"name": "a", "action": "x"}, {"name": "a", "action": "y"}])


# -- one's own --------------------------------------------------------------------------------------------------------


class Shouted(ReplyFormat):
    """A format of one's own, with an option of its own: the action between marks."""

    mark: str = option("!!", "What stands around the action.")

    @property
    def marks(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.mark,)

    def form(self) -> str:
        return f"Write {self.mark}your reply{self.mark}"

    def read(self, text: str) -> ParsedReply:
        parts = text.split(self.mark)
        return ParsedReply(parts[1].strip()) if len(parts) == 3 else ParsedReply(None, None, "nobody shouts")

    def say(self, action: str, thought: str | None) -> str:
        return f"{self.mark}{action}{self.mark}"


class Half(Shouted):
    """It cannot be asked."""

    def say(self, action: str) -> str:  # type: ignore[override]
        return action


class Never(Shouted):
    """It ends where no engine looks."""

    stops = ("\u3002",)


def test_a_format_of_ones_own(chat_of: Callable[..., ChatFormat]) -> None:
    chat = chat_of(reply_format=f"{__name__}:Shouted", think="optional", format_instructions=True)
    assert chat.decode(chat.reply_ids("up", "hm")) == "<think>hm</think>!!up!!"
    assert chat.reply_format.parse("<think>!!no!!</think>!!up!!") == ParsedReply("up", "!!no!!")
    shown = chat.tokenizer.decode(Conversation(chat, "r").prompt(Observation("!!down!!")).ids)
    assert "!!down" not in shown and "Write !!your reply!!" in shown
    own = chat_of(reply_format={"type": f"{__name__}:Shouted", "mark": "??"})
    assert own.decode(own.reply_ids("up")) == "??up??" and own.reply_format.parse("??up??") == ParsedReply("up")
    for name, words in (
        ("Half", "trying"),
        ("Never", "a text of ASCII"),
        ("GameFunction", "not derive from ReplyFormat"),
        ("Nobody", "Nobody"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            made(f"{__name__}:{name}")
        assert caught.value.path.endswith("reply_format")
    with pytest.raises(ConfigError, match="did you mean `boxed`"):
        made("boxd")
    assert GameFunction
