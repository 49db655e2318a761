"""Users as locust plays them: streams, chats and whole answers, each held against what it must be."""

from __future__ import annotations

import json
import random

from locust import FastHttpUser, constant, task

PROMPT = "abc"


class ChatUser(FastHttpUser):
    """Sends one call after the other."""

    wait_time = constant(0)

    @task(3)
    def stream(self) -> None:
        """A stream: all events, in order, to the last."""
        length = random.randint(1, 40)
        body = {"prompt": PROMPT, "max_tokens": length, "stream": True}
        with self.client.post("/v1/completions", json=body, stream=True, catch_response=True) as answer:
            events = answer.text.split("\n\n")
            text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2])
            if text != (PROMPT * length)[:length] or events[-2:] != ["data: [DONE]", ""]:
                answer.failure(f"wrong stream: {answer.text[:300]}")

    @task
    def chat(self) -> None:
        """A chat, whole."""
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
        with self.client.post("/v1/chat/completions", json=body, catch_response=True) as answer:
            if answer.json()["choices"][0]["message"]["content"] != "<user":
                answer.failure(f"wrong answer: {answer.text[:300]}")

    @task
    def look(self) -> None:
        """What operators and probes ask for meanwhile."""
        self.client.get("/metrics")
        self.client.get("/health/ready")
