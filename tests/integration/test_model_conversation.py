"""Provider models over real sockets: the real SDKs against a local server that is as strict as the providers.

The server speaks three wires: Anthropic messages, OpenAI chat completions, OpenAI responses. It refuses a history in
which a tool call is not answered at once, as the providers do.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from bot.model import ProviderModel, provider_model
from core.conversation import Message, ModelReply, ToolCall, ToolSpec, decode_body, encode_body
from core.errors import InvariantBroken

LOOK_UP = ToolSpec(
    name="look_up",
    description="Find an account.",
    parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)
SIGNATURE = "EqQBCkYIBBgCKkDx/+9=\\u0000é" + "A" * 3000
ANTHROPIC, CHAT, RESPONSES = "anthropic:claude-sonnet-5", "openai-chat:gpt-4o-mini", "openai:gpt-5"


def anthropic_reply(*content: dict[str, Any], stop: str = "end_turn", used: tuple[int, int] = (100, 20)) -> bytes:
    return json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "content": list(content),
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": used[0], "output_tokens": used[1]},
        }
    ).encode()


def chat_reply(
    text: str | None, *calls: tuple[str, str, str], used: tuple[int, int] | None = (100, 20), stop: str | None = None
) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    reply: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [
            {"index": 0, "message": message, "finish_reason": stop or ("tool_calls" if calls else "stop")},
        ],
    }
    if used is not None:
        reply["usage"] = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
    return json.dumps(reply).encode()


def responses_reply(*output: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "completed",
            "model": "gpt-5-2025-08-07",
            "output": list(output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 120,
            },
        }
    ).encode()


def tool_use(id_: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "look_up", "input": arguments}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


class Provider:
    """Answers requests from a list of replies, in order; keeps what it was sent."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads((await request.read()).decode("utf-8"))
        self.bodies.append(body)
        self.keys.append(request.headers["authorization"])
        check = {"/v1/messages": unanswered_anthropic, "/chat/completions": unanswered_chat}.get(
            request.path, unanswered_responses
        )
        problem = check(body)
        if problem:
            return web.json_response({"error": {"type": "invalid_request_error", "message": problem}}, status=400)
        return web.Response(body=self.replies.pop(0), content_type="application/json")


def unanswered_anthropic(body: dict[str, Any]) -> str:
    messages = body["messages"]
    for at, message in enumerate(messages):
        asked = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        following = messages[at + 1]["content"] if at + 1 < len(messages) else []
        given = [block["tool_use_id"] for block in following[: len(asked)] if block["type"] == "tool_result"]
        if asked != given:
            return f"`tool_use` ids {asked} without `tool_result` blocks immediately after: {given}"
        if any(block["type"] == "text" and not block["text"].strip() for block in message["content"]):
            return "text content blocks must contain non-whitespace text"
    return ""


def unanswered_chat(body: dict[str, Any]) -> str:
    messages = body["messages"]
    for at, message in enumerate(messages):
        asked = [call["id"] for call in message.get("tool_calls") or []]
        given = [answer.get("tool_call_id") for answer in messages[at + 1 : at + 1 + len(asked)]]
        if asked != given:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {asked} {given}"
    return ""


