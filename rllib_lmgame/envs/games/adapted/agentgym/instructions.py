"""What players of AgentGym's tasks are told, and the functions of those tasks that have some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOOLS = """You solve a problem with tools. Each reply is one call: the name of a tool, then `with Action Input:` and \
its arguments as JSON, as in
{example}
The tools are: {tools}.
When you are done, call finish. You never make up ids or places: you ask for them first. There are {{turns}} turns."""


def _tools(example: str, tools: str) -> str:
    braced = example.replace("{", "{{").replace("}", "}}")
    return _TOOLS.format(example=braced, tools=tools)


RULES: Mapping[str, str] = {
    "textcraft": """You craft things as in Minecraft. You are shown crafting commands and a goal. Each reply is one \
action:
get NUMBER THING: take a thing that no command makes.
craft NUMBER THING using NUMBER THING, NUMBER THING: follow a command; a kind of a thing will do where a command asks \
for the thing.
inventory: see what you have.
There are {turns} turns.""",
    "babyai": """You are in a grid of rooms and do what your goal says. Each reply is one action:
turn right, turn left, move forward, go to OBJECT NUMBER, pick up OBJECT NUMBER, go through DOOR NUMBER (an open \
one), toggle and go through DOOR NUMBER (a closed one, or a locked one whose key you carry), toggle (the door in front \
of you). The actions that are possible now are listed. There are {turns} turns.""",
    "sciworld": """You do an experiment from a science class. Each reply is one action (OBJ is the name of a thing \
you see):
open OBJ, close OBJ, activate OBJ, deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ, use OBJ on OBJ, \
look around, look at OBJ, look in OBJ, read OBJ, examine OBJ, move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ \
into OBJ, dunk OBJ into OBJ, mix OBJ, go to PLACE, eat OBJ, flush OBJ, focus on OBJ (says what the task is about), \
wait (10 steps), wait1 (one step), task, inventory. There are {turns} turns.""",
    "alfworld": """You are in a household and have a task. Each reply is one of the actions that are listed, as: \
go to desk 1, take mug 1 from desk 1, put mug 1 in/on shelf 1, open drawer 1, heat mug 1 with microwave 1, look. \
"Nothing happens" means that the action was not possible. There are {turns} turns.""",
    "maze": """You walk through a maze to its goal in as few moves as you can. You are told where the goal is, where \
you are and which walls are around you. To the right your second number grows, downwards your first. Each reply is one \
of: move up, move down, move left, move right. There are {turns} turns.""",
    "wordle": """You guess a hidden word of five letters. Each reply is a word of the list, its letters apart: \
c r a n e. For each letter you are told g (right), y (in the word, but elsewhere) or b (not in the word). There are \
{turns} turns; six guesses count.""",
    "webshop": """You buy the product that the instruction asks for. Each reply is one action: search[WORDS] where \
