"""The adapter: core's Model port on pydantic-ai's direct request API.

Decides: how the conversation becomes one provider request, and the most that a call can cost. Does not: retry (the
loop does), keep state between calls, or run tools. The failure it can cause: a worst case that is too low would let a
run overshoot its budget; bytes are therefore counted as tokens, and what cannot be priced is refused at start.
"""

import json
import re
from decimal import Decimal
from typing import Any

from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model as Client
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from bot.model.failures import sorted_error
from bot.model.prices import Prices
from bot.model.replay import history_of, raw_of, sendable, settle_calls, stored_response, visible
from core.conversation import Message, ModelReply, ToolSpec
from core.errors import Misconfigured

# Tokens a provider adds around a message or a tool (roles, ids, separators), counted in bytes like everything else.
FRAME_BYTES = 64


def provider_model(
    name: str,
    *,
    instructions: str = "",
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 120.0,
) -> "ProviderModel":
    """Return the model that *name* ("provider:model") stands for.

    *instructions*: the agent's system prompt, sent with each request. *base_url*, *api_key*: without them the
    provider's SDK reads its own environment (OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL …). *timeout_s*:
    seconds for one whole request. Raises: Misconfigured (unknown provider, its SDK missing, no key, no known price).
    """
    provider_name, _, model_name = name.partition(":")
    if not provider_name or not model_name:
        raise Misconfigured([f"ATLAS_MODEL is {name!r}: write it as provider:model, such as anthropic:claude-sonnet-5"])
    given = {key: value for key, value in (("base_url", base_url), ("api_key", api_key)) if value is not None}

    def connect(provider: str) -> Provider[Any]:
        return infer_provider_class(provider)(**given) if given else infer_provider(provider)

    try:
        client = infer_model(name, provider_factory=connect)
    except UserError as error:
        raise Misconfigured([f"ATLAS_MODEL={name}: {_start_problem(error.message)}"]) from error
    except ValueError as error:
        raise Misconfigured([f"ATLAS_MODEL={name}: {error}; write it like anthropic:… or openai:…"]) from error
    except ImportError as error:
        raise Misconfigured([f"ATLAS_MODEL={name}: {error}"]) from error
    except TypeError as error:
        raise Misconfigured([f"ATLAS_MODEL={name}: this provider takes no base_url or api_key: {error}"]) from error
    # With a base URL pydantic-ai lets a missing OpenAI key pass under this placeholder; the first call would fail.
    if client.provider is not None and getattr(client.provider.client, "api_key", "") == "api-key-not-set":
        raise Misconfigured([f"ATLAS_MODEL={name}: set OPENAI_API_KEY"])
    return ProviderModel(name, client, instructions=instructions, timeout_s=timeout_s)


class ProviderModel:
    """A provider's model behind core's Model port. Safe for concurrent calls; ``close`` frees its connections."""

    def __init__(self, name: str, client: Client[Any], *, instructions: str, timeout_s: float) -> None:
        self.name = name
        self._client = client
        self._instructions = visible(instructions)
        self._timeout_s = timeout_s
        self._prices = Prices(name, client)

    async def respond(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> ModelReply:
        """Return the next turn; one request, no retries.

        Raises: ModelUnavailable (429, 5xx, timeout, connection), ModelRefused (anything else the provider says),
        InvariantBroken (a call without its result, or a result without its call; nothing was sent).
        """
        history = history_of(messages, self._instructions)
        settings = ModelSettings(
            max_tokens=max_output_tokens, timeout=self._timeout_s, request_timeout=self._timeout_s, max_retries=0
        )
        parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name,
                    description=visible(tool.description),
                    parameters_json_schema=sendable(tool.parameters),
                )
                for tool in tools
            ]
        )
        try:
            response = await model_request(
                self._client, history, model_settings=settings, model_request_parameters=parameters, instrument=False
            )
        except Exception as error:  # the SDKs raise errors of any type on answers they cannot read
            raise sorted_error(error) from error
        calls = settle_calls(response)
        response.metadata = {
            **(response.metadata or {}),
            "atlas": {"model": self.name, "standing": self._standing_bytes(tools)},
        }
        if response.usage.input_tokens or response.usage.output_tokens:
            spend = self._prices.of(response)
        else:
            # A reply without a count was not free.
            spend = self.worst_case_usd(messages, tools, max_output_tokens)
        return ModelReply(
            text=visible(response.text or ""),
            calls=calls,
            spend_usd=spend,
            raw=raw_of(response),
            input_tokens=response.usage.input_tokens or None,
        )

    def worst_case_usd(self, messages: list[Message], tools: list[ToolSpec], max_output_tokens: int) -> Decimal:
        """Return the most that this very call can cost, in US dollars.

        Input: what this model last reported, plus a token for each byte added since (messages, and tools or
        instructions that grew); without a report, a token for each byte of everything. A token is never less than a
        byte of text.
        """
        standing = self._standing_bytes(tools)
        added = 0
        for message in reversed(messages):
            added += bytes_of(message)
            report = self._report(message)
            if report is not None:
                input_tokens, standing_then = report
                return self._prices.most(input_tokens + added + max(0, standing - standing_then), max_output_tokens)
        return self._prices.most(standing + added, max_output_tokens)

    async def close(self) -> None:
        """Close the provider's connections; a later call opens new ones."""
        async with self._client:
            pass

    def _standing_bytes(self, tools: list[ToolSpec]) -> int:
        specs = sum(
            FRAME_BYTES + utf8_bytes(tool.name) + utf8_bytes(tool.description) + utf8_bytes(json.dumps(tool.parameters))
            for tool in tools
        )
        return FRAME_BYTES + utf8_bytes(self._instructions) + specs

    def _report(self, message: Message) -> tuple[int, int] | None:
        """Return (input tokens, standing bytes then) of a reply of this very model, if it reported any."""
        response = stored_response(message)
        ours = (response.metadata or {}).get("atlas") if response is not None else None
        if response is None or not isinstance(ours, dict) or ours.get("model") != self.name:
            return None
        standing = ours.get("standing")
        if not response.usage.input_tokens or not isinstance(standing, int):
            return None
        return response.usage.input_tokens, standing


def utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def bytes_of(message: Message) -> int:
    if message.raw is not None:
        return FRAME_BYTES + len(message.raw)
    calls = (call.id + call.tool + (call.malformed or json.dumps(call.arguments)) for call in message.calls)
    return FRAME_BYTES + utf8_bytes(message.text) + sum(FRAME_BYTES + utf8_bytes(call) for call in calls)


def _start_problem(words: str) -> str:
    """Return what to do about a start error; a missing key names its variable first."""
    variable = re.search(r"`([A-Z][A-Z0-9_]*_(?:API_)?(?:KEY|TOKEN))`", words)
    return f"set {variable[1]}" if variable else words
