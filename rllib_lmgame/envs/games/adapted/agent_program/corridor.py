"""An agent program to begin with: a corridor with a door, and a policy that is asked which way to go."""

import random
from typing import Any

from openai import OpenAI


def walk(task: Any) -> dict[str, Any]:
    client = OpenAI(base_url=task.base_url, api_key=task.api_key)
    here, door = random.Random(task.seed).sample(range(6), 2)
    messages: list[Any] = []
    reward = 0.0
    for _ in range(5):
        view = "".join("@" if place == here else "D" if place == door else "." for place in range(6))
        messages.append({"role": "user", "content": f"{view} left or right?"})
        reply = client.chat.completions.create(model=task.model, messages=messages, max_tokens=1)
        messages.append(reply.choices[0].message)
        step = {"left": -1, "right": 1}.get(str(reply.choices[0].message.content).strip(), 0)
        here += step
        reward += 0.1 * abs(step)
        if here == door:
            return {"reward": 1.0 + reward, "success": True}
    return {"reward": reward, "success": False}
