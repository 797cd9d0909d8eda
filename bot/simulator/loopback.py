"""Who may talk to the page and to the controls: this machine's own pages and processes.

Decides by the Host header only; the server listens on loopback as well. Failure it can cause: a
page that reaches the server under another name is refused.
"""

from typing import Any

from aiohttp import web

HEADER = "X-Atlas-Page"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
Body = dict[str, Any]


def only_loopback(request: web.Request) -> None:
    """Refuse names that lead here from elsewhere (DNS rebinding)."""
    host = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
    if host not in LOOPBACK:
        raise web.HTTPForbidden(text="loopback only")


async def json_body(request: web.Request) -> Body:
    """Return the request's JSON object; 400 for anything else."""
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text="not JSON") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="an object is expected")
    return body


def only_own_page(request: web.Request) -> None:
    """Refuse posts of foreign pages: they cannot send this header without asking first."""
    only_loopback(request)
    if request.headers.get(HEADER) != "1":
        raise web.HTTPForbidden(text=f"the header {HEADER}: 1 is missing")
