"""Which environments of TextArena can be played, with how many players, and why the others cannot: measured with
version 0.7.4.

A family is one environment class; its ids (``Sudoku-v0``, ``Sudoku-v0-hard``, ...) differ in size or difficulty.
"Works" means four things. It is built and played with the network cut off. The same seed gives the same game in two
processes with different hash salts. Replies it does not understand leave it in play. Its rewards follow from its rules;
what of that is mended stands in ``match.py``.
"""

from __future__ import annotations

from textarena.envs.registration import ENV_REGISTRY

from rllib_lmgame.base.errors import ConfigError, nearest

SOLO = frozenset(
    [
        "Bandit", "Blackjack", "Countdown", "Crosswords", "Cryptarithm", "FifteenPuzzle", "FrozenLake", "Game2048",
        "GuessTheNumber", "LightsOut", "LogicPuzzle", "Mastermind", "Minesweeper", "PegJump", "RushHour", "Secretary",
        "Set", "Slitherlink", "Sokoban", "Sudoku", "ThreeCardMonte", "TowerOfHanoi",
    ]
)  # fmt: skip
"""Families for one player."""

PLAYERS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        [
            "Alquerque", "Battleship", "Breakthrough", "Chopsticks", "ColonelBlotto", "ConnectFour", "Crusade",
            "GameOfPureStrategy", "GermanWhist", "HighSociety", "IndianPoker", "IteratedMatchingPennies",
            "IteratedPrisonersDilemma", "IteratedRockPaperScissors", "IteratedTwoThirdsAverage",
            "IteratedUltimatumGame", "LinesOfAction", "MemoryGame", "NewRecruit", "Nim", "Othello", "PigDice",
            "QuantumTicTacToe", "SimpleBlindAuction", "SimpleNegotiation", "SimpleTak", "SpiteAndMalice", "Stratego",
            "Tak", "TicTacToe", "TruthAndDeception", "UltimateTicTacToe", "WildTicTacToe",
        ],
        (2, 2),
    ),
    "Briscola": (2, 4),
    "Golf": (2, 4),
    "LiarsDice": (2, 15),
    "MarketEntryGame": (2, 15),
    "Poker": (2, 15),
    "PublicGoodsGame": (2, 15),
    "Santorini": (2, 3),
    "SecretMafia": (6, 15),
    "SettlersOfCatan": (4, 4),
    "Snake": (2, 9),
    "Surround": (2, 9),
    "Taboo": (4, 4),
    "ThreePlayerGOPS": (3, 3),
    "ThreePlayerIPD": (3, 3),
    "ThreePlayerTicTacToe": (3, 3),
}  # fmt: skip
"""Families for several players: fewest and most."""

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"), "it asks a language model over the network"
    ),
    **dict.fromkeys(
        (
            "Codenames", "DontSayIt", "Hangman", "LetterAuction", "SpellingBee", "WordChains", "WordLadder",
            "WordSearch", "Wordle",
        ),
        "it downloads word lists",
    ),
    **dict.fromkeys(
        ("Checkers", "Chess", "IteratedStagHunt", "ReverseTicTacToe", "UltimateTexasHoldem"),
        "its source is no valid Python before 3.12",
    ),
    **dict.fromkeys(("ScorableGames", "UsedCarNegotiation", "UsedCar"), "the package leaves out files it needs"),
    "BabyAiText": "it needs a package that is on no index; lmgame/BabyAI-v0 is the same game",
    "CharacterConclave": "every reply makes it fail",
    "KuhnPoker": "its bets cost no chips; lmgame/KuhnPoker-v0 is the game",
    "Klondike": "its source is no valid Python",
    "TwoDollar": "it says the state of the talks where only its own loop reads it",
}  # fmt: skip
"""Families that cannot be played, and why."""

VERSIONS = ("-raw", "-train")
"""Endings of ids that only choose how TextArena words its observations."""


def family_of(env_id: str) -> str:
    """Family of a registered id."""
    return str(ENV_REGISTRY[env_id].entry_point).split(".")[2]


def playable(solo: bool) -> list[str]:
    """Ids that can be played by one player, or by several."""
    families = SOLO if solo else PLAYERS.keys()
    return [env_id for env_id in ENV_REGISTRY if not env_id.endswith(VERSIONS) and family_of(env_id) in families]


def check_env_id(env_id: str, solo: bool) -> str:
    """The family of an id.

    Raises: ConfigError: if there is no such id, or it cannot be played here; the message says why.
    """
    where = "env_config.env_id"
    if env_id not in ENV_REGISTRY or env_id.endswith(VERSIONS):
        match = nearest(env_id, playable(solo))
        raise ConfigError(
            where,
            f"TextArena has no {env_id!r}"
            + (f"; did you mean {match!r}?" if match else f"; it has {', '.join(playable(solo))}"),
        )
    family = family_of(env_id)
    if family in (SOLO if solo else PLAYERS):
        return family
    if family in (PLAYERS if solo else SOLO):
        raise ConfigError(
            where,
            f"{env_id!r} is for "
            f"{'several players: lmgame/TextArenaMatch-v0' if solo else 'one player: lmgame/TextArena-v0'}",
        )
    raise ConfigError(where, f"{env_id!r} cannot be played: {REFUSED.get(family, 'it has not been tried')}")
