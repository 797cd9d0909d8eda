"""What must hold after every story, however often it was interrupted: one function over rows, effects and Slack.

``watch`` (before) lets the database itself note every amount that decreases, every move that is not in the table of
moves and every message that is rewritten. ``violations`` (after, once nothing is left to do) returns one line for each
broken promise. Failure it can cause: a promise missing here is a promise that no chaos test holds anybody to.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import asyncpg

from bot.simulator import Simulator
from bot.simulator.elements import find_element
from core.approvals import digest_of
from core.conversation import decode_body
from core.run import MOVES
from core.tools import Preview

Row = dict[str, Any]
# Buttons whose ack says that a decision is recorded. Decline is none: it opens a form, whose submission decides.
DECISIONS = ("approve", "happened", "did_not_happen")
FORMS = ("decline_reason", "details_approve")
# A form that may be acked with what is wrong in it; a decision only when it is acked as "clear".
EDIT_FORM = "edit_arguments"
# Buttons and commands that move a run; each attempt is on record.
RUN_ACTS = ("continue", "stop")
# What a card says, by the status of its suspension; by what became of it, after an approval.
CARD_WORDS = {
    "declined": "Declined",
    "expired": "Expired",
    "replaced": "Replaced by a newer version",
    "superseded": "Replaced by a new instruction",
    "edited": "Edited",
    "stopped": "Stopped",
    "happened": "It happened",
    "did_not_happen": "It did not happen",
}
SETTLED_WORDS = {"done": "Done", "not_executed": "Not executed", "failed": "Failed", "unknown": "Outcome unknown"}
PROGRESS_WORDS = {
    "answered": "Answered",
    "halted": "Stopped",
    "failed": "Failed",
    "suspended": "Waiting for a decision",
}


@dataclass(frozen=True)
class Effect:
    """Something that a target did, under its idempotency key. *requests*: how often it was asked for."""

    key: str
    requests: int = 1


# ---- before: the database takes notes --------------------------------------------------------------------------------


async def watch(dsn: str) -> None:
    """Let the database of *dsn* note what no move may do. Nothing that the bots use changes."""
    legal = sorted({f"{source} {move.target}" for move in MOVES for source in move.sources if source is not None})
    pairs = ", ".join(f"'{pair}'" for pair in legal)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"""
            create table watched (at timestamptz not null default clock_timestamp(), what text not null);
            create function watch_run() returns trigger language plpgsql as $$ begin
                if new.step < old.step or new.spend_usd < old.spend_usd or new.tool_calls < old.tool_calls
                        or new.elapsed_ms < old.elapsed_ms or new.halts < old.halts then
                    insert into watched (what) values ('run ' || new.id || ': an amount decreased');
                end if;
                if old.state <> new.state and old.state || ' ' || new.state not in ({pairs}) then
                    insert into watched (what) values ('run ' || new.id || ': ' || old.state || ' to ' || new.state);
                end if;
                return null; end $$;
            create trigger watch_run after update on runs for each row execute function watch_run();
            create function watch_message() returns trigger language plpgsql as $$ begin
                insert into watched (what) values ('run ' || old.run_id || ': message ' || old.seq || ' rewritten');
                return null; end $$;
            create trigger watch_message after update on messages for each row execute function watch_message();
            create function watch_suspension() returns trigger language plpgsql as $$ begin
                if old.status <> new.status and old.status not in ('open', 'approved', 'edited', 'expired') then
                    insert into watched (what)
                        values ('suspension ' || new.id || ': ' || old.status || ' to ' || new.status);
                end if;
                return null; end $$;
            create trigger watch_suspension after update on suspensions
                for each row execute function watch_suspension();
        """)
    finally:
        await connection.close()


# ---- after -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Everything, as of one moment."""

    runs: list[Row]
    messages: list[Row]
    suspensions: list[Row]
    actions: list[Row]
    trace: list[Row]
    inbox: list[Row]
    outbox: list[Row]
    audit: list[Row]
    watched: list[Row]

    def of(self, rows: list[Row], run: Row) -> list[Row]:
        """Return the rows that hang on a run."""
        return [row for row in rows if row["run_id"] == run["id"]]


