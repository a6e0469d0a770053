"""The model card (`README.md`) of an exported policy: how it was talked to, and a program that plays a game with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rllib_lmgame.settings.schema import as_mapping
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions

CARD_FILE = "README.md"

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
---
# A language model that plays text games

Trained with rllib-lmgame. It plays as it was trained if it is asked as it was trained: `SETTINGS` below says how.
The chat template is the tokenizer's, and `generation_config.json` ends a reply where it ended in training; where
the text that ends it is several tokens, the program below does.{constrained}

| setting | |
|---|---|
| `system_prompt` | `None`: the game's own rules; `''`: none |
| `reply_format`, `answer_tag`, `think_tag`, `think` | the form of a reply: where action and reasoning stand |
| `format_reminder`, `turn_note` | lines below each observation |
| `demonstrations` | turns in front of every game |
| `reply_prefill` | text that every reply is made to begin with |
| `history`, `history_window` | earlier turns that are shown |

With `pip install rllib-lmgame`, in this directory:

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions

GAMES = [{games}]
SETTINGS = {{
{settings}
}}
SAMPLING = {sampling}

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
game = make_session(*GAMES[0])
chat = ChatFormat(tokenizer, LanguageModelOptions(**SETTINGS)).for_game(game.functions)
game.reset(seed=0)
talks = {{seat: Conversation(chat, game.instructions, game.game_id, role) for seat, role in game.roles.items()}}
notes = {{}}
while seats := game.to_act():
    actions = {{}}
    for seat in seats:
        prompt = talks[seat].prompt(game.observe(seat), notes.get(seat))
        if prompt.max_tokens == 0:
            raise SystemExit("the context has no room for another reply")
        ended = lambda ids, scores: torch.tensor([chat.ended(ids[0, len(prompt.ids) :].numpy())])
        room = {{"max_new_tokens": prompt.max_tokens, "stopping_criteria": [ended]}}
        ids = model.generate(torch.tensor([prompt.ids]), **room, **SAMPLING)
        reply = talks[seat].reply(ids[0, len(prompt.ids) :].numpy())
        print(seat, repr(tokenizer.decode(ids[0, len(prompt.ids) :])), "->", reply.action)
        actions[seat], notes[seat] = reply.action or "", reply.error
    step = game.step(actions)
print(dict(step.rewards))
```
"""
_CONSTRAINED = """
In training replies were drawn among the legal moves alone; a free reply, as here, may be none of them."""


@dataclass(frozen=True)
class Played:
    """What a policy was trained on: games with their configurations, and how replies were sampled (temperature 0:
    greedily).
    """

    games: Sequence[tuple[str, Mapping[str, Any]]]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    legal_moves_only: bool = False

    @property
    def sampling(self) -> dict[str, Any]:
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}


def model_card(options: LanguageModelOptions, played: Played) -> str:
    """The card's text. Settings, perhaps a stranger's, are one-line ASCII literals of Python, not Markdown or code."""
    carded = {field.name for field in fields(options) if field.metadata["carded"]}
    said = {key: value for key, value in as_mapping(options).items() if key in carded}
    return _CARD.format(
        constrained=_CONSTRAINED if played.legal_moves_only else "",
        games=", ".join(literal([env, dict(env_config)]) for env, env_config in played.games),
        settings="\n".join(f"    {literal(key)}: {literal(value)}," for key, value in said.items()),
        sampling=literal(played.sampling),
    )


def literal(value: Any) -> str:
    """A value that a configuration file can hold, as a literal of Python; of any other its text."""
    return ascii(json.loads(json.dumps(value, default=str)))
