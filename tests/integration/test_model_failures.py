"""What goes wrong with a provider, over real sockets: each error lands on the right side of "worth another try".

The server answers with whatever a test asks for; no call is ever sent twice.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from bot.model import ProviderModel, provider_model
from core.conversation import Message
from core.errors import Misconfigured, ModelRefused, ModelUnavailable

NAMES = ["anthropic:claude-sonnet-5", "openai-chat:gpt-4o-mini", "openai:gpt-5"]
# Of a request whose timeout is what a test is about; only a failing one waits for twice as long.
TIMEOUT_S = 60.0
GO = [Message(role="user", text="Go")]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Provider:
    """Answers each request in the way that the test set."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.keys: list[str] = []
        self.answer: Answer = self.fails(500, "unset")

    def fails(self, status: int, words: str, kind: str = "api_error", **headers: str) -> Answer:
        async def answer(_: web.Request) -> web.StreamResponse:
            error = {"type": kind, "message": words, "code": kind}
            return web.json_response({"type": "error", "error": error}, status=status, headers=headers)

        return answer

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.keys.append(request.headers["authorization"])
        await request.read()
        return await self.answer(request)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    served = Provider()
    app = web.Application()
    app.router.add_post("/{path:.*}", served.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield served
    await runner.cleanup()


@pytest.fixture(params=NAMES)
async def model(provider: Provider, request: pytest.FixtureRequest) -> AsyncIterator[ProviderModel]:
    built = provider_model(request.param, base_url=provider.url, api_key="k-1")
    yield built
    await built.close()


async def unavailable(model: ProviderModel) -> ModelUnavailable:
    with pytest.raises(ModelUnavailable) as caught:
        async with asyncio.timeout(2 * TIMEOUT_S):
            await model.respond(GO, [], 100)
    return caught.value


async def refused(model: ProviderModel) -> str:
    with pytest.raises(ModelRefused) as caught:
        await model.respond(GO, [], 100)
    return caught.value.words


async def test_a_rate_limit_says_how_long_to_wait(provider: Provider, model: ProviderModel) -> None:
    provider.answer = provider.fails(429, "Slow down.", "rate_limit_error", **{"Retry-After": "7"})
    error = await unavailable(model)
    assert (error.words, error.retry_after_s, error.charged) == ("HTTP 429: Slow down.", 7.0, False)
    assert provider.asked == 1


@pytest.mark.parametrize(("status", "charged"), [(500, False), (502, False), (503, False), (504, True), (529, False)])
async def test_a_server_error_is_worth_another_try(
    provider: Provider, model: ProviderModel, status: int, charged: bool
) -> None:
    provider.answer = provider.fails(status, "Overloaded.")
    error = await unavailable(model)
    assert (error.words, error.retry_after_s) == (f"HTTP {status}: Overloaded.", None)
    assert error.charged is charged
    assert provider.asked == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_anything_else_is_refused_in_the_providers_words(
    provider: Provider, model: ProviderModel, status: int
) -> None:
    provider.answer = provider.fails(status, "Invalid \\ud83d " + "x" * 2000, "invalid_request_error")
    words = await refused(model)
    assert words.startswith(f"HTTP {status}: Invalid")
    assert len(words) < 600
    assert provider.asked == 1


async def test_an_empty_account_is_not_asked_again(provider: Provider) -> None:
    model = provider_model(NAMES[1], base_url=provider.url, api_key="k-1")
    provider.answer = provider.fails(429, "You exceeded your current quota.", "insufficient_quota")
    assert "exceeded your current quota" in await refused(model)
    await model.close()


async def test_an_error_page_of_a_proxy_is_quoted_and_cut(provider: Provider, model: ProviderModel) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>Bad gateway" + "!" * 3000, content_type="text/html")

    provider.answer = page
    error = await unavailable(model)
    assert "Bad gateway" in error.words
    assert len(error.words) < 600


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b'{"id": "x"', b"{}", b"[]", b"null", b'{"choices": 7}'])
async def test_an_answer_that_cannot_be_read_may_have_been_billed(
    provider: Provider, model: ProviderModel, body: bytes
) -> None:
    async def nonsense(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    provider.answer = nonsense
    assert (await unavailable(model)).charged


def time_is_over() -> None:
    """Let the clock of the event loop say that a request's whole time has passed since it came in."""
    loop = asyncio.get_running_loop()
    real = loop.time
    setattr(loop, "time", lambda: real() + TIMEOUT_S + 1)  # noqa: B010  (a method; the loop ends with its test)


@pytest.mark.parametrize("name", NAMES)
async def test_a_timeout_while_it_works_may_have_been_billed(provider: Provider, name: str) -> None:
    never = asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        time_is_over()
        await never.wait()
        return web.Response()

    provider.answer = hang
    model = provider_model(name, base_url=provider.url, api_key="k-1", timeout_s=TIMEOUT_S)
    assert (await unavailable(model)).charged
    assert provider.asked == 1
    never.set()
    await model.close()


@pytest.mark.parametrize("name", NAMES)
async def test_a_trickling_answer_ends_at_the_timeout_too(provider: Provider, name: str) -> None:
    gone = asyncio.Event()

    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        for _ in range(10):
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        time_is_over()
        while not gone.is_set():
            await answer.write(b" ")
            await asyncio.sleep(0.02)
        return answer

    provider.answer = trickle
    model = provider_model(name, base_url=provider.url, api_key="k-1", timeout_s=TIMEOUT_S)
    assert (await unavailable(model)).charged
    gone.set()
    await model.close()


async def test_a_connection_cut_in_the_middle_may_have_been_billed(provider: Provider, model: ProviderModel) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b'{"id": ')
        assert request.transport is not None
        request.transport.abort()
        return answer

    provider.answer = cut
    assert (await unavailable(model)).charged
    assert provider.asked == 1


