"""Experiment files (YAML), and the changes by ``--set``.

Unlike PyYAML's safe loader: numbers and truth values of YAML 1.2 (``1e-6`` is a number, ``yes`` is text), no repeated
keys, no tags that construct objects. The line of every key is kept.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
import yaml.reader
from yaml.constructor import ConstructorError

from rllib_lmgame.base.errors import ConfigError, nearest
from rllib_lmgame.base.storage import expanded, is_uri
from rllib_lmgame.base.text import shown
from rllib_lmgame.experiments.spec import ExperimentSpec, Source, dotted, make_specs

MAX_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Of an experiment file, and what it holds with every alias written out."""
_TAG = "tag:yaml.org,2002:"
_INT = r"[-+]?(0o[0-7]+|0x[0-9a-fA-F]+|[0-9][0-9_]*)"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

Path_ = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """PyYAML's with the scalar rules of YAML 1.2, plain data only."""

    values = 0

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError):  # By PyYAML, for a value with another tag.
            raise ConstructorError(None, None, f"this is no {node.tag.removeprefix(_TAG)}", node.start_mark) from None

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Escaped halves of a character (``"\\ud83d\\ude00"``, as JSON writes it) are put together."""
        text = self.construct_scalar(node)
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        body = text.lstrip("+-").replace("_", "")
        if len(body) > 300 or not re.fullmatch(_INT, text):
            raise ConstructorError(None, None, f"{shown(text)} is no whole number, or too long", node.start_mark)
        number = int(body, 8 if body.startswith("0o") else 16 if body.startswith("0x") else 10)
        return -number if text.startswith("-") else number


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+0123456789.")),
    ("merge", "<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"^({_pattern})$"), _first)
_Loader.yaml_constructors = {
    **{_TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind] for kind in ("bool", "null", "float")},
    _TAG + "str": _Loader.construct_text,
    _TAG + "int": _Loader.construct_int,
    None: yaml.SafeLoader.construct_undefined,
}


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers.get(first, [])]
    for first in {**yaml.SafeDumper.yaml_implicit_resolvers, **_Loader.yaml_implicit_resolvers}
}


def dump_text(value: Any) -> str:
    """Plain data as YAML that :func:`load_text` and other readers take for the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=150, allow_unicode=True)


def load_file(path: str | Path) -> tuple[dict[str, Any], Source]:
    """The mapping in a YAML file, and where each key was written.

    Raises: ConfigError: if it cannot be read, is too large, is not YAML, or holds more than plain data.
    """
    name = str(path).removeprefix("file://")
    if is_uri(name):
        raise ConfigError("", f"{name} is an address; download the file, read it, and give its local path")
    data = _read(expanded(name))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("", f"{path} is not UTF-8 text (byte {error.start})") from None
    value, source = load_text(text, name)
    if not isinstance(value, dict):
        raise ConfigError("", "expected experiments by name (`my-experiment:` followed by its settings)", f"{name}:1")
    return value, source


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("", f"no such file: {path}{_similar_files(path)}") from None
    except OSError as error:
        raise ConfigError("", f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError("", f"{path} has more than the {MAX_BYTES:,} bytes that an experiment file may have")
    return data


def load_text(text: str, name: str) -> tuple[Any, Source]:
    """The value in a YAML text, and where each key was written. Raises: ConfigError: with the line."""
    source = Source(name)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _value(loader, node, (), source), source
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, name) from None
    except ConfigError:
        raise
    except (ValueError, OverflowError) as error:
        raise ConfigError("", f"not readable as YAML: {error}", name) from None
    except RecursionError:
        raise ConfigError("", "nested too deeply, or an alias refers to the value it stands in", name) from None


