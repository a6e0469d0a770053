"""Ten small databases, made from templates and a fixed seed: the same rows in every process.

Each has two tables. One holds things, with a name, a group and a number; one holds what belongs to them, with a name, a
kind, a number and a date. Their names are those of the subject.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field
from functools import cache

from rllib_lmgame.sandbox.queries.database import Database

SEED = 20_240_607
FIRST_YEAR, LAST_YEAR = 2015, 2023
CHILDLESS_SHARE = 0.15
"""Things that nothing belongs to, so that questions about missing ones have answers."""


@dataclass(frozen=True)
class Table:
    """One table and how to speak of it.

    Attributes:
        name: In the database.
        one: A row in words; ``many``: several of them.
        label: Column with the name of a row.
        group: Column with one of ``groups``; ``group_phrase`` speaks of it: "whose {group_phrase} is 'x'".
        number: Column with a number from ``low`` to ``high``; ``number_phrase`` speaks of it.
        names: Two lists of words from which names are put together.
    """

    name: str
    one: str
    many: str
    label: str
    group: str
    group_phrase: str
    groups: tuple[str, ...]
    number: str
    number_phrase: str
    low: int
    high: int
    names: tuple[tuple[str, ...], tuple[str, ...]]
    decimals: int = 0


@dataclass(frozen=True)
class Schema:
    """Two tables, the second of which refers to the first by ``key``; ``date`` is the second one's date column."""

    db_id: str
    parent: Table
    child: Table
    key: str
    date: str
    date_phrase: str
    parents: int = 24
    children: int = 140

    @property
    def ddl(self) -> str:
        """The statements that make the tables, as they are shown to the player."""
        parent, child = self.parent, self.child
        number = "REAL" if child.decimals else "INTEGER"
        return (
            f"CREATE TABLE {parent.name} (\n"
            "  id INTEGER PRIMARY KEY,\n"
            f"  {parent.label} TEXT NOT NULL,\n"
            f"  {parent.group} TEXT NOT NULL,\n"
            f"  {parent.number} INTEGER NOT NULL\n"
            ");\n"
            f"CREATE TABLE {child.name} (\n"
            "  id INTEGER PRIMARY KEY,\n"
            f"  {self.key} INTEGER NOT NULL REFERENCES {parent.name}(id),\n"
            f"  {child.label} TEXT NOT NULL,\n"
            f"  {child.group} TEXT NOT NULL,\n"
            f"  {child.number} {number} NOT NULL,\n"
            f"  {self.date} TEXT NOT NULL\n"
            ");"
        )


@dataclass(frozen=True)
class Filled:
    """A schema with its rows: ``(id, label, group, number)`` and ``(id, key, label, group, number, date)``."""

    schema: Schema
    parents: tuple[tuple[int, str, str, int], ...]
    children: tuple[tuple[int, int, str, str, float, str], ...]
    database: Database = field(compare=False)


@cache
def filled(db_id: str) -> Filled:
    """The database of a schema, made once per process."""
    schema = SCHEMAS[db_id]
    chance = random.Random(f"bird {SEED} {db_id}")
    parent, child = schema.parent, schema.child
    parents = tuple(
        (i, name, chance.choice(parent.groups), chance.randint(parent.low, parent.high))
        for i, name in enumerate(_names(chance, parent, schema.parents), start=1)
    )
    owners = [row[0] for row in parents if chance.random() >= CHILDLESS_SHARE]
    children = tuple(
        (i, chance.choice(owners), name, chance.choice(child.groups), _number(chance, child), _date(chance))
        for i, name in enumerate(_names(chance, child, schema.children), start=1)
    )
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema.ddl)
    connection.executemany(f"INSERT INTO {parent.name} VALUES (?, ?, ?, ?)", parents)
    connection.executemany(f"INSERT INTO {child.name} VALUES (?, ?, ?, ?, ?, ?)", children)
    connection.commit()
    data = connection.serialize()
    connection.close()
    return Filled(schema, parents, children, Database.of_bytes(data))


def _names(chance: random.Random, table: Table, count: int) -> list[str]:
    """Different names, a number behind those that would repeat."""
    first, second = table.names
    pairs = [f"{one} {two}" for one in first for two in second]
    chance.shuffle(pairs)
    return [pairs[i % len(pairs)] + (f" {i // len(pairs) + 1}" if i >= len(pairs) else "") for i in range(count)]


def _number(chance: random.Random, table: Table) -> float:
    return (
        round(chance.uniform(table.low, table.high), table.decimals)
        if table.decimals
        else chance.randint(table.low, table.high)
    )


