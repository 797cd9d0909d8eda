"""The process's own HTTP port: alive, ready, metrics; and in HTTP mode Slack's requests.

Decides: what "ready" means (the database takes writes, Slack can reach us). Does not: change any state on GET. The
failure it can cause: a readiness that lies sends Slack's events to a replica that cannot store them.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

Readiness = Callable[[], Awaitable[dict[str, str]]]
Metrics = Callable[[], Awaitable[dict[str, float]]]


class Web:
    """Serves /healthz, /readyz and /metrics. *readiness* lists what is wrong, by part; empty: ready."""

    def __init__(self, host: str, port: int, readiness: Readiness, metrics: Metrics) -> None:
        self.host = host
        self.port = port
        self._readiness = readiness
        self._metrics = metrics
        self.app = web.Application()
        self.app.router.add_get("/healthz", self._healthz)
        self.app.router.add_get("/readyz", self._readyz)
        self.app.router.add_get("/metrics", self._render_metrics)
        self._runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> str:
        """Listen; return the base URL. Raises: OSError when the port is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        problems = await self._readiness()
        return web.json_response({"ok": not problems, "problems": problems}, status=503 if problems else 200)

    async def _render_metrics(self, _: web.Request) -> web.Response:
        lines = [f"atlas_{name} {value:g}" for name, value in sorted((await self._metrics()).items())]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")