def _value(loader: _Loader, node: yaml.Node, path: Path_, source: Source) -> Any:
    """What a node holds; notes where each key stands. Raises: ConfigError: a key stands twice; too many values."""
    loader.values += 1 + len(dotted(path)) // 1000  # What is kept of each value has its path.
    if loader.values > MAX_VALUES:
        why = f"more than {MAX_VALUES:,} values with all aliases written out, or keys that are too long"
        raise ConfigError("", why, f"{source.name}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        items = [_value(loader, item, (*path, i), source) for i, item in enumerate(node.value)]
        for i, item in enumerate(node.value):
            source.record((*path, i), f"{source.name}:{item.start_mark.line + 1}")
        return items
    if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
        return loader.construct_object(node)
    lines: dict[str, int] = {}
    merged, own = dict[str, Any](), dict[str, Any]()
    for key_node, value in node.value:
        key, line = _key(key_node), key_node.start_mark.line + 1
        if key in lines:
            message = f"this key stands here twice, first on line {lines[key]}"
            raise ConfigError(dotted((*path, key)), message, f"{source.name}:{line}")
        if ":" in key and not (key_node.style or getattr(value, "style", "flow") or value.value):
            raise ConfigError(dotted((*path, key)), "a colon needs a space behind it", f"{source.name}:{line}")
        lines[key] = line
        if key_node.tag != _TAG + "merge":
            source.record((*path, key), f"{source.name}:{line}")
            own[key] = _value(loader, value, (*path, key), source)
            continue
        for each in reversed(value.value) if isinstance(value, yaml.SequenceNode) else (value,):
            if not isinstance(each, yaml.MappingNode):
                raise ConstructorError(None, None, "expected a mapping for merging", each.start_mark)
            merged |= _value(loader, each, path, source)
    return merged | own


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag.removeprefix(_TAG) not in ("str", "int", "merge"):
        raise ConstructorError(None, None, "a key must be text (quote it)", node.start_mark)
    return str(node.value)


_MOST_SAID = 200
"""Characters of what PyYAML says, which may hold a tag or a name of any length."""


def _syntax_error(error: yaml.YAMLError, text: str, name: str) -> ConfigError:
    if isinstance(error, yaml.reader.ReaderError):
        place = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
        return ConfigError("", f"the character with code {error.character} is not allowed in YAML", place)
    opened, mark = getattr(error, "context_mark", None), getattr(error, "problem_mark", None)
    problem, lines = shown(getattr(error, "problem", None) or str(error), _MOST_SAID), text.splitlines()
    if opened and (mark is None or mark.line >= len(lines)):  # What is not closed is told where it opens.
        mark = opened
    if mark is None:
        return ConfigError("", f"not readable as YAML: {problem}", name)
    line = lines[mark.line] if mark.line < len(lines) else ""
    tab = "; indent and space with spaces, without tabs" if "\t" in line[: mark.column + 1] else ""
    message = f"not readable as YAML: {problem}, at column {mark.column + 1}: {line.strip()[:80]!r}{tab}"
    return ConfigError("", message, f"{name}:{mark.line + 1}")


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no directory {path.parent})"
    match = nearest(path.name, [p.name for p in path.parent.iterdir() if p.suffix in {".yaml", ".yml"}])
    return f"; did you mean {path.parent / match}?" if match else ""


def apply_overrides(experiments: Mapping[str, Any], source: Source, overrides: Iterable[str]) -> dict[str, Any]:
    """Set values in every experiment of a file, which stays as it is, and note in ``source`` where they come from.

    ``overrides`` are ``path.to.key=value`` with a YAML value, nothing for null; in front may stand the flag that gave
    one (``--config``), for messages.

    Raises: ConfigError: for no ``=``, a value that is not YAML, or a path through something that is no mapping.
    """
    result = copy.deepcopy(dict(experiments))
    for text in overrides:
        place = text if text.startswith("--") else f"--set {text}"
        path, value = _parse(place)
        for name, settings in result.items():
            if isinstance(settings, dict):
                _set(settings, path, copy.deepcopy(value), place)
                _record(source, name, path, place)
    return result


def _parse(place: str) -> tuple[list[str], Any]:
    path, equals, value = place.partition(" ")[2].partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or not all(parts):
        raise ConfigError("", "write --set key.of.the.setting=value, e.g. --set config.lr=1e-6", place)
    return parts, load_text(value, place)[0]


def _set(settings: dict[str, Any], path: list[str], value: Any, place: str) -> None:
    """Keys of a section may have dots. A text on the way may be a type, which stands for its group."""
    section: Any = settings
    left = path
    while True:
        taken = next((n for n in range(len(left), 1, -1) if ".".join(left[:n]) in section), 1)
        key, left = ".".join(left[:taken]), left[taken:]
        if not left:
            section[key] = value
            return
        above = path[: len(path) - len(left)]
        if section.get(key) is None:
            section[key] = {}
        elif isinstance(section[key], str) and len(above) > 2:
            section[key] = {"type": section[key]}
        section = section[key]
        if not isinstance(section, dict):
            raise ConfigError(".".join(path), f"{'.'.join(above)} is not a mapping", place)


def _record(source: Source, name: str, path: list[str], place: str) -> None:
    for end in range(1, len(path)):
        source.places.setdefault(".".join([name, *path[:end]]), place)
    source.replace(".".join([name, *path]), place)


def read_experiments(path: str, overrides: Iterable[str] = ()) -> list[ExperimentSpec]:
    """Read the experiments of a file; ``overrides`` are ``--set`` texts. Raises: ConfigError: with file and line."""
    experiments, source = load_file(path)
    return make_specs(apply_overrides(experiments, source, overrides), source)
