"""What a lint found, in Slack's own words.

Decides the wording of each broken rule only. Failure it can cause: none.
Source: Slack's answers to invalid blocks (`response_metadata.messages`).
"""

from collections.abc import Collection
from typing import Any


class Findings:
    """A growing list of `[ERROR] ... [json-pointer:...]` strings."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, text: str, at: str) -> None:
        """Note one broken rule at this JSON pointer."""
        self.messages.append(f"[ERROR] {text} [json-pointer:{at}]")

    def keys(self, value: dict[str, Any], at: str, required: Collection[str], optional: Collection[str]) -> None:
        """Note missing required keys and keys that Slack does not know."""
        for key in sorted(required):
            if value.get(key) is None:
                self.add(f"missing required field: {key}", at)
        for key in value:
            if key not in required and key not in optional:
                self.add(f"invalid additional property: {key}", at)

    def length(self, value: object, at: str, limit: int) -> None:
        """Note a string that is too long; None passes."""
        if value is None:
            return
        if not isinstance(value, str):
            self.add("must be a valid string", at)
        elif len(value) > limit:
            self.add(f"must be less than {limit + 1} characters", at)

    def text(self, value: object, at: str, limit: int) -> None:
        """Note a string that is empty or too long; None passes."""
        if value == "":
            self.add("must be more than 0 characters", at)
        self.length(value, at, limit)

    def count(self, items: list[Any], at: str, least: int, most: int) -> None:
        """Note a list with too few or too many items."""
        if len(items) < least:
            self.add(f"no fewer than {least} items allowed", at)
        if len(items) > most:
            self.add(f"no more than {most} items allowed", at)