def unanswered_responses(body: dict[str, Any]) -> str:
    asked = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    given = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    return "" if asked == given else f"No tool output found for function call {asked} {given}"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    served = Provider()
    app = web.Application(client_max_size=2**26)
    for path in ("/v1/messages", "/chat/completions", "/responses"):
        app.router.add_post(path, served.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield served
    await runner.cleanup()


Build = Callable[[str], ProviderModel]


@pytest.fixture
async def build(provider: Provider) -> AsyncIterator[Build]:
    built: list[ProviderModel] = []

    def one(name: str) -> ProviderModel:
        built.append(provider_model(name, instructions="Be brief.", base_url=provider.url, api_key="k-1"))
        return built[-1]

    yield one
    for model in built:
        await model.close()


def stored(reply: ModelReply) -> Message:
    """Return the reply as the store gives it back in another process."""
    message = Message(role="assistant", text=reply.text, calls=reply.calls, raw=reply.raw)
    again = decode_body(encode_body(message), reply.raw)
    assert again == message
    return again


def user(text: str) -> Message:
    return Message(role="user", text=text)


def result(call_id: str, text: str = '{"ok":true}') -> Message:
    return Message(role="tool", text=text, call_id=call_id)


async def test_anthropic_gets_its_thinking_back_byte_for_byte(provider: Provider, build: Build) -> None:
    thinking = {"type": "thinking", "thinking": "Which Henderson? \x00 😀", "signature": SIGNATURE}
    hidden = {"type": "redacted_thinking", "data": "opaque/+=="}
    call = tool_use("toolu_01", name="Henderson")
    provider.replies = [
        anthropic_reply(thinking, hidden, text_block("Looking."), call, stop="tool_use"),
        anthropic_reply(text_block("Found: 4471.")),
    ]
    first = await build(ANTHROPIC).respond([user("Find Henderson")], [LOOK_UP], 500)
    assert first.text == "Looking."
    assert first.calls == (ToolCall(id="toolu_01", tool="look_up", arguments={"name": "Henderson"}),)
    assert (first.input_tokens, first.spend_usd) == (100, Decimal("0.0004"))  # 100 × 2 + 20 × 10 dollars a million

    second = await build(ANTHROPIC).respond([user("Find Henderson"), stored(first), result("toolu_01")], [LOOK_UP], 500)
    assert (second.text, second.calls) == ("Found: 4471.", ())
    sent = provider.bodies[1]
    assert sent["messages"][1] == {"role": "assistant", "content": [thinking, hidden, text_block("Looking."), call]}
    assert sent["messages"][2]["content"][0]["tool_use_id"] == "toolu_01"
    assert sent["messages"][2]["content"][0]["content"] == [text_block('{"ok":true}')]
    assert sent["max_tokens"] == 500
    assert "Be brief." in json.dumps(sent["system"])
    assert sent["tools"][0]["name"] == "look_up"
    assert sent["tools"][0]["input_schema"]["required"] == ["name"]
    assert provider.keys == ["Bearer k-1", "Bearer k-1"]


@pytest.mark.parametrize(
    "arguments",
    [
        '{ "name" :  "Henderson" }',
        '{"n": 1e400, "m": -0.0, "k": 0.1000000000000000055511}',
        '{"name": "\\ud800 \\u0000 😀 \\u00e9"}',
        '{"big": 123456789012345678901234567890, "a": 1, "a": 2}',
        "",
        '{"name": "Hend',
        "[1, 2]",
        '{"blob": "' + "x" * 1_000_000 + '"}',
    ],
    ids=["spaces", "numbers", "strings", "big and double", "none", "cut", "list", "1 MB"],
)
@pytest.mark.parametrize("name", [CHAT, RESPONSES])
async def test_openai_gets_the_argument_text_back_byte_for_byte(
    provider: Provider, build: Build, name: str, arguments: str
) -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "look_up",
        "arguments": arguments,
        "status": "completed",
    }
    done = {
        "type": "message",
        "id": "msg_2",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }
    if name == CHAT:
        provider.replies = [chat_reply(None, ("call_1", "look_up", arguments)), chat_reply("Done.")]
    else:
        provider.replies = [responses_reply(item), responses_reply(done)]
    first = await build(name).respond([user("Go")], [LOOK_UP], 500)
    (call,) = first.calls
    try:
        whole = json.loads(arguments or "{}")
    except ValueError:
        whole = None
    if isinstance(whole, dict):
        assert (call.arguments, call.malformed) == (whole, None)
        assert repr(call.arguments) == repr(whole)  # also tells -0.0 from 0.0
    else:
        assert (call.arguments, call.malformed) == ({}, arguments)
    second = await build(name).respond([user("Go"), stored(first), result("call_1")], [LOOK_UP], 500)
    assert second.text == "Done."
    sent = provider.bodies[1]
    back = sent["messages"][2]["tool_calls"][0]["function"] if name == CHAT else sent["input"][1]
    assert back["arguments"] == arguments


async def test_openai_reasoning_goes_back_encrypted_and_with_its_ids(provider: Provider, build: Build) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SIGNATURE}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look_up", "arguments": "{}"}
    provider.replies = [responses_reply(reasoning, {**call, "status": "completed"}), responses_reply()]
    model = build(RESPONSES)
    first = await model.respond([user("Go")], [LOOK_UP], 500)
    await model.respond([user("Go"), stored(first), result("call_1")], [LOOK_UP], 500)
    assert provider.bodies[1]["input"][1:3] == [reasoning, call]
    assert provider.bodies[1]["instructions"] == "Be brief."


