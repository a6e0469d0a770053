"""YAML that experiments are read from."""

from __future__ import annotations

import contextlib
import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.files import reading


@pytest.mark.parametrize(
    "text",
    [
        "rollout: {training: [simpleSokobanAgent]}\ntrainer: {total_training_steps: 200}\n",
        "training: {algorithm: ppo}\nmodel: {model_name_or_path: gpt2}\n",
        "simpleSokobanAgent: {agent_type: sokobanAgent, env_config: {num_boxes: 1}}\n",
    ],
)
def test_files_of_other_systems_are_sent_to_the_page(text: str, tmp_path) -> None:
    (tmp_path / "theirs.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"theirs\.yaml:1: .* docs/coming-from\.md says what the keys of GRL"):
        reading.read_experiments(str(tmp_path / "theirs.yaml"))


def value_of(text: str):
    return reading.load_text(text, "x.yaml")[0]


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        reading.load_text(text, "x.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-6", 1e-6),
        ("-1.5e3", -1500.0),
        (".5", 0.5),
        ("010", 10),
        ("0o17", 15),
        ("0xff", 255),
        ("1_000", 1000),
        ("true", True),
        ("yes", "yes"),
        ("null", None),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("'1e-6'", "1e-6"),
        ("!!str 5", "5"),
        ("-.inf", -math.inf),
        ("lmgame/Sokoban-v0", "lmgame/Sokoban-v0"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, expected):
    found = value_of(f"a: {text}")["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_every_key_has_its_line():
    _, source = reading.load_text("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "x.yaml")
    assert source.locate("a") == "x.yaml:1"
    assert source.locate("a.b") == "x.yaml:2"
    assert source.locate("a.c[1].y") == "x.yaml:5"
    assert source.locate("a.c[1].unknown") == "x.yaml:5"
    assert source.locate("a.unknown.deeper") == "x.yaml:1"


def test_a_key_that_stands_twice_is_refused():
    error = error_of("a:\n  lr: 1\n  gamma: 2\n  lr: 3\n")
    assert (error.path, error.source) == ("a.lr", "x.yaml:4")
    assert "line 2" in error.message


def test_what_is_merged_twice_is_refused_and_what_is_not_closed_is_told_where_it_opens():
    error = error_of("a:\n  <<: {lr: 1}\n  gamma: 2\n  <<: {lr: 3}\n")
    assert (error.path, error.source) == ("a.<<", "x.yaml:4") and "line 2" in error.message
    for text in ("a: 1\nb: [1, 2\n\n", "a: 1\nb: 'text\n\n"):
        assert error_of(text).source == "x.yaml:2"


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!custom", "!!set"])
def test_tags_that_make_objects_are_refused(tag):
    error = error_of(f"a: 1\nb: {tag} {{}}")
    assert error.source == "x.yaml:2"
    assert "could not determine a constructor" in error.message


@pytest.mark.parametrize("held", ["[*x]", "{b: *x}", "{<<: *x}", "{<<: [*x]}"])
def test_an_alias_to_itself_is_refused(held):
    assert "alias" in error_of(f"a: &x {held}").message


def test_a_merge_takes_mappings_alone():
    """Lists of lists, which may hold themselves or double with each level, are no part of YAML's merges."""
    error = error_of("x:\n  <<: [[{a: 1}]]\n  run: LMGamePPO\n")
    assert error.source == "x.yaml:2" and "merging" in error.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!str {b: 1}", "expected a scalar"),
        (r'a: "\UFFFFFFFF"', "not readable as YAML"),
        (r'a: "\ud800"', "not readable as YAML"),
        ("a: !!" + "k" * 5000 + " [1]", "tag"),
        ("a: !!map [1]", "2002:map"),
        ("a: {bf16:{enabled:true}}", "a colon needs a space behind it"),
        ("a: [&a0 x" + "".join(f", &a{n + 1} [{f'*a{n}, ' * 9}]" for n in range(20)) + "]", "more than 100,000 values"),
        (f"? {'k' * 40_000}\n: [{'1,' * 20_000}]", "or keys that are too long"),
    ],
)
def test_surprises_are_refused_on_their_line(text, words):
    error = error_of(f"b: 1\n{text}")
    assert words in error.message and (error.source or "").startswith("x.yaml") and len(str(error)) < 500
    assert error.source == "x.yaml:2" or "no " not in words


def test_aliases_and_merges_work():
    found = value_of("base: &b {lr: 1, gamma: 2}\nmine: {<<: *b, lr: 3}\nsame: *b")
    assert found["mine"] == {"lr": 3, "gamma": 2}
    assert found["same"] == {"lr": 1, "gamma": 2}


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "{a: " * 400 + "}" * 400 + "["])
def test_deep_nesting_is_refused(text):
    error_of(text)


@pytest.mark.parametrize(
    "text", ["a: 'x", "a: b: c", "a: 1\n---\nb: 2", "x: *nope", "? [a]\n: b", "a: \x00", "true: 1", "1.5: 1", "~: 1"]
)
def test_what_is_no_plain_mapping_is_refused_with_its_line(text):
    assert (error_of(text).source or "").startswith("x.yaml:")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "quick.yaml").write_text("a: {}")
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    (tmp_path / "large.yaml").write_text("a: " + "x" * reading.MAX_BYTES)
    for name, words in {
        "quik.yaml": "did you mean",
        "none/x.yaml": "there is no directory",
        "list.yaml": "by name",
        "latin.yaml": "UTF-8",
        "large.yaml": "bytes",
        ".": "directory",
    }.items():
        with pytest.raises(ConfigError, match=words):
            reading.load_file(tmp_path / name)
    with pytest.raises(ConfigError, match="download"):
        reading.load_file("s3://bucket/x.yaml")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="ascii", categories=["L", "N"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.from_regex(r"[a-z]{3,8}x", fullmatch=True), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
@example("08")
@example("1e5")
@example("0o17")
@example("yes")
@example("1:30")
def test_what_a_dry_run_prints_is_read_back(value):
    """By this reader and by PyYAML's own: neither takes text for a number."""
    text = reading.dump_text({"key": value})
    assert reading.load_text(text, "x.yaml")[0] == {"key": value}
    assert yaml.safe_load(text) == {"key": value}


@given(st.text(max_size=200))
def test_any_text_gives_a_value_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        reading.load_text(text, "x.yaml")


def test_an_override_finds_keys_that_have_dots():
    experiments, source = reading.load_text("a: {stop: {env.distance.points: 1, b.c: {points: 2}}}", "x")
    texts = ["stop.env.distance.points=3", "stop.b.c.points=4", "stop.b.c.by=env_steps", "stop.b.d.points=5"]
    stop = reading.apply_overrides(experiments, source, texts)["a"]["stop"]
    assert stop == {"env.distance.points": 3, "b.c": {"points": 4, "by": "env_steps"}, "b": {"d": {"points": 5}}}
    assert source.locate("a.stop.b.c.points") == "--set stop.b.c.points=4"