async def violations(
    pool: "asyncpg.Pool[asyncpg.Record]",
    effects: Sequence[Effect],
    slack: Simulator,
    alert_channel: str,
    *,
    needs_approval: frozenset[str],
) -> list[str]:
    """Return what does not hold, one line each. Call it when no run works, no mail waits and no message is owed.

    *effects*: everything that the targets did. *needs_approval*: the tools that may not act without a person.
    """
    rows = await _read(pool)
    return [
        *(str(row["what"]) for row in rows.watched),
        *_effects(rows, effects, needs_approval),
        *_conversations(rows),
        *_amounts(rows),
        *_ends(rows),
        *_messages_in_slack(rows, slack),
        *_acked(rows, slack),
        *_alerts(rows, slack, alert_channel),
    ]


async def _read(pool: "asyncpg.Pool[asyncpg.Record]") -> Rows:
    orders = {
        "runs": "created_at",
        "messages": "run_id, seq",
        "suspensions": "opened_at, id",
        "actions": "intended_at",
        "trace": "run_id, id",
        "inbox": "id",
        "outbox": "place",
        "audit": "id",
        "watched": "at",
    }
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        found = {}
        for table, order in orders.items():
            found[table] = [dict(row) for row in await connection.fetch(f"select * from {table} order by {order}")]
    return Rows(**found)


def _effects(rows: Rows, effects: Sequence[Effect], needs_approval: frozenset[str]) -> Iterator[str]:
    """Each approved call has at most one effect, exactly one if it ends "Done"; none without its decision."""
    counts = Counter(effect.key for effect in effects)
    actions = {action["idempotency_key"]: action for action in rows.actions}
    per_call: Counter[tuple[str, int, int]] = Counter()
    for key, count in counts.items():
        action = actions.get(key)
        if action is None:
            yield f"an effect under {key} that no action intended"
            continue
        call = (action["run_id"], action["call_seq"], action["call_position"])
        per_call[call] += count
        yield from _decided(rows, action, needs_approval)
        if action["state"] == "failed" and not _believed(rows, action, "did_not_happen"):
            yield f"{call}: an effect, but its action says failed"
    for call, count in per_call.items():
        if count > 1:
            yield f"{call}: {count} effects of one call"
    for key, action in actions.items():
        told = _believed(rows, action, "happened")
        if action["state"] == "succeeded" and counts[key] != 1 and not told:
            yield f"{action['run_id']} {action['tool']}: succeeded with {counts[key]} effects"
    for suspension in rows.suspensions:
        if suspension["settled_kind"] == "done":
            states = [a["state"] for a in rows.actions if _same_call(a, suspension)]
            if "succeeded" not in states:
                yield f"card {suspension['id']} is settled as done, its actions: {states}"


def _same_call(action: Row, suspension: Row) -> bool:
    return all(action[name] == suspension[name] for name in ("run_id", "call_seq", "call_position"))


def _believed(rows: Rows, action: Row, status: str) -> bool:
    """Say whether a person's word stands behind what an action's row says."""
    return any(s["kind"] == "outcome" and s["status"] == status and _same_call(action, s) for s in rows.suspensions)


def _decided(rows: Rows, action: Row, needs_approval: frozenset[str]) -> Iterator[str]:
    """No effect without a recorded decision on the digest that executed."""
    where = f"{action['run_id']} {action['tool']}"
    suspension = next((s for s in rows.suspensions if s["id"] == action["suspension_id"]), None)
    if suspension is None:
        if action["tool"] in needs_approval:
            yield f"{where}: an effect without any suspension"
        return
    if suspension["status"] != "approved":
        yield f"{where}: an effect, but its suspension is {suspension['status']}"
    preview = Preview.model_validate_json(suspension["preview"])
    executed = digest_of(action["tool"], action["tool_version"], json.loads(action["arguments"]), preview)
    if executed != suspension["digest"]:
        yield f"{where}: executed {executed[:8]}, but {suspension['digest'][:8]} was shown"
    recorded = [
        entry
        for entry in rows.audit
        if entry["suspension_id"] == suspension["id"] and entry["allowed"] and entry["act"] in ("approve", "vote")
    ]
    if not any(entry["digest"] == executed for entry in recorded):
        yield f"{where}: no recorded approval of {executed[:8]}"