async def test_results_go_back_in_the_order_of_the_calls_and_before_anything_said(
    provider: Provider, build: Build
) -> None:
    calls = [("call_a", "look_up", "{}"), ("call_b", "look_up", "{}"), ("call_c", "look_up", "{}")]
    provider.replies = [chat_reply("Three.", *calls), chat_reply("Done.")]
    model = build(CHAT)
    first = await model.respond([user("Go")], [LOOK_UP], 500)
    assert [call.id for call in first.calls] == ["call_a", "call_b", "call_c"]
    late = [result("call_c", "3"), user("And hurry"), result("call_a", "1"), result("call_b", "2")]
    await model.respond([user("Go"), stored(first), *late], [LOOK_UP], 500)
    tail = provider.bodies[1]["messages"][-4:]
    assert [(message["role"], message["content"]) for message in tail] == [
        ("tool", "1"),
        ("tool", "2"),
        ("tool", "3"),
        ("user", "And hurry"),
    ]


async def test_an_id_that_comes_again_in_a_later_turn_keeps_its_own_result(provider: Provider, build: Build) -> None:
    again = chat_reply(None, ("call_1", "look_up", "{}"))
    provider.replies = [again, again, chat_reply("Done.")]
    model = build(CHAT)
    messages = [user("Go")]
    for turn in ("first", "second"):
        messages.append(stored(await model.respond(messages, [LOOK_UP], 500)))
        messages.append(result("call_1", turn))
    await model.respond(messages, [LOOK_UP], 500)
    results = [message["content"] for message in provider.bodies[2]["messages"] if message["role"] == "tool"]
    assert results == ["first", "second"]


async def test_equal_ids_within_one_reply_are_told_apart(provider: Provider, build: Build) -> None:
    provider.replies = [
        chat_reply(None, ("call_1", "look_up", '{"n":1}'), ("call_1", "look_up", '{"n":2}')),
        chat_reply("Done."),
    ]
    model = build(CHAT)
    first = await model.respond([user("Go")], [LOOK_UP], 500)
    one, two = (call.id for call in first.calls)
    assert one != two
    await model.respond([user("Go"), stored(first), result(two, "two"), result(one, "one")], [LOOK_UP], 500)
    sent = provider.bodies[1]["messages"][2:]
    assert [call["function"]["arguments"] for call in sent[0]["tool_calls"]] == ['{"n":1}', '{"n":2}']
    assert [message["content"] for message in sent[1:]] == ["one", "two"]


