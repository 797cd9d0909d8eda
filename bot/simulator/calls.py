"""One call of the Web API: its arguments, its rights, and the errors it can end with.

Decides how query, form and JSON arguments become one mapping. It knows no method.
Failure it can cause: a form value that looks like JSON is taken as JSON where Slack does so.
"""

import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

# arguments that arrive as JSON text in forms and queries
JSON_ARGUMENTS = ("blocks", "attachments", "metadata", "view", "chunks", "loading_messages", "prompts", "unfurls")
TRUE = ("true", "1", "True", True, 1)


class SlackError(Exception):
    """A documented error code; `extra` joins the answer (needed, response_metadata, ...)."""

    def __init__(self, code: str, **extra: Any) -> None:
        super().__init__(code)
        self.code = code
        self.extra = extra


@dataclass
class Call:
    """The arguments of one call."""

    method: str
    arguments: dict[str, Any]
    url: str

    def text(self, name: str) -> str | None:
        """Return an argument as text, None when absent or empty."""
        value = self.arguments.get(name)
        return str(value) if value not in (None, "") else None

    def need(self, name: str, error: str) -> str:
        """Return an argument that must be there.

        Raises:
            SlackError: `error`.
        """
        value = self.text(name)
        if value is None:
            raise SlackError(error)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a boolean argument is true."""
        return self.arguments.get(name) in TRUE

    def number(self, name: str, default: int, most: int) -> int:
        """Return an integer argument between 1 and `most`; anything else is the default."""
        try:
            value = int(self.arguments.get(name, default))
        except (TypeError, ValueError):
            return default
        return min(value, most) if value > 0 else default


async def arguments_of(request: web.Request) -> dict[str, Any]:
    """Merge query, form and JSON arguments; the body wins over the query.

    Raises:
        SlackError: invalid_form_data for a body that is not what it says.
    """
    arguments: dict[str, Any] = dict(request.query)
    if request.method == "POST":
        if request.content_type == "application/json":
            raw = await request.read()
            try:
                body = json.loads(raw) if raw.strip() else {}
            except ValueError as error:
                raise SlackError("invalid_form_data") from error
            if not isinstance(body, dict):
                raise SlackError("invalid_form_data")
            arguments.update(body)
        else:
            arguments.update(await request.post())
    for name in JSON_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value.strip():
            try:
                arguments[name] = json.loads(value)
            except ValueError:
                arguments[name] = value  # the method refuses it in its own words
    return arguments