there is a search bar, or click[TEXT] on something that the page shows in brackets, such as a product's number, an \
option, next >, < prev, or buy now, which ends the game. There are {turns} turns.""",
    "sqlgym": """You are shown a database and a question. Reply with one SQLite query, on one line, that answers it:
```sql
SELECT ...
```
You have {turns} turn(s).""",
    "webarena": """You use a web browser to do what the objective says. A page is shown as its accessibility tree, a \
line per element with its id. Each reply is one action: click [id], type [id] [text] [1] (0 at the end: without \
Enter), hover [id], press [keys], scroll [down] or scroll [up], new_tab, tab_focus [number], close_tab, goto [address],\
 go_back, go_forward, stop [answer] (ends the task; N/A if it cannot be done). There are {turns} turns.""",
    "searchqa": """You answer a question. Each reply ends with one of: <search>WORDS</search>, which shows you texts \
that are found, or <answer>ANSWER</answer>, in a few words. Reason in <think>...</think> first. There are {turns} \
turns.""",
    "weather": _tools(
        'get_latitude_longitude with Action Input: {"name": "Paris"}',
        "get_user_current_date(), get_user_current_location(), get_latitude_longitude(name), "
        "get_current_temp, get_current_rain, get_current_snow and get_current_air_quality_index(latitude, longitude, "
        "current_date), get_historical_temp, get_historical_rain, get_historical_snow and "
        "get_historical_air_quality_index(latitude, longitude, start_date, end_date), get_temp_forecast, "
        "get_rain_forecast and get_snow_forecast(latitude, longitude, start_date, end_date), get_elevation(latitude, "
        "longitude), get_distance(latitude1, longitude1, latitude2, longitude2), "
        "get_air_quality_level(air_quality_index), check_valid_actions(), finish(answer)",
    ),
    "movie": _tools(
        'get_search_movie with Action Input: {"movie_name": "Metropolis"}',
        "get_search_movie(movie_name), get_movie_details, get_movie_production_companies, "
        "get_movie_production_countries, get_movie_cast, get_movie_crew, get_movie_keywords, "
        "get_movie_alternative_titles and get_movie_translation(movie_id), get_search_person(person_name), "
        "get_person_details, get_person_cast, get_person_crew and get_person_external_ids(person_id), "
        "check_valid_actions(), finish(answer)",
    ),
    "todo": _tools(
        'get_tasks with Action Input: {"project_id": "12"}',
        "get_user_current_date(), get_user_current_location(), get_projects(), update_project(project_id, "
        "is_favorite), get_tasks(project_id), get_task_description, get_task_duration, complete_task and "
        "delete_task(task_id), update_task(task_id, due_date), check_valid_actions(), finish(answer)",
    ),
    "academia": _tools(
        'paperNodeCheck with Action Input: {"node": "A paper"}',
        "loadPaperNet(), loadAuthorNet() (one of them first), neighbourCheck(graph, node) with graph PaperNet or "
        "AuthorNet, paperNodeCheck(node), authorNodeCheck(node), authorEdgeCheck(node1, node2), finish(answer)",
    ),
    "sheet": _tools(
        'open_sheet with Action Input: {"name": "Sheet1"}',
        "open_sheet(name), del_sheet(name), freeze_data(dimension, num), get_A1_annotation(row, col), "
        "insert_cols(values_list, col_idx), insert_rows(values_list, row_idx), delete_batch_data(dimension, "
        "index_list), update_cell(position, value), update_cell_by_formula(start_position, end_position, "
        "position_list, result_position, operator), update_range(start_position, end_position, values_list), "
        "sort_sheet_by_col(col_num, order), merge_cells(start_position, end_position), update_note(position, content), "
        "get_all_values(), get_range_values(start_position, end_position), get_cell_value(position), "
        "get_value_by_formula(start_position, end_position, position_list, operator), filter_cells(query, in_row, "
        "in_column), get_note(position), finish()",
    ),
}
"""What a task is and which replies there are; ``{turns}`` is their number."""

CALLS: Mapping[str, Mapping[str, str]] = {
    "alfworld": {
        "goto": "go to {recep}",
        "take": "take {obj} from {recep}",
        "put": "put {obj} in/on {recep}",
        "open": "open {recep}",
        "close": "close {recep}",
        "toggle": "toggle {obj}",
        "heat": "heat {obj} with {recep}",
        "cool": "cool {obj} with {recep}",
        "clean": "clean {obj} with {recep}",
        "examine": "examine {recep}",
        "use": "use {obj}",
        "inventory": "inventory",
        "look": "look",
    },
    "sciworld": {
        "open": "open {obj}",
        "close": "close {obj}",
        "activate": "activate {obj}",
        "deactivate": "deactivate {obj}",
        "connect": "connect {obj1} to {obj2}",
        "disconnect": "disconnect {obj}",
        "use": "use {tool} on {obj}",
        "lookaround": "look around",
        "lookat": "look at {obj}",
        "lookin": "look in {obj}",
        "read": "read {obj}",
        "move": "move {obj} to {container}",
        "pickup": "pick up {obj}",
        "drop": "drop {obj}",
        "pour": "pour {liq} into {container}",
        "dunk": "dunk {container} into {liq}",
        "mix": "mix {container}",
        "goto": "go to {loc}",
        "eat": "eat {food}",
        "flush": "flush {obj}",
        "focus": "focus on {obj}",
        "wait": "wait{duration}",
        "choose": "{option}",
        "examine": "examine {obj}",
        "task": "task",
        "inventory": "inventory",
    },
    "webshop": {"search": "search[{keywords}]", "click": "click[{item}]"},
}
"""Functions of a task and the actions that calling them plays; the names are AgentGym's."""

_PATTERNS = {"duration": "^1?$", "option": "^[0-9]{1,3}$"}
"""Of arguments that are no words."""


def functions_of(task: str) -> list[dict[str, Any]]:
    """The functions of a task, as :class:`~rllib_lmgame.envs.contract.functions.GameFunction` takes them."""
    return [_function(name, action) for name, action in CALLS.get(task, {}).items()]


def _function(name: str, action: str) -> dict[str, Any]:
    arguments = [part.partition("}")[0] for part in action.split("{")[1:]]
    schemas = {each: {"type": "string", "pattern": _PATTERNS.get(each, r"^[^\[\]|]+$")} for each in arguments}
    parameters = {"type": "object", "properties": schemas, "required": arguments}
    return {"name": name, "action": action, "parameters": parameters}