def _conversations(rows: Rows) -> Iterator[str]:
    """Exactly one result per tool call in the conversation of every run that went on; nothing else answers."""
    for run in rows.runs:
        open_calls: set[tuple[int, int]] = set()
        for seq, row in enumerate(rows.of(rows.messages, run)):
            message = decode_body(row["body"], row["raw"])
            if row["seq"] != seq:
                yield f"run {run['id']}: seq {row['seq']} where {seq} should be"
            if row["role"] == "tool":
                answered = (row["answers_seq"], row["answers_position"])
                if answered not in open_calls:
                    yield f"run {run['id']}: message {seq} answers {answered}, which is not open"
                open_calls.discard(answered)
                continue
            if open_calls:
                yield f"run {run['id']}: message {seq} ({row['role']}) comes while {sorted(open_calls)} have no result"
            open_calls = {(seq, position) for position in range(len(message.calls))}
        if run["state"] in ("answered", "failed") and open_calls:
            yield f"run {run['id']} is {run['state']}, but {sorted(open_calls)} have no result"


def _amounts(rows: Rows) -> Iterator[str]:
    """Spend, steps and tool calls equal what trace and conversation add up to."""
    for run in rows.runs:
        traced = sum((t["spend_usd"] for t in rows.of(rows.trace, run) if t["spend_usd"] is not None), Decimal(0))
        if traced != run["spend_usd"]:
            yield f"run {run['id']}: spent {run['spend_usd']}, its trace says {traced}"
        # A follow-up's first messages are its parent's, stored in the statement that started it.
        own = [row for row in rows.of(rows.messages, run) if row["created_at"] > run["created_at"]]
        turns = [decode_body(row["body"], row["raw"]) for row in own if row["role"] == "assistant"]
        if len(turns) != run["step"]:
            yield f"run {run['id']}: {run['step']} steps, {len(turns)} turns of the model"
        over = sum(
            '"error": "not_executed_budget"' in json.loads(r["body"])["text"] for r in own if r["role"] == "tool"
        )
        if sum(len(turn.calls) for turn in turns) - over != run["tool_calls"]:
            yield f"run {run['id']}: {run['tool_calls']} tool calls counted, {sum(len(t.calls) for t in turns)} made"


def _ends(rows: Rows) -> Iterator[str]:
    """Every run ends, or waits for a person with a live card; no ended run has an action still intended."""
    for run in rows.runs:
        open_ones = [s for s in rows.of(rows.suspensions, run) if s["status"] == "open"]
        if run["state"] == "running":
            yield f"run {run['id']} is running, and nobody works on it"
        elif run["state"] == "suspended":
            cards = {row["ref"] for row in rows.outbox if row["kind"] == "card" and row["message_ts"]}
            if not any(suspension["id"] in cards for suspension in open_ones):
                yield f"run {run['id']} waits without a card"
        elif open_ones:
            yield f"run {run['id']} is {run['state']}, but {open_ones[0]['id']} is open"
        if run["state"] in ("answered", "failed", "halted"):
            intended = [a["tool"] for a in rows.of(rows.actions, run) if a["state"] == "intended"]
            if intended:
                yield f"run {run['id']} is {run['state']} with {intended} still intended"
        if run["state"] == "answered":
            unknown = [a["tool"] for a in rows.of(rows.actions, run) if a["state"] == "unknown"]
            if unknown:
                yield f"run {run['id']} is answered with {unknown} unknown"
            if not any(o["kind"] == "answer" and o["message_ts"] for o in rows.of(rows.outbox, run)):
                yield f"run {run['id']} is answered, and nobody can read the answer"


def _messages_in_slack(rows: Rows, slack: Simulator) -> Iterator[str]:
    """One message per place, and its last text is true."""
    for place, count in _posts(slack).items():
        if count > 1:
            yield f"{place}: posted {count} times"
    runs = {run["id"]: run for run in rows.runs}
    suspensions = {suspension["id"]: suspension for suspension in rows.suspensions}
    for row in rows.outbox:
        if row["refused_at"] is not None:
            yield f"{row['place']}: Slack refused it ({row['last_error']})"
            continue
        message = slack.message(row["message_channel"] or "", row["message_ts"] or "")
        if message is None:
            yield f"{row['place']}: owed, and no message stands for it"
            continue
        said = " ".join(_words(message.get("blocks", [])))
        if row["kind"] == "card":
            yield from _card_is_true(suspensions[row["ref"]], runs[row["run_id"]], message, said)
            yield from _leads_on(suspensions[row["ref"]], rows.outbox, row["place"], message)
        elif row["kind"] == "progress" and PROGRESS_WORDS.get(runs[row["run_id"]]["state"], "") not in said:
            yield f"{row['place']}: the run is {runs[row['run_id']]['state']}, it says {said!r}"
        elif row["kind"] == "halt":
            run = runs[row["run_id"]]
            current = run["state"] == "halted" and row["ref"] == str(run["halts"]) and not run["followed_up"]
            expired = run["halt_reason"] == "suspension_expired"
            if _button(message, "continue") != current and not (expired and current):
                yield f"{row['place']}: Continue is {'missing' if current else 'still there'}"