@pytest.mark.parametrize("name", NAMES)
async def test_a_refused_connection_was_not_billed(name: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        model = provider_model(name, base_url="http://{}:{}".format(*free.getsockname()), api_key="k-1")
        assert not (await unavailable(model)).charged
    await model.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_key_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    variable = "ANTHROPIC_API_KEY" if name.startswith("anthropic") else "OPENAI_API_KEY"
    for base_url in (None, "http://127.0.0.1:9"):
        with pytest.raises(Misconfigured) as caught:
            provider_model(name, base_url=base_url)
        assert caught.value.problems == [f"ATLAS_MODEL={name}: set {variable}"]


@pytest.mark.parametrize("name", NAMES)
async def test_the_providers_own_environment_is_read(
    provider: Provider, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for maker in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{maker}_API_KEY", f"{maker}-key")
        monkeypatch.setenv(f"{maker}_BASE_URL", provider.url)
    provider.answer = provider.fails(401, "Who?", "authentication_error")
    model = provider_model(name)
    assert await refused(model) == "HTTP 401: Who?"
    assert provider.keys == ["Bearer ANTHROPIC-key" if name.startswith("anthropic") else "Bearer OPENAI-key"]
    await model.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openai:some-local-thing", "known price"),
        ("anthropic:claude-zzz", "known price"),
        ("openai:whisper-1", "known price"),
        ("gpt-5", "provider:model"),
        ("openai:", "provider:model"),
        ("nobody:gpt-5", "nobody"),
        ("groq:llama-3.3-70b-versatile", "groq"),
        ("bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock"),
    ],
)
def test_what_cannot_work_is_said_at_start(name: str, words: str) -> None:
    for base_url in ("http://127.0.0.1:9", None):
        with pytest.raises(Misconfigured) as caught:
            provider_model(name, base_url=base_url, api_key="k-1")
        (problem,) = caught.value.problems
        assert name in problem
        assert words in problem
