"""The desk's side of the CRM's HTTP interface.

Decides what an answer means: a fact, a refusal in the CRM's own words, or trouble after which nobody knows. Does not
retry; the loop does, with the same key. The failure it can cause: calling trouble a refusal would hide a write that
happened, so only the CRM's own JSON error or a connection that was never made counts as "nothing was done".
"""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote as escaped

import aiohttp

Json = dict[str, Any]

ANSWER_WITHIN_S: Final = 5.0
"""Seconds to wait for the CRM, below the tools' own timeout so that the reason says which system was slow."""


class CrmRefused(Exception):
    """The CRM said no and did nothing. ``error`` is its word for programs, the message is for people."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class CrmUnreachable(Exception):
    """No connection was made, so certainly nothing was done."""


class CrmTrouble(Exception):
    """The request may have arrived, but there is no answer to rely on. For a write the outcome is unknown."""


class CrmClient:
    """Asks the CRM at an address that is only looked up when it is needed."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url

    async def get(self, *path: str, **query: str) -> Json:
        """Return the JSON object at a path of unescaped segments.

        Raises: CrmRefused, CrmUnreachable, CrmTrouble.
        """
        return await self._ask("GET", path, query, None, None)

    async def post(self, *path: str, body: Json, key: str | None = None) -> Json:
        """Post a JSON object, with an Idempotency-Key when the request changes something; raises as ``get`` does."""
        return await self._ask("POST", path, {}, body, key)

    async def _ask(
        self, method: str, path: tuple[str, ...], query: dict[str, str], body: Json | None, key: str | None
    ) -> Json:
        address = "/".join([self._url().rstrip("/"), *(escaped(part, safe="") for part in path)])
        headers = {"Idempotency-Key": key} if key else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        try:
            # A session for each request: an agent lives in whichever event loop calls it and is never closed.
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, address, params=query, json=body, headers=headers) as answer,
            ):
                status = answer.status
                content = await answer.json()
        except aiohttp.ClientConnectorError as error:
            raise CrmUnreachable("The CRM can't be reached.") from error
        except TimeoutError as error:
            raise CrmTrouble(f"The CRM did not answer within {ANSWER_WITHIN_S:g} seconds.") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise CrmTrouble("The connection to the CRM broke before its answer was there.") from error
        if not isinstance(content, dict):
            raise CrmTrouble(f"The CRM answered {status} with something that is no JSON object.")
        if status < 400:
            return content
        message = str(content.get("message", f"The CRM answered {status}."))
        if status < 500 and "error" in content:
            raise CrmRefused(str(content["error"]), message)
        raise CrmTrouble(f"{message.rstrip('.')} (status {status}).")
