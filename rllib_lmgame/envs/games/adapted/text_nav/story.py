"""Games in files: TextWorld's ``.z8`` and ``.json``, and ``.tw-pddl``, which are ALFWorld's, played by TextWorld."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import textworld
from textworld.envs import TWInform7

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import first_line
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.contract.splits import TEST, TRAIN, VALIDATION
from rllib_lmgame.envs.games.adapted.text_nav.house import House

KEY = "env_config.files"
HOUSE, PDDL = ".json", ".tw-pddl"
ENDINGS = (".z8", *(f".z{version}" for version in range(1, 8)), HOUSE, PDDL)
SPLITS_OF_FOLDERS = {"train": TRAIN, "valid_seen": VALIDATION, "valid_unseen": TEST}
"""Folders of ALFWorld's data, and the splits they are."""

TASKS = (
    *("pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep"),
    *("pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_two_obj_and_place"),
)
"""What names of its folders begin with."""

INSTALL_ALFWORLD = (
    "games in .tw-pddl files need the packages 'alfworld' and 'fast-downward-textworld': "
    "pip install 'rllib-lmgame[alfworld]', which compiles the second and needs cmake and a C++ compiler"
)
SCALES = {1: 2, 2: 2, 3: 2, 4: 4, 5: 4, 6: 8, 7: 8, 8: 8}
"""Version of a Z-machine story -> bytes in a unit of the length that its header tells (the Z-machine's standard)."""

NOT_SUPPORTED = ("movable", "Sliced")
"""Of the names of ALFWorld's folders."""
UNSOLVABLE = re.compile(rb'"solvable": *false')
ART = re.compile(r"[\s|/\\$_<>]*")
TASK = re.compile(r"Your task is to: (.*)")
HEADING = re.compile(r"[ \t]{10,}-= .*? =-[^\n]*")
PROMPT = re.compile(r"\n+>\s*$")


class StoryFile(NamedTuple):
    """A level: the file, and its place below the folder that was named."""

    path: str
    name: str

    @property
    def split(self) -> str | None:
        """Its split, if a folder it lies in says so."""
        folders = Path(self.path).parts
        return next((split for folder, split in SPLITS_OF_FOLDERS.items() if folder in folders), None)

    @property
    def task(self) -> str:
        """ALFWorld's kind of task, if a folder it lies in says so."""
        kinds = (folder.partition("-")[0] for folder in Path(self.path).parts)
        return next((kind for kind in kinds if kind in TASKS), "")


def story_files(where: str) -> list[StoryFile]:
    """The games of a file, or of a folder and those below it, by name.

    A ``.json`` beside a ``.z8`` of the same name is what TextWorld knows of that game, and no game of its own; so are
    the other JSON files of ALFWorld's folders. Of these games those are left out that ALFWorld leaves out of its
    evaluations: with parts it does not support, and without a solution.

    Raises: ConfigError: if there is none.
    """
    root = expanded(where)
    if root.is_file():
        if root.suffix not in ENDINGS:
            extra = " TextWorld plays no .ulx any more." if root.suffix == ".ulx" else ""
            raise ConfigError(KEY, f"{where!r} is no game; games end in {', '.join(ENDINGS)}.{extra}")
        return [StoryFile(str(root), root.name)]
    if not root.is_dir():
        raise ConfigError(KEY, f"{where!r} does not exist; give a game or a folder of games that every node can read")
    found = sorted(path for path in root.rglob("*") if path.suffix in ENDINGS and path.is_file())
    stems = {path.with_suffix("") for path in found if path.suffix not in (HOUSE, PDDL)}
    planned = {path.parent for path in found if path.suffix == PDDL}
    games = [
        StoryFile(str(path), name)
        for path, name in ((path, path.relative_to(root).as_posix()) for path in found)
        if (path.suffix != HOUSE or (path.with_suffix("") not in stems and path.parent not in planned))
        and not _left_out(path, name)
    ]
    if not games:
        raise ConfigError(KEY, f"there is no game in {where!r}; games end in {', '.join(ENDINGS)}")
    return games


def _left_out(path: Path, name: str) -> bool:
    """Whether it has parts that ALFWorld does not support, or says that it has no solution."""
    if path.suffix != PDDL:
        return False
    about = path.stat()
    return any(part in name for part in NOT_SUPPORTED) or _is_unsolvable(str(path), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=20_000)
def _is_unsolvable(path: str, changed: int, size: int) -> bool:
    """Whether a file says so; one that has not changed is read once per process."""
    return UNSOLVABLE.search(Path(path).read_bytes()) is not None


