"""HTTP mode: signed requests to the app's request URL, as Slack sends without Socket Mode.

Decides the signature, the headers and what counts as an ack (2xx within 3 s). Failure it can
cause: none of its own; a wrong request URL looks to the app like a Slack that never calls.
Source: Slack, "Verifying requests" (v0 signatures) and "Events API" (x-slack-retry-*).
"""

import asyncio
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import aiohttp

from bot.simulator.clock import Clock
from bot.simulator.delivery import ACK_WINDOW_S, Parcel
from bot.simulator.journal import Journal
from bot.simulator.tickets import new_id, new_uuid


def signature(secret: str, timestamp: str, body: str) -> str:
    """Return Slack's v0 signature of a raw body."""
    message = f"v0:{timestamp}:{body}".encode()
    return "v0=" + hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


class HttpMode:
    """Posts each payload to one URL; a `Transport`."""

    def __init__(self, clock: Clock, journal: Journal, request_url: str, secret: str) -> None:
        self._clock = clock
        self._journal = journal
        self._secret = secret
        self.request_url = request_url
        self.ack_window_s = ACK_WINDOW_S
        self._session: aiohttp.ClientSession | None = None

    @property
    def connected(self) -> bool:
        """Always true: Slack learns only from the attempt."""
        return True

    async def verify(self) -> bool:
        """Play the url_verification handshake; true when the challenge came back."""
        challenge = new_id("", 40)
        body = json.dumps({"type": "url_verification", "challenge": challenge, "token": ""})
        status, text = await self._post(body, "application/json", {})
        return status == 200 and challenge in text

    async def attempt(self, parcel: Parcel) -> str | None:
        """Post once; see `Transport`. A 2xx within the window is the ack."""
        headers: dict[str, str] = {}
        if parcel.type == "events_api":
            body, kind = json.dumps(parcel.payload), "application/json"
            if parcel.retry_attempt:
                headers["x-slack-retry-num"] = str(parcel.retry_attempt)
                headers["x-slack-retry-reason"] = parcel.retry_reason
        else:
            form = (
                {key: str(value) for key, value in parcel.payload.items()}
                if parcel.type == "slash_commands"
                else {"payload": json.dumps(parcel.payload)}
            )
            # half a surrogate pair becomes "?", as in a browser's form
            body, kind = urlencode(form, errors="replace"), "application/x-www-form-urlencoded"
        posting = asyncio.ensure_future(self._post(body, kind, headers, parcel))
        try:
            if not await self._clock.within(posting, self.ack_window_s):
                return "http_timeout"
            status, text = posting.result()
        except (aiohttp.ClientError, OSError) as error:
            self._journal.write("unreachable", error=repr(error))
            return "connection_failed"
        finally:
            posting.cancel()
        if not 200 <= status < 300:
            return "http_error"
        if not parcel.acked.done():
            parcel.acked.set_result(self._answer(text))
        return None

    async def close(self) -> None:
        """Close the client session."""
        if self._session is not None:
            await self._session.close()

    async def _post(
        self, body: str, kind: str, headers: dict[str, str], parcel: Parcel | None = None
    ) -> tuple[int, str]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        timestamp = str(int(self._clock.now()))
        delivery_id = new_uuid()
        self._journal.write(
            "envelope",
            url=self.request_url,
            envelope_id=delivery_id,
            envelope={"type": parcel.type, "payload": parcel.payload} if parcel else {},
            retry=headers,
        )
        signed = {
            **headers,
            "Content-Type": kind,
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": signature(self._secret, timestamp, body),
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        }
        async with self._session.post(
            self.request_url, data=body.encode(), headers=signed, allow_redirects=False
        ) as response:
            text = await response.text()
            if parcel is not None and response.headers.get("x-slack-no-retry") == "1":
                parcel.no_retry = True
        self._journal.write("ack", envelope_id=delivery_id, status=response.status, body=text[:2000])
        return response.status, text

    @staticmethod
    def _answer(text: str) -> dict[str, Any]:
        if not text.strip():
            return {}
        try:
            answer = json.loads(text)
        except ValueError:
            return {"text": text}
        return answer if isinstance(answer, dict) else {}
