"""The Web API's rules: how arguments travel, what an update keeps, threads, faults, rate limits, streams."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from bot.simulator import Simulator
from bot.simulator.clock import Clock
from bot.simulator.workspace import (
    ATLAS_OPS,
    DORA,
    EMIL,
    GINA,
    MARCUS,
    RITA,
    SALES_DESK,
    VERA,
    AppManifest,
    ChannelSpec,
    Workspace,
)

Json = dict[str, Any]
CARD: list[Json] = [{"type": "section", "text": {"type": "mrkdwn", "text": "card"}}]
META = {"event_type": "atlas_card", "event_payload": {"row": 7}}


@pytest.fixture
async def slack() -> AsyncIterator[Simulator]:
    async with Simulator() as slack:
        yield slack


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def client(slack: Simulator, session: aiohttp.ClientSession) -> AsyncWebClient:
    # no retries: what is seen here is what one request did
    return AsyncWebClient(
        token=slack.workspace.bot_token, base_url=slack.api_url, session=session, retry_handlers=[], timeout=60
    )


async def error_of(awaitable: Any) -> str:
    with pytest.raises(SlackApiError) as refused:
        await awaitable
    return str(refused.value.response["error"])


@pytest.mark.parametrize("how", ["json", "form", "query", "get"])
async def test_arguments_arrive_in_every_way(slack: Simulator, session: aiohttp.ClientSession, how: str) -> None:
    arguments = {"channel": SALES_DESK, "text": "x", "unfurl_links": "false"}
    packed = {**arguments, "blocks": json.dumps(CARD), "metadata": json.dumps(META)}
    headers = {"Authorization": f"Bearer {slack.workspace.bot_token}"}
    url = f"{slack.api_url}chat.postMessage"
    if how == "json":
        sent = session.post(url, json={**arguments, "blocks": CARD, "metadata": META}, headers=headers)
    elif how == "form":
        sent = session.post(url, data={**packed, "token": slack.workspace.bot_token})
    elif how == "query":
        sent = session.post(url, params=packed, headers=headers)
    else:
        sent = session.get(url, params=packed, headers=headers)
    async with sent as response:
        answer = await response.json()
    assert answer["ok"], answer
    stored = slack.message(SALES_DESK, answer["ts"])
    assert stored
    assert stored["blocks"][0]["text"]["text"] == "card"
    assert stored["blocks"][0]["block_id"]
    assert stored["metadata"] == META
    requests = slack.journal.find({"kind": "request", "method": "chat.postMessage"})
    assert "token" not in requests[0]["args"]
    assert slack.workspace.bot_token not in json.dumps(slack.journal.records)


async def test_invalid_blocks_come_with_every_finding(client: AsyncWebClient) -> None:
    with pytest.raises(SlackApiError) as refused:
        await client.chat_postMessage(channel=SALES_DESK, text="x", blocks=[{"type": "divider"}] * 51)
    assert refused.value.response["error"] == "invalid_blocks"
    assert refused.value.response["response_metadata"]["messages"] == [
        "[ERROR] no more than 50 items allowed [json-pointer:/blocks]"
    ]


async def test_post_truncates_and_update_refuses_long_text(slack: Simulator, client: AsyncWebClient) -> None:
    posted = await client.chat_postMessage(channel=SALES_DESK, text="x" * 40_001)
    assert posted["warning"] == "message_truncated"
    assert posted["response_metadata"]["warnings"] == ["message_truncated"]
    stored = slack.message(SALES_DESK, posted["ts"])
    assert stored
    assert len(stored["text"]) == 40_000
    update = client.chat_update
    assert await error_of(update(channel=SALES_DESK, ts=posted["ts"], text="x" * 4001)) == "msg_too_long"
    await update(channel=SALES_DESK, ts=posted["ts"], text="x" * 4000)


async def test_what_an_update_keeps_and_drops(slack: Simulator, client: AsyncWebClient) -> None:
    posted = await client.chat_postMessage(channel=SALES_DESK, text="one", blocks=CARD, metadata=META)
    ts = posted["ts"]

    def now() -> Json:
        stored = slack.message(SALES_DESK, ts)
        assert stored
        return stored

    await client.chat_update(channel=SALES_DESK, ts=ts, text="two", blocks=CARD)
    assert now()["metadata"] == META
    assert "edited" not in now()
    await client.chat_update(channel=SALES_DESK, ts=ts, text="three")
    assert "blocks" not in now()
    assert now()["edited"]["user"] == "U0ATLAS0001"
    await client.chat_update(channel=SALES_DESK, ts=ts, text="four", blocks=CARD, metadata={})
    assert "metadata" not in now()
    assert "edited" not in now()
    await client.chat_update(channel=SALES_DESK, ts=ts, text="five", blocks=[])
    assert "blocks" not in now()
    assert await error_of(client.api_call("chat.update", json={"channel": SALES_DESK, "ts": ts})) == "no_text"


async def test_only_own_living_messages_can_be_updated(slack: Simulator, client: AsyncWebClient) -> None:
    foreign = await slack.post_as(RITA, SALES_DESK, "mine")
    assert await error_of(client.chat_update(channel=SALES_DESK, ts=foreign["ts"], text="x")) == "cant_update_message"
    whisper = await client.chat_postEphemeral(channel=SALES_DESK, user=RITA, text="x")
    ts = whisper["message_ts"]
    assert await error_of(client.chat_update(channel=SALES_DESK, ts=ts, text="x")) == "message_not_found"
    posted = await client.chat_postMessage(channel=SALES_DESK, text="x")
    assert await error_of(client.chat_update(channel="#sales-desk", ts=posted["ts"], text="y")) == "channel_not_found"
    slack.change_world({"channel": SALES_DESK, "set": {"is_archived": True}})
    assert await error_of(client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="y")) == "is_inactive"
    assert await error_of(client.chat_postMessage(channel=SALES_DESK, text="y")) == "is_archived"


async def test_threads_count_replies_and_refuse_a_replys_ts(slack: Simulator, client: AsyncWebClient) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    one = await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="one", metadata=META)
    await slack.post_as(MARCUS, SALES_DESK, "two", asked["ts"])
    parent = slack.message(SALES_DESK, asked["ts"])
    assert parent
    assert (parent["reply_count"], parent["reply_users"]) == (2, ["U0ATLAS0001", MARCUS])
    assert one["message"]["parent_user_id"] == RITA
    wrong = client.chat_postMessage(channel=SALES_DESK, thread_ts=one["ts"], text="x")
    assert await error_of(wrong) == "cannot_reply_to_message"
    read = await client.conversations_replies(channel=SALES_DESK, ts=asked["ts"], limit=2)
    assert [m["text"] for m in read["messages"]] == ["question", "one"]
    assert read["has_more"] is True
    assert read["messages"][1]["metadata"] == {"event_type": "atlas_card"}
    cursor = read["response_metadata"]["next_cursor"]
    rest = await client.conversations_replies(channel=SALES_DESK, ts=asked["ts"], cursor=cursor, limit=2)
    assert [m["text"] for m in rest["messages"]] == ["two"]
    full = await client.conversations_replies(channel=SALES_DESK, ts=asked["ts"], include_all_metadata=True)
    assert full["messages"][1]["metadata"] == META
    await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="three", reply_broadcast=True)
    history = await client.conversations_history(channel=SALES_DESK)
    assert [(m["text"], m.get("subtype")) for m in history["messages"]] == [
        ("three", "thread_broadcast"),
        ("question", None),
    ]


async def test_a_deleted_parent_leaves_both_outcomes_to_choose(slack: Simulator, client: AsyncWebClient) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    slack.acts.delete(RITA, SALES_DESK, asked["ts"])
    await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="orphan")
    slack.chat.refuse_orphan_replies = True
    refused = client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="orphan")
    assert await error_of(refused) == "cannot_reply_to_message"
    kept = await client.chat_postMessage(channel=SALES_DESK, text="parent")
    await slack.post_as(RITA, SALES_DESK, "reply", kept["ts"])
    await client.chat_delete(channel=SALES_DESK, ts=kept["ts"])
    stone = slack.message(SALES_DESK, kept["ts"])
    assert stone
    assert stone["subtype"] == "tombstone"
    assert await error_of(client.chat_update(channel=SALES_DESK, ts=kept["ts"], text="x")) == "message_not_found"


async def test_people_of_every_kind_have_slacks_flags(slack: Simulator, client: AsyncWebClient) -> None:
    async def flags(user: str) -> Json:
        found: Json = (await client.users_info(user=user))["user"]
        return found

    assert (await flags(RITA))["profile"]["email"] == "rita.reyes@northwind.example"
    assert (await flags(GINA))["is_restricted"] is True
    assert (await flags(DORA))["deleted"] is True
    external = await flags(EMIL)
    assert (external["team_id"], external["is_stranger"]) == ("T0CONTOSO01", False)
    assert (await flags("U0ATLAS0001"))["is_bot"] is True
    slack.change_world({"person": RITA, "set": {"kind": "deactivated"}})
    assert (await flags(RITA))["deleted"] is True
    assert await error_of(client.conversations_open(users=RITA)) == "user_disabled"
    slack.change_world({"group": "sales-managers", "users": [VERA]})
    assert (await client.usergroups_users_list(usergroup="S0SALESMGRS"))["users"] == [VERA]
    assert (await client.conversations_info(channel="C0CONTOSO01"))["channel"]["is_ext_shared"] is True


async def test_a_dropped_answer_leaves_the_message_and_a_drop_before_does_not(
    slack: Simulator, client: AsyncWebClient
) -> None:
    slack.faults.add("store_then_drop", "chat.postMessage", where={"channel": SALES_DESK})
    with pytest.raises((aiohttp.ClientError, OSError)):
        await client.chat_postMessage(channel=SALES_DESK, text="stored", metadata=META)
    slack.faults.add("drop_before", "chat.postMessage")
    with pytest.raises((aiohttp.ClientError, OSError)):
        await client.chat_postMessage(channel=SALES_DESK, text="never", metadata=META)
    assert [m["text"] for m in slack.bot_messages(SALES_DESK)] == ["stored"]
    await client.chat_postMessage(channel=SALES_DESK, text="after")
    answers = slack.journal.find({"kind": "answer", "method": "chat.postMessage", "dropped": True})
    assert len(answers) == 2


async def test_faults_are_used_up_in_order_for_their_method(slack: Simulator, client: AsyncWebClient) -> None:
    slack.faults.add("ratelimited", "chat.update", times=2, retry_after=7)
    slack.faults.add("error", "chat.postMessage", error="fatal_error", skip=1)
    slack.faults.add("http_error", "chat.postMessage", status=503, skip=1)
    posted = await client.chat_postMessage(channel=SALES_DESK, text="first is skipped")
    for _ in range(2):
        with pytest.raises(SlackApiError) as limited:
            await client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="x")
        assert limited.value.response.status_code == 429
        assert limited.value.response.headers["Retry-After"] == "7"
        assert limited.value.response["error"] == "ratelimited"
    await client.chat_update(channel=SALES_DESK, ts=posted["ts"], text="x")
    assert await error_of(client.chat_postMessage(channel=SALES_DESK, text="x")) == "fatal_error"
    assert client.session
    async with client.session.post(f"{slack.api_url}chat.postMessage", data={}) as response:
        assert (response.status, response.content_type) == (503, "text/plain")
    before = len(slack.bot_messages(SALES_DESK))
    slack.faults.add("store_then_error", "chat.postMessage", error="fatal_error")
    assert await error_of(client.chat_postMessage(channel=SALES_DESK, text="x")) == "fatal_error"
    assert len(slack.bot_messages(SALES_DESK)) == before + 1
    slack.faults.add("delay", "chat.postMessage", seconds=300)
    # its own session: slack_sdk applies `timeout` only to sessions that it opens itself
    hasty = AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, retry_handlers=[], timeout=1)
    with pytest.raises(TimeoutError):
        await hasty.chat_postMessage(channel=SALES_DESK, text="slow")
    assert slack.bot_messages(SALES_DESK)[-1]["text"] != "slow"
    with pytest.raises(ValueError, match="unknown fault"):
        slack.faults.add("explode")  # type: ignore[arg-type]


async def test_rate_tiers_hold_one_post_a_second_per_channel_and_the_methods_tier(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No time passes but what the test lets pass: calls of a busy machine come too slowly for any limit.
    monkeypatch.setattr(Clock, "monotonic", lambda clock: clock._offset)
    async with Simulator(rate_tiers=True) as slack:
        client = AsyncWebClient(token=slack.workspace.bot_token, base_url=slack.api_url, session=session)
        posted = [await client.chat_postMessage(channel=SALES_DESK, text="x") for _ in range(3)]
        assert await error_of(client.chat_postMessage(channel=SALES_DESK, text="x")) == "ratelimited"
        await client.chat_postMessage(channel=ATLAS_OPS, text="another channel has its own second")
        slack.clock.advance(1)
        await client.chat_postMessage(channel=SALES_DESK, text="x")
        for number in range(50):
            await client.chat_update(channel=SALES_DESK, ts=posted[0]["ts"], text=str(number))
        with pytest.raises(SlackApiError) as limited:
            await client.chat_update(channel=SALES_DESK, ts=posted[0]["ts"], text="51")
        wait = int(limited.value.response.headers["Retry-After"])
        assert 1 <= wait <= 2
        slack.clock.advance(wait)
        await client.chat_update(channel=SALES_DESK, ts=posted[0]["ts"], text="51")


async def test_status_shows_and_clears_with_the_next_answer_or_after_two_minutes(
    slack: Simulator, client: AsyncWebClient
) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    here: Json = {"channel_id": SALES_DESK, "thread_ts": asked["ts"]}
    await client.assistant_threads_setStatus(**here, status="is thinking", loading_messages=["reading"])
    assert [s.status for s in slack.rooms.live_statuses()] == ["is thinking"]
    await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="answer")
    assert slack.rooms.live_statuses() == []
    await client.assistant_threads_setStatus(**here, status="is thinking")
    slack.clock.advance(121)
    assert slack.rooms.live_statuses() == []
    await client.api_call("agents.sessions.setStatus", json={**here, "status": "suspended"})
    assert slack.rooms.sessions[SALES_DESK, asked["ts"]]["status"] == "suspended"
    slack.streams.sessions_enabled = False
    off = client.api_call("agents.sessions.setStatus", json={**here, "status": "processing"})
    assert await error_of(off) == "feature_disabled"


async def test_a_stream_grows_cannot_be_updated_and_ends_as_a_message(slack: Simulator, client: AsyncWebClient) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    start: Json = {"channel": SALES_DESK, "thread_ts": asked["ts"]}
    assert await error_of(client.chat_startStream(**start)) == "missing_recipient_user_id"
    started = await client.chat_startStream(
        **start, recipient_user_id=RITA, recipient_team_id="T0NORTHWIND", markdown_text="Hel"
    )
    here: Json = {"channel": SALES_DESK, "ts": started["ts"]}
    task = {"type": "task_update", "id": "t1", "title": "Price", "status": "in_progress"}
    await client.chat_appendStream(**here, markdown_text="lo", chunks=[task])
    assert await error_of(client.chat_update(**here, text="x")) == "streaming_state_conflict"
    await client.chat_stopStream(**here, chunks=[{**task, "status": "complete"}], blocks=CARD, metadata=META)
    final = slack.message(SALES_DESK, started["ts"])
    assert final
    assert (final["text"], final["streaming_state"], final["metadata"]) == ("Hello", "completed", META)
    assert [block["type"] for block in final["blocks"]] == ["plan", "markdown", "section"]
    assert final["blocks"][0]["tasks"][0]["status"] == "complete"
    assert await error_of(client.chat_appendStream(**here, markdown_text="x")) == "message_not_in_streaming_state"
    await client.chat_update(**here, text="now it can")


async def test_revoked_tokens_fail_every_call(slack: Simulator, client: AsyncWebClient) -> None:
    slack.change_world({"token_error": "token_revoked"})
    assert await error_of(client.auth_test()) == "token_revoked"
    slack.change_world({"token_error": ""})
    assert (await client.auth_test())["user_id"] == "U0ATLAS0001"


async def test_permalinks_lead_to_the_page(
    slack: Simulator, client: AsyncWebClient, session: aiohttp.ClientSession
) -> None:
    asked = await slack.post_as(RITA, SALES_DESK, "question")
    reply = await client.chat_postMessage(channel=SALES_DESK, thread_ts=asked["ts"], text="x")
    link = (await client.chat_getPermalink(channel=SALES_DESK, message_ts=reply["ts"]))["permalink"]
    assert link.startswith(f"{slack.url}/archives/{SALES_DESK}/p")
    async with session.get(link, allow_redirects=False) as response:
        assert response.headers["Location"] == (f"/?channel={SALES_DESK}&ts={reply['ts']}&thread_ts={asked['ts']}")


async def test_a_group_dm_is_opened_once_and_is_told_apart_everywhere(client: AsyncWebClient) -> None:
    """Slack: up to 8 people, mpdm-… as its name, is_mpim, mpim:* scopes, channel_type mpim, message.mpim."""
    events = ("app_mention", "message.mpim", "message.groups", "message.channels")
    async with Simulator(manifest=AppManifest(events=events)) as slack, aiohttp.ClientSession() as session:
        client = AsyncWebClient(slack.workspace.bot_token, base_url=slack.api_url, session=session, retry_handlers=[])
        opened = await client.conversations_open(users=f"{RITA},{MARCUS}")
        again = await client.conversations_open(users=[MARCUS, RITA], return_im=True)
        group = opened["channel"]["id"]
        shown = again["channel"]
        assert (shown["id"], shown["is_mpim"], shown["is_private"]) == (group, True, True)
        assert shown["name"] == "mpdm-rita.reyes--marcus.hale--atlas-1"
        assert (await client.conversations_open(channel=group))["channel"]["id"] == group
        assert (await client.conversations_members(channel=group))["members"] == [RITA, MARCUS, "U0ATLAS0001"]
        listed = await client.conversations_list(types="mpim")
        assert [channel["id"] for channel in listed["channels"]] == [group]
        assert (await client.conversations_list(types="private_channel"))["channels"] == []
        asked = await slack.post_as(RITA, group, "@Atlas hello")
        await client.chat_postMessage(channel=group, text="hello", thread_ts=asked["ts"])
        sent = [record["payload"]["event"] for record in slack.journal.find({"kind": "event"})]
        assert [(event["type"], event.get("channel_type")) for event in sent] == [
            ("app_mention", None),
            ("message", "mpim"),
            ("message", "mpim"),
        ]
        assert [room["kind"] for room in slack.live.channels(RITA) if room["id"] == group] == ["mpim"]
        assert all(room["id"] != group for room in slack.live.channels(VERA))
        assert await error_of(client.conversations_open(users=[RITA, "U0NOBODY"])) == "user_not_found"
        assert await error_of(client.conversations_open(users=[RITA, DORA])) == "user_disabled"
        assert await error_of(client.conversations_open(users=[RITA] * 9)) == "too_many_users"


async def test_a_group_dm_needs_scopes_of_its_own() -> None:
    scopes = ("chat:write", "im:write", "im:read", "groups:read", "groups:history", "app_mentions:read")
    room = ChannelSpec(
        "C0GROUPDM01", "mpdm-rita.reyes--vera.lindqvist--atlas-1", [RITA, VERA, "U0ATLAS0001"], is_mpim=True
    )
    async with (
        Simulator(Workspace(channels=[room]), AppManifest(scopes=scopes, events=("message.mpim",))) as slack,
        aiohttp.ClientSession() as session,
    ):
        client = AsyncWebClient(slack.workspace.bot_token, base_url=slack.api_url, session=session, retry_handlers=[])
        with pytest.raises(SlackApiError) as refused:
            await client.conversations_open(users=[RITA, MARCUS])
        assert (refused.value.response["error"], refused.value.response["needed"]) == ("missing_scope", "mpim:write")
        with pytest.raises(SlackApiError) as refused:
            await client.conversations_info(channel=room.id)
        assert refused.value.response["needed"] == "mpim:read"
        await slack.post_as(RITA, room.id, "hello")
        assert slack.journal.find({"kind": "event"}) == []