def need_alfworld(games: list[StoryFile]) -> None:
    """Raises: MissingDependencyError if one of the games needs ALFWorld's packages and they are not there."""
    if any(game.path.endswith(PDDL) for game in games):
        try:
            import alfworld  # noqa: F401
            import fast_downward  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(INSTALL_ALFWORLD) from error


def house_of(path: str) -> House:
    """The house of a ``.json`` file. Raises: GameError: if the file holds none."""
    try:
        return House(path)
    except Exception as error:
        raise _broken(path, first_line(error)) from error


def _evaluated(symbol: Any, context: dict[str, Any] | None = None) -> list[Any]:
    """``EvalSymbol.derive`` of TextWorld 1.7, which writes to ``locals()``: Python 3.13 no longer takes that."""
    from textworld.envs.pddl import textgen

    return [
        textgen.TerminalSymbol(eval(symbol.expression, vars(textgen), dict((context or symbol.context)["variables"])))
    ]


class Story:
    """A game of a file in play, told by what runs it: the Z-machine, or ALFWorld's text engine.

    Args:
        path: The file.

    Raises: GameError: if it is no game, or cut short.
    """

    def __init__(self, path: str) -> None:
        if not path.endswith(PDDL):
            _check_story(path)
        wrappers = []
        if path.endswith(PDDL):
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
            from textworld.envs.pddl import textgen

            textgen.EvalSymbol.derive = _evaluated
            wrappers = [AlfredDemangler]
        try:
            made_here = TWInform7.compatible(path)
            wanted = textworld.EnvInfos(feedback=True, won=True, lost=True, objective=made_here)
            wanted.admissible_commands = made_here or path.endswith(PDDL)
            wanted.policy_commands = made_here
            self._game: Any = textworld.start(path, wanted, wrappers=wrappers)
            self._plain: Any = getattr(self._game, "unwrapped", self._game)
            if not (wanted.admissible_commands or self._plain._jericho.is_fully_supported):
                raise LookupError(f"nothing says when its goal is reached; tw-make's {Path(path).stem}.json does")
            self._state = self._game.reset()
            self.said = _told(self._state.feedback)
        except Exception as error:
            raise _broken(path, first_line(error)) from error
        task = TASK.search(self.said)
        self.errand = task[1] if task else re.sub(r"\s+", " ", self._state.objective or "").strip()
        """What to do, as far as the story says so; may be empty."""
        self._over = False

    @property
    def won(self) -> bool:
        """The goal is reached."""
        return bool(self._state.won)

    @property
    def lost(self) -> bool:
        """The goal cannot be reached any more, or the story is over."""
        return not self.won and (bool(self._state.lost) or self._over)

    def commands(self) -> tuple[str, ...]:
        """Commands that change something now; none where the game does not tell."""
        return tuple(self._state.admissible_commands or ())

    def winning_commands(self) -> list[str] | None:
        """Commands to the goal from here, by the game's own planner; ``None`` if it has none."""
        planner: Any = getattr(self._plain, "_pddl_state", None)
        if planner is not None:
            return list(planner.replan(self._plain._entity_infos) or ()) or None
        return list(self._state.policy_commands or ()) or None

    def do(self, command: str) -> str:
        """Carry out any command; returns what the story says."""
        self._state, _, self._over = self._game.step(command)
        self.said = _told(self._state.feedback)
        return self.said

    def close(self) -> None:
        """Free what runs it."""
        self._game.close()


def _told(text: str) -> str:
    """What is said, without the interpreter's status line and prompt, pictures of characters and empty lines."""
    plain = PROMPT.sub("", HEADING.sub("", text or ""))
    return "\n".join(line.rstrip() for line in plain.split("\n") if not ART.fullmatch(line))


def _check_story(path: str) -> None:
    """Check the length and the sum in the header of a story: the interpreter ends the process where they are wrong.

    Raises: GameError: if they are.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise _broken(path, first_line(error)) from error
    if len(content) < 64 or content[0] not in SCALES:
        raise _broken(path, "it has no header of a Z-machine story")
    length = int.from_bytes(content[0x1A:0x1C], "big") * SCALES[content[0]]
    if length > len(content):
        raise _broken(path, f"it has {len(content)} of {length} bytes")
    if length and sum(content[0x40:length]) % 65_536 != int.from_bytes(content[0x1C:0x1E], "big"):
        raise _broken(path, "its bytes do not sum up to what its header says")


def _broken(path: str, why: str) -> GameError:
    return GameError(f"{path} is no game that TextWorld can play, or is cut short: {why}")