@pytest.mark.parametrize("name", [ANTHROPIC, CHAT, RESPONSES])
async def test_what_utf8_cannot_carry_is_replaced_visibly(provider: Provider, build: Build, name: str) -> None:
    odd = "NUL \x00, lone \ud83d, emoji 😀"
    seen = "NUL \x00, lone \\ud83d, emoji 😀"
    calls = (ToolCall(id="call_1", tool="look_up", arguments={"name": odd, "n": float("inf")}),)
    messages = [
        user(odd),
        Message(role="assistant", text=odd, calls=calls, raw=b"\x00 not ours"),
        result("call_1", odd),
    ]
    content = [{"type": "output_text", "text": odd, "annotations": []}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    provider.replies = [
        {
            ANTHROPIC: anthropic_reply(text_block(odd), tool_use("t_1", name=odd), stop="tool_use"),
            CHAT: chat_reply(odd, ("t_1", "look_up", json.dumps({"name": odd}))),
            RESPONSES: responses_reply(message),
        }[name]
    ] * 2
    model = build(name)
    reply = await model.respond(messages, [LOOK_UP], 500)
    sent = json.dumps(provider.bodies[0], ensure_ascii=False)
    assert sent.count(json.dumps(seen, ensure_ascii=False)[1:-1]) >= 3
    assert "Infinity" in sent
    assert reply.text == seen
    assert [call.arguments for call in reply.calls] in ([], [{"name": odd}])
    results = [result(call.id) for call in reply.calls]
    await model.respond([*messages, stored(reply), *results, user("more")], [LOOK_UP], 500)


async def test_anthropic_arguments_survive_as_values(provider: Provider, build: Build) -> None:
    reply = anthropic_reply(tool_use("t_1", z=-0.0, a=10**30, s="\x00😀"), stop="tool_use")
    provider.replies = [reply.replace(b"-0.0", b'-0.0, "huge": 1e400'), anthropic_reply(text_block("Done."))]
    model = build(ANTHROPIC)
    first = await model.respond([user("Go")], [LOOK_UP], 500)
    assert repr(first.calls[0].arguments) == repr({"z": -0.0, "huge": float("inf"), "a": 10**30, "s": "\x00😀"})
    await model.respond([user("Go"), stored(first), result("t_1")], [LOOK_UP], 500)
    back = provider.bodies[1]["messages"][1]["content"][0]["input"]
    assert repr(back) == repr({"z": -0.0, "huge": "Infinity", "a": 10**30, "s": "\x00😀"})


async def test_a_call_cut_off_by_the_output_limit_never_looks_whole(provider: Provider, build: Build) -> None:
    provider.replies = [anthropic_reply(tool_use("t_1", name="a"), tool_use("t_2"), stop="max_tokens")]
    reply = await build(ANTHROPIC).respond([user("Go")], [LOOK_UP], 20)
    assert [call.malformed for call in reply.calls] == [None, "{}"]


async def test_an_empty_reply_is_empty_and_can_be_followed(provider: Provider, build: Build) -> None:
    for name, empty in ((ANTHROPIC, anthropic_reply()), (CHAT, chat_reply(None)), (RESPONSES, responses_reply())):
        provider.replies = [empty, empty]
        provider.bodies.clear()
        model = build(name)
        reply = await model.respond([user("Go")], [], 500)
        assert (reply.text, reply.calls) == ("", ())
        assert reply.spend_usd > 0
        await model.respond([user("Go"), stored(reply), user("  "), user("Well?")], [], 500)
        said = json.dumps(provider.bodies[1])
        assert "Well?" in said
        assert "(no text)" in said
        assert '"assistant"' not in said


async def test_a_run_of_another_model_goes_on_with_repeated_and_odd_ids(provider: Provider, build: Build) -> None:
    messages = [user("Go")]
    for text in ("one", "two"):
        messages.append(
            Message(
                role="assistant",
                text="",
                calls=(
                    ToolCall(id="call 1 ü", tool="look_up", arguments={"n": 1}),
                    ToolCall(id="call_1", tool="gone", arguments={}, malformed="{oops"),
                ),
            )
        )
        messages += [result("call_1", text + " gone"), result("call 1 ü", text)]
    provider.replies = [anthropic_reply(text_block("Done."))]
    await build(ANTHROPIC).respond(messages, [LOOK_UP], 500)
    sent = provider.bodies[0]["messages"]
    ids = [block["id"] for message in sent for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 4
    assert all(id_.replace("_", "").isascii() and id_.replace("_", "").isalnum() for id_ in ids)
    answers = [block["content"][0]["text"] for message in (sent[2], sent[4]) for block in message["content"]]
    assert answers == ["one", "one gone", "two", "two gone"]


async def test_a_history_with_a_hole_is_a_defect_and_is_not_sent(provider: Provider, build: Build) -> None:
    asked = Message(role="assistant", text="", calls=(ToolCall(id="call_1", tool="look_up", arguments={}),))
    model = build(CHAT)
    with pytest.raises(InvariantBroken, match="call_1"):
        await model.respond([user("Go"), asked, user("Well?")], [LOOK_UP], 500)
    with pytest.raises(InvariantBroken, match="call_9"):
        await model.respond([user("Go"), asked, result("call_1"), result("call_9")], [LOOK_UP], 500)
    assert provider.bodies == []


async def test_the_worst_case_bounds_what_is_charged_and_shrinks_once_tokens_were_reported(
    provider: Provider, build: Build
) -> None:
    provider.replies = [chat_reply(None, ("call_1", "look_up", "{}"), used=(90, 500)), chat_reply("Done.", used=None)]
    model = build(CHAT)  # 0.15 and 0.60 dollars a million
    opening = [user("é" * 10_000)]
    unreported = model.worst_case_usd(opening, [LOOK_UP], 500)
    assert Decimal(20000) * Decimal("0.15") / 10**6 <= unreported - Decimal("0.0003")
    first = await model.respond(opening, [LOOK_UP], 500)
    assert first.spend_usd == (90 * Decimal("0.15") + 500 * Decimal("0.60")) / 10**6
    assert first.spend_usd <= unreported
    then = [*opening, stored(first), result("call_1", "x" * 1000)]
    reported = model.worst_case_usd(then, [LOOK_UP], 500)
    assert (90 + 1000) * Decimal("0.15") / 10**6 + Decimal("0.0003") <= reported < unreported
    grown = LOOK_UP.model_copy(update={"description": "y" * 5000})
    assert model.worst_case_usd(then, [grown], 500) >= reported + 4900 * Decimal("0.15") / 10**6
    # A report of another model's tokenizer says nothing about this one's.
    assert build("openai-chat:gpt-4.1-nano").worst_case_usd(then, [LOOK_UP], 0) > 20_000 * Decimal("0.1") / 10**6
    # A reply without a count is charged at its worst case.
    second = await model.respond(then, [LOOK_UP], 500)
    assert (second.spend_usd, second.input_tokens) == (reported, None)


def test_no_provider_sdk_is_imported_before_a_model_is_asked_for() -> None:
    code = "import bot.model, sys; print([m for m in ('openai', 'anthropic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
