"""A chat template is a stranger's program: what it may take is limited, wherever it is rendered."""

from __future__ import annotations

import threading

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.policies.chat import rendering
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.chat.rendering import RenderingStopped, render
from rllib_lmgame.policies.options import LanguageModelOptions

ROUND = "{% for a in range(99999) %}"
MESSAGES = ({"role": "user", "content": "x"},)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        pytest.param(f"{ROUND * 2}{{% endfor %}}{{% endfor %}}", "took more than 1 s", marks=pytest.mark.slow),
        ("{{ 9 ** (9 ** 9) }}", "took more than 1 s"),  # Worked out while it is compiled.
        pytest.param("{{ 'a' * 10 ** 10 }}", "512 MiB of memory", marks=pytest.mark.slow),
        pytest.param("{{ 'a' | center(10 ** 10) }}", "512 MiB of memory", marks=pytest.mark.slow),
        pytest.param(
            f"{{% set n = namespace(x='aa') %}}{ROUND}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}",
            "512 MiB of memory",
            marks=pytest.mark.slow,
        ),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion", marks=pytest.mark.slow),
        ("{{ 'a' * 2000000 }}", "2,000,000 characters of a short conversation"),
        pytest.param("{#" + "a" * 2000000 + "#}", "characters, more than", marks=pytest.mark.slow),
        ("{{ messages[0].content }}{{ '\\ud800' }}", "'\\ud800', half of a character"),
        pytest.param("{{ raise_exception('\\ud800') }}", "\\ud800", marks=pytest.mark.slow),
    ],
)
def test_a_template_that_takes_too_much_is_refused(
    tokenizer_of, template: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from rllib_lmgame.policies.chat import rendering; rendering.CPU_LIMIT_S = 1; rendering.main()"
    monkeypatch.setattr(rendering, "CPU_LIMIT_S", 1)
    monkeypatch.setattr(rendering, "_CODE", code)
    raised: list[BaseException] = []

    def build() -> None:
        try:
            ChatFormat(tokenizer_of("zephyr"), LanguageModelOptions(chat_template=template))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=build)  # Where no signal could end it.
    thread.start()
    thread.join()
    assert isinstance(raised[0], ConfigError) and "\n" not in str(raised[0])
    assert "language_model.chat_template" in str(raised[0]) and said in str(raised[0])


def test_templates_are_rendered_as_transformers_renders_them(tokenizer_of) -> None:
    tokenizer = tokenizer_of("zephyr")
    template = (
        "{% if name %}{{ name | tojson }} {% endif %}{%- for m in messages %}{% generation %}{{ bos_token }}"
        "{{ m.content }}{% endgeneration %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}{{ eos_token }}\n"
    )
    given = {"name": ["<é>"]}
    (rendered,) = render(template, [(MESSAGES, {})], {**tokenizer.special_tokens_map, **given})
    own = tokenizer.apply_chat_template(
        list(MESSAGES), chat_template=template, tokenize=False, add_generation_prompt=True, **given
    )
    assert rendered.text == own and not rendered.problem


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_CODE", "raise SystemExit('no such module')")
    with pytest.raises(RenderingStopped, match="status 1: no such module"):
        render("{{ messages[0].content }} once", [(MESSAGES, {})], {})


@pytest.mark.parametrize("value", [{1, 2}, lambda: 1, threading.Lock(), {(1, 2): 3}])
def test_arguments_that_json_cannot_hold_are_refused(tokenizer_of, value) -> None:
    with pytest.raises(ConfigError, match=r"language_model\.chat_template_kwargs: it must be what JSON can hold"):
        ChatFormat(tokenizer_of("zephyr"), LanguageModelOptions(chat_template_kwargs={"x": value}))