def _leads_on(suspension: Row, owed: Sequence[Row], place: str, message: Row) -> Iterator[str]:
    """A card that was replaced leads to the one that replaced it."""
    newer = [row["message_ts"] for row in owed if row["place"] == f"card:{suspension['replaced_by']}"]
    link = f"/p{newer[0].replace('.', '')}" if newer and newer[0] else None
    if suspension["status"] == "replaced" and link and link not in json.dumps(message.get("blocks", [])):
        yield f"{place}: no link to the card that replaced it"


def _posts(slack: Simulator) -> Counter[str]:
    """Count the posts that Slack stored, by the place in their metadata."""
    asked = {
        record["seq"]: record["args"].get("metadata")
        for record in slack.journal.records
        if record["kind"] == "request" and record["method"] == "chat.postMessage"
    }
    counts: Counter[str] = Counter()
    for record in slack.journal.records:
        stored = record["kind"] == "answer" and record["request"] in asked and record.get("answer", {}).get("ok")
        metadata = asked[record["request"]] if stored else None
        if isinstance(metadata, dict):
            counts[str(metadata.get("event_payload", {}).get("place"))] += 1
    return counts


def _card_is_true(suspension: Row, run: Row, message: Row, said: str) -> Iterator[str]:
    name = f"card {suspension['id']} ({suspension['status']}, {suspension['settled_kind']})"
    live = suspension["status"] == "open"
    buttons = ("approve", "decline", "details") if suspension["kind"] == "approval" else ("happened", "did_not_happen")
    shown = [action for action in buttons if _button(message, action)]
    if live and len(shown) < 2:
        yield f"{name}: it waits, and shows only {shown}"
    if not live and shown:
        yield f"{name}: it is over, and still shows {shown}"
    expected = CARD_WORDS.get(suspension["status"])
    if suspension["status"] == "approved":
        expected = SETTLED_WORDS.get(str(suspension["settled_kind"]))
        if expected is None and run["state"] != "running":
            waits = run["state"] == "suspended"
            if not waits:
                yield f"{name}: the run is {run['state']}, and its card still says {said!r}"
    if expected is not None and expected not in said:
        yield f"{name}: should say {expected!r}, says {said!r}"


def _button(message: Row, action: str) -> bool:
    return find_element(message.get("blocks", []), action, None) is not None