def _date(chance: random.Random) -> str:
    return f"{chance.randint(FIRST_YEAR, LAST_YEAR)}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"


FIRST_NAMES = ("Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Keiko", "Lars")
LAST_NAMES = (
    "Abbott", "Brandt", "Castro", "Dubois", "Eriksen", "Fischer", "Gomez", "Haddad", "Ivanov", "Jansen", "Kowalski",
    "Lindgren",
)  # fmt: skip
PLACES = ("North", "South", "East", "West", "Upper", "Lower", "Old", "New", "Great", "Little")
TOWNS = (
    "Ashford", "Birchwood", "Cedarville", "Dunmore", "Elmstead", "Fairview", "Glenrock", "Harborne", "Ironbridge",
    "Juniper",
)  # fmt: skip
PEOPLE = (FIRST_NAMES, LAST_NAMES)

_LIBRARY = Schema(
    "library",
    Table("author", "author", "authors", "name", "country", "country", ("Chile", "Egypt", "India", "Norway", "Poland"),
          "birth_year", "year of birth", 1930, 1995, PEOPLE),
    Table("book", "book", "books", "title", "genre", "genre", ("crime", "essay", "fantasy", "history", "poetry"),
          "pages", "number of pages", 80, 900,
          (("Silent", "Broken", "Golden", "Hidden", "Distant", "Last", "Winter", "Paper", "Burning", "Second", "Quiet",
            "Glass"),
           ("River", "Garden", "Letters", "Mountain", "Harbor", "Promise", "Orchard", "Machine", "Voyage", "Mirror",
            "Station", "Island"))),
    "author_id", "published_on", "were published",
)  # fmt: skip
_SHOP = Schema(
    "shop",
    Table("customer", "customer", "customers", "name", "city", "city", ("Bergen", "Cork", "Graz", "Porto", "Turin"),
          "age", "age", 18, 90, PEOPLE),
    Table("purchase", "purchase", "purchases", "code", "status", "status", ("paid", "open", "shipped", "returned"),
          "amount", "amount", 5, 900,
          (("A", "B", "C", "D", "E", "F", "G", "H", "K", "L", "M", "N"),
           ("101", "117", "123", "139", "145", "158", "162", "177", "184", "196", "203", "219")), decimals=2),
    "customer_id", "bought_on", "were made",
)  # fmt: skip
_SCHOOL = Schema(
    "school",
    Table("teacher", "teacher", "teachers", "name", "department", "department",
          ("arts", "languages", "mathematics", "science", "sports"),
          "salary", "salary", 2400, 6200, PEOPLE),
    Table("course", "course", "courses", "title", "level", "level", ("beginner", "intermediate", "advanced"),
          "seats", "number of seats", 8, 60,
          (("Basic", "Applied", "Modern", "Practical", "Classic", "Digital", "Global", "Creative", "Open", "Summer",
            "Evening", "Weekend"),
           ("Algebra", "Biology", "Chess", "Drawing", "Economics", "French", "Geology", "Harmony", "Italian", "Judo",
            "Logic", "Optics"))),
    "teacher_id", "starts_on", "start",
)  # fmt: skip
_HOSPITAL = Schema(
    "hospital",
    Table("doctor", "doctor", "doctors", "name", "specialty", "specialty",
          ("cardiology", "dermatology", "neurology", "pediatrics"),
          "experience", "years of experience", 1, 40, PEOPLE),
    Table("visit", "visit", "visits", "reference", "kind", "kind", ("check-up", "emergency", "follow-up", "surgery"),
          "cost", "cost", 40, 3000,
          (("V", "W", "X", "Y", "Z", "Q", "R", "S", "T", "U", "P", "O"),
           ("11", "23", "35", "47", "59", "61", "72", "84", "96", "08", "19", "30")), decimals=2),
    "doctor_id", "visited_on", "took place",
)  # fmt: skip
_AIRLINE = Schema(
    "airline",
    Table("airport", "airport", "airports", "name", "region", "region", ("Africa", "America", "Asia", "Europe"),
          "runways", "number of runways", 1, 6, (PLACES, TOWNS)),
    Table("flight", "flight", "flights", "number", "aircraft", "aircraft", ("A320", "A350", "B737", "B787", "E190"),
          "passengers", "number of passengers", 30, 320,
          (("KX", "LM", "QR", "TP", "VN", "ZB", "HD", "JW", "CF", "GS", "RA", "NE"),
           ("104", "215", "326", "437", "548", "659", "760", "871", "982", "193", "274", "385"))),
    "airport_id", "departed_on", "departed",
)  # fmt: skip
_MUSIC = Schema(
    "music",
    Table("band", "band", "bands", "name", "style", "style", ("folk", "jazz", "metal", "pop", "techno"),
          "founded", "year of foundation", 1960, 2014,
          (("Velvet", "Electric", "Crooked", "Lunar", "Rusty", "Hollow", "Neon", "Wandering"),
           ("Foxes", "Lanterns", "Engines", "Shadows", "Pilots", "Strings", "Tides", "Owls"))),
    Table("album", "album", "albums", "title", "label", "label", ("Bluebird", "Cobalt", "Driftwood", "Echo"),
          "copies", "number of copies sold", 500, 90_000,
          (("Midnight", "Paper", "Silver", "Slow", "Wild", "Open", "Empty", "Northern", "Sweet", "Lost", "Bitter",
            "Early"),
           ("Roads", "Rooms", "Signals", "Waves", "Hearts", "Stories", "Colors", "Machines", "Nights", "Fields",
            "Bridges", "Maps"))),
    "band_id", "released_on", "were released",
)  # fmt: skip
_FARM = Schema(
    "farming",
    Table("farm", "farm", "farms", "name", "valley", "valley", ("Amber", "Birch", "Clover", "Dale"),
          "hectares", "area in hectares", 5, 400,
          (PLACES, ("Acre", "Barn", "Brook", "Croft", "Field", "Grange", "Meadow", "Orchard"))),
    Table("harvest", "harvest", "harvests", "lot", "crop", "crop", ("barley", "maize", "oats", "rye", "wheat"),
          "tons", "weight in tons", 1, 250,
          (("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "M1", "M2", "M3"),
           ("aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh", "jj", "kk", "mm", "nn")), decimals=1),
    "farm_id", "harvested_on", "were brought in",
)  # fmt: skip
_MUSEUM = Schema(
    "museum",
    Table("artist", "artist", "artists", "name", "movement", "movement",
          ("baroque", "cubism", "realism", "romanticism"),
          "works_known", "number of known works", 3, 800, PEOPLE),
    Table("exhibit", "exhibit", "exhibits", "title", "room", "room", ("Atrium", "Crypt", "Gallery", "Tower"),
          "insured_value", "insured value", 1_000, 950_000,
          (("Red", "Blue", "Sleeping", "Standing", "Young", "Blind", "Praying", "Laughing", "Fallen", "Veiled",
            "Crowned", "Lonely"),
           ("Horse", "Woman", "King", "Fisherman", "Angel", "Soldier", "Child", "Monk", "Dancer", "Lion", "Widow",
            "Shepherd"))),
    "artist_id", "acquired_on", "were acquired",
)  # fmt: skip
_RAILWAY = Schema(
    "railway",
    Table("station", "station", "stations", "name", "line", "line", ("coast line", "hill line", "river line"),
          "platforms", "number of platforms", 1, 14, (PLACES, TOWNS)),
    Table("delay", "delay", "delays", "report", "cause", "cause", ("signal", "staff", "track", "weather"),
          "minutes", "length in minutes", 1, 180,
          (("R10", "R11", "R12", "R13", "R14", "R15", "R16", "R17", "R18", "R19", "R20", "R21"),
           ("a", "b", "c", "d", "e", "f", "g", "h", "k", "m", "n", "p"))),
    "station_id", "reported_on", "were reported",
)  # fmt: skip
_SOFTWARE = Schema(
    "software",
    Table("developer", "developer", "developers", "name", "team", "team", ("backend", "data", "frontend", "platform"),
          "commits", "number of commits", 5, 4_000, PEOPLE),
    Table("issue", "issue", "issues", "title", "priority", "priority", ("low", "medium", "high", "urgent"),
          "hours", "number of hours", 1, 90,
          (("Broken", "Slow", "Missing", "Wrong", "Flaky", "Duplicate", "Unclear", "Outdated", "Insecure", "Noisy",
            "Empty", "Stale"),
           ("login", "report", "search", "cache", "upload", "menu", "export", "backup", "filter", "chart", "invoice",
            "test"))),
    "developer_id", "opened_on", "were opened",
)  # fmt: skip

SCHEMAS = {
    s.db_id: s for s in (_LIBRARY, _SHOP, _SCHOOL, _HOSPITAL, _AIRLINE, _MUSIC, _FARM, _MUSEUM, _RAILWAY, _SOFTWARE)
}
