"""An agent program to begin with: a trail in the dark, and a policy that is told where it goes on, step by step."""

import random
from typing import Any

from openai import OpenAI

STEPS = 4


def follow(task: Any) -> dict[str, Any]:
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    trail = random.Random(task.seed).choices(["left", "right"], k=STEPS)
    for done, way in enumerate(trail):
        asked: Any = [{"role": "user", "content": f"The trail goes {way}."}]
        reply = client.chat.completions.create(model=task.model, messages=asked, max_tokens=1)
        said = str(reply.choices[0].message.content).strip()
        if way != ("left" if said < "m" else "right"):  # Whatever it says is a way; this one is wrong.
            return {"reward": done / STEPS, "success": False}
    return {"reward": 1.0, "success": True}