def _words(part: object) -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from _words(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "text" and isinstance(value, str):
                yield value
            else:
                yield from _words(value)


def _acked(rows: Rows, slack: Simulator) -> Iterator[str]:
    """No acked event without its run, message or decision."""
    records = slack.journal.records
    envelopes = {r["envelope_id"]: r["envelope"] for r in records if r["kind"] == "envelope"}
    # Over a socket an ack is known or not; over HTTP it is a status.
    acks = [r for r in records if r["kind"] == "ack" and (r["status"] == 200 if "status" in r else r["known"])]
    acked = [(envelope, ack) for ack in acks if (envelope := envelopes[ack["envelope_id"]])]
    bot = slack.workspace.bot_user_id
    stored = {(row["channel_id"], row["ts"]) for row in rows.inbox}
    clicks: Counter[tuple[str, str]] = Counter()
    moves: Counter[tuple[str, str, str]] = Counter()
    for envelope, ack in acked:
        payload = envelope["payload"]
        if envelope["type"] == "events_api":
            event = payload["event"]
            said = event.get("type") in ("app_mention", "message") and not event.get("subtype")
            ours = event.get("user") == bot or event.get("bot_id")
            if said and not ours and _heard(event) and (event["channel"], event["ts"]) not in stored:
                yield f"acked, and not stored: {event['text']!r}"
        elif payload.get("type") == "block_actions":
            values = [a.get("value") for a in payload["actions"] if a["action_id"] in DECISIONS]
            clicks.update((pressed, payload["user"]["id"]) for value in values if (pressed := _pressed(value)))
            acts = [a for a in payload["actions"] if a["action_id"] in RUN_ACTS]
            moves.update(
                (run, act["action_id"], payload["user"]["id"]) for act in acts if (run := _pressed(act["value"], "r"))
            )
        elif payload.get("type") == "view_submission":
            form = payload["view"]["callback_id"]
            decides = form in FORMS or (form == EDIT_FORM and _cleared(ack))
            pressed = _pressed(payload["view"]["private_metadata"]) if decides else None
            clicks.update([(pressed, payload["user"]["id"])] if pressed else [])
        elif envelope["type"] == "slash_commands":
            words = payload["text"].split()
            if len(words) == 2 and words[0] in RUN_ACTS:
                moves.update([(words[1], words[0], payload["user_id"])])
    audited = Counter((entry["suspension_id"], entry["by"]) for entry in rows.audit)
    known = {suspension["id"] for suspension in rows.suspensions}
    for (suspension, user), count in clicks.items():
        if suspension in known and audited[suspension, user] < count:
            yield f"{count} acked clicks of {user} on {suspension}, {audited[suspension, user]} recorded"
    attempts = Counter((entry["run_id"], entry["act"], entry["by"]) for entry in rows.audit)
    for (run_id, act, user), count in moves.items():
        if run_id in {run["id"] for run in rows.runs} and attempts[run_id, act, user] < count:
            yield f"{count} acked acts of {user} to {act} {run_id}, {attempts[run_id, act, user]} recorded"
    said_by = Counter(
        (row["run_id"], json.loads(row["body"])["text"]) for row in rows.messages if row["role"] == "user"
    )
    runs = {run["id"] for run in rows.runs}
    for letter in rows.inbox:
        if letter["handled_at"] is None:
            yield f"letter {letter['id']} ({letter['text']!r}) is stored, and nobody has handled it"
        elif letter["run_id"] in runs and not said_by[letter["run_id"], letter["text"]]:
            yield f"letter {letter['id']} ({letter['text']!r}) is handled, and not in its run's conversation"


def _heard(event: Row) -> bool:
    """Say whether Atlas answers to such a message: mentions in channels, everything in DMs."""
    return event["type"] == "app_mention" or event.get("channel_type") == "im"


def _cleared(ack: Row) -> bool:
    """Say whether a form's ack closed it, over a socket or HTTP."""
    answer = ack["payload"] if "payload" in ack else ack["body"].replace(" ", "")
    if isinstance(answer, str):
        return '"response_action":"clear"' in answer
    return isinstance(answer, dict) and answer.get("response_action") == "clear"


def _pressed(value: str | None, key: str = "s") -> str | None:
    """Return the suspension ("s") or the run ("r") that a button's value names."""
    try:
        return str(json.loads(value or "")[key])
    except (ValueError, KeyError, TypeError):
        return None


def _alerts(rows: Rows, slack: Simulator, channel: str) -> Iterator[str]:
    """No alert lost or doubled; every failure and every unknown outcome has one."""
    owed = [row for row in rows.outbox if row["kind"] == "alert"]
    standing = slack.bot_messages(channel)
    if len(standing) != len(owed):
        yield f"{len(owed)} alerts owed, {len(standing)} messages in the alert channel"
    places = [row["place"] for row in owed]
    for run in rows.runs:
        if run["state"] == "failed" and f"alert:failed:{run['id']}" not in places:
            yield f"run {run['id']} failed without an alert"
        if run["state"] == "halted" and run["halt_reason"] == "outcome_unknown":
            halt = f"{run['id']}:{run['halts']}"
            if not {f"alert:outcome-unknown:{halt}", f"alert:unknown:{halt}"} & set(places):
                yield f"run {run['id']} halted with an unknown outcome, without an alert"
    for suspension in rows.suspensions:
        if suspension["kind"] == "outcome" and f"alert:suspension:{suspension['id']}" not in places:
            yield f"nobody was told that {suspension['id']} asks whether something happened"
