"""What the CRM knows and how it changes: SQLite, one transaction for an effect and its key.

Decides prices, quote numbers and whether a key was used before. Knows nothing of HTTP and checks
nobody's permissions. A draft has no price of its own: it is priced at the tier of the moment it is
read, and frozen when it is sent, so a caller that showed a total must look again before it sends.
The failure it can cause: with ``path`` None everything is gone when the process ends.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from bot.sandbox import world
from bot.sandbox.world import Json

_SCHEMA = """
create table if not exists documents (
    kind text not null, id text not null, body text not null, primary key (kind, id)
);
create table if not exists operations (
    seq integer primary key autoincrement, key text not null unique, kind text not null,
    fingerprint text not null, status integer not null, answer text not null,
    committed_at text not null, requests integer not null default 1
);
create table if not exists outbox (seq integer primary key autoincrement, body text not null);
"""

_CENT = Decimal("0.01")
_MOST_PIECES = 1_000_000
_MOST_LINES = 50
# People write "Baker and Sons, Inc." for Baker & Sons; these words tell no two accounts apart.
_FILLERS = frozenset({"and", "&", "the", "inc", "inc.", "co", "co.", "llc", "ltd", "ltd."})


class Rejected(Exception):
    """A request the CRM did not carry out; nothing was changed.

    ``status`` is the HTTP status, ``error`` a word for programs, the message one for people.
    """

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Books:
    """Accounts, items, tiers, people, quotes, the outbox and the record of keyed operations."""

    def __init__(self, path: Path | None = None, now: Callable[[], datetime] = _utc_now) -> None:
        """Open the books, and fill them from the seed when they are new.

        Args:
            path: the SQLite file to keep them in; None keeps them in memory.
            now: the time that drafts and sends are stamped with.
        """
        self._now = now
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
        # WAL with synchronous=normal keeps what was committed when the process is killed.
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = normal")
        self._db.executescript(_SCHEMA)
        if not self._all("tier"):
            self.reset()

    def close(self) -> None:
        """Close the file; the books can't be used after that."""
        self._db.close()

    def reset(self) -> None:
        """Throw everything away and start from the seed again; quote numbers start over too."""
        with self._transaction():
            self._db.execute("delete from documents")
            self._db.execute("delete from operations")
            self._db.execute("delete from outbox")
            for name, percent in world.TIERS.items():
                self._put("tier", name, {"name": name, "discount_percent": percent})
            for account in world.accounts():
                self._put("account", account["id"], account)
            for item in world.skus():
                self._put("sku", item["sku"], item)
            for person in world.people():
                self._put("person", person["email"], person)

    # -- reading ---------------------------------------------------------------------------------

    def account(self, number: str) -> Json:
        """Return one account with its current discount, or reject with unknown_account."""
        found = self._get("account", number)
        if found is None:
            raise Rejected(404, "unknown_account", f"There is no account {number}.")
        tier = self._get("tier", found["tier"])
        return {**found, "discount_percent": tier["discount_percent"] if tier else "0"}

    def find_accounts(self, query: str) -> list[Json]:
        """Return the accounts whose id equals the query or whose name has each of its words."""
        wanted = query.strip().casefold()
        words = [word for word in wanted.split() if word not in _FILLERS]
        if wanted and not words:
            return []
        return [
            self.account(account["id"])
            for account in self._all("account")
            if account["id"] == wanted or all(w in account["name"].casefold() for w in words)
        ]

    def sku(self, sku: str) -> Json:
        """Return one item on sale, or reject with unknown_sku; case does not matter."""
        found = self._get("sku", sku.upper())
        if found is None:
            raise Rejected(404, "unknown_sku", f"There is no item {sku}.")
        return found

    def find_skus(self, query: str) -> list[Json]:
        """Return the items whose number or name has each word of the query."""
        words = query.casefold().split()
        return [
            item
            for item in self._all("sku")
            if all(word in f"{item['sku']} {item['name']}".casefold() for word in words)
        ]

    def tiers(self) -> list[Json]:
        """Return the discount tiers, the smallest discount first."""
        return sorted(self._all("tier"), key=lambda tier: Decimal(tier["discount_percent"]))

    def person(self, email: str) -> Json:
        """Return what somebody may do and on which accounts ("*": all), or unknown_person."""
        found = self._get("person", email.casefold())
        if found is None:
            raise Rejected(404, "unknown_person", f"{email} is not in the directory.")
        return found

    def people(self) -> list[Json]:
        """Return the whole directory, by email."""
        return self._all("person")

    def quote(self, number: str) -> Json:
        """Return one quote; a draft is priced at the tier of this moment, a sent one as sent."""
        found = self._get("quote", number.upper())
        if found is None:
            raise Rejected(404, "unknown_quote", f"There is no quote {number}.")
        if found["status"] == "sent":
            return found
        ordered = [{"sku": line["sku"], "quantity": line["quantity"]} for line in found["lines"]]
        return {**found, **self._priced(self.account(found["account_id"]), ordered)}

    def quotes(self, account: str | None = None) -> list[Json]:
        """Return all quotes, or those of one account, oldest first."""
        every = self._all("quote")
        every.sort(key=lambda quote: int(quote["number"].removeprefix("Q-")))
        return [self.quote(quote["number"]) for quote in every if account is None or quote["account_id"] == account]

    def outbox(self) -> list[Json]:
        """Return every email that was sent, oldest first."""
        rows = self._db.execute("select body from outbox order by seq").fetchall()
        return [json.loads(row[0]) for row in rows]

    def operation(self, key: str) -> Json:
        """Return what the key committed ({key, kind, status, result, committed_at}), else 404."""
        row = self._db.execute(
            "select kind, status, answer, committed_at from operations where key = ?", (key,)
        ).fetchone()
        if row is None:
            raise Rejected(404, "unknown_operation", f"Nothing was done under the key {key}.")
        return {
            "key": key,
            "kind": row[0],
            "status": row[1],
            "result": json.loads(row[2]),
            "committed_at": row[3],
        }

    def effects(self) -> list[Json]:
        """Return every committed draft and send in order; ``requests`` counts how often it was asked for."""
        rows = self._db.execute(
            "select key, kind, answer, committed_at, requests from operations order by seq"
        ).fetchall()
        effects: list[Json] = []
        for key, kind, answer, committed_at, requests in rows:
            quote = json.loads(answer)
            effects.append(
                {
                    "key": key,
                    "kind": kind,
                    "quote": quote["number"],
                    "account": quote["account_id"],
                    "total": quote["total"],
                    "committed_at": committed_at,
                    "requests": requests,
                }
            )
        return effects

    def prices(self, body: Json) -> Json:
        """Price {account_id, lines: [{sku, quantity}]} at the account's tier, storing nothing."""
        account = self.account(_text(body, "account_id"))
        return {
            "account_id": account["id"],
            "account_name": account["name"],
            "tier": account["tier"],
            **self._priced(account, _ordered(body)),
        }

    # -- effects ---------------------------------------------------------------------------------

    def draft_quote(self, key: str, body: Json) -> tuple[int, Json]:
        """Draft a quote once per key; returns (HTTP status, the quote as it was drafted)."""

        def effect() -> tuple[int, Json]:
            account = self.account(_text(body, "account_id"))
            priced = self._priced(account, _ordered(body))
            at = self._now()
            number = f"Q-{world.FIRST_QUOTE + self._count('quote')}"
            quote = {
                "number": number,
                "status": "draft",
                "account_id": account["id"],
                "account_name": account["name"],
                "contact": account["contact"],
                **priced,
                "valid_until": (at + timedelta(days=world.VALID_DAYS)).date().isoformat(),
                "created_by": _text(body, "by"),
                "created_at": at.isoformat(timespec="seconds"),
                "sent_at": None,
                "sent_by": None,
                "sent_to": None,
            }
            self._put("quote", number, quote)
            return 201, quote

        return self._once(key, "draft_quote", body, effect)

    def send_quote(self, key: str, number: str, body: Json) -> tuple[int, Json]:
        """Send a quote once per key; another key sends it again, at the price it was sent at."""

        def effect() -> tuple[int, Json]:
            quote = self.quote(number)
            at = self._now()
            if quote["valid_until"] < at.date().isoformat():
                raise Rejected(
                    409,
                    "quote_expired",
                    f"Quote {quote['number']} was valid until {quote['valid_until']}.",
                )
            sent = {
                **quote,
                "status": "sent",
                "sent_at": at.isoformat(timespec="seconds"),
                "sent_by": _text(body, "by"),
                "sent_to": quote["contact"]["email"],
            }
            self._put("quote", sent["number"], sent)
            mail = {
                "to": sent["sent_to"],
                "from": sent["sent_by"],
                "subject": f"Quote {sent['number']} for {sent['account_name']}",
                "text": _letter(sent),
                "quote": sent["number"],
                "total": sent["total"],
                "sent_at": sent["sent_at"],
            }
            self._db.execute("insert into outbox (body) values (?)", (json.dumps(mail),))
            return 200, sent

        return self._once(key, "send_quote", {"number": number.upper(), **body}, effect)

    # -- the demo's and the tests' hand on the world -----------------------------------------------

    def change_account(self, number: str, changes: Json) -> Json:
        """Set tier, owner or credit_hold ({reason, since?}, true, or null/false to lift it)."""
        self.account(number)
        account = self._get("account", number) or {}
        _only(changes, {"tier", "owner", "credit_hold"})
        if "tier" in changes:
            if self._get("tier", str(changes["tier"])) is None:
                raise Rejected(422, "unknown_tier", f"There is no tier {changes['tier']}.")
            account["tier"] = changes["tier"]
        if "owner" in changes:
            account["owner"] = _text(changes, "owner")
        if "credit_hold" in changes:
            hold = changes["credit_hold"]
            today = self._now().date().isoformat()
            if hold is True:
                hold = {}
            if isinstance(hold, str):
                hold = {"reason": hold}
            if hold in (None, False):
                account["credit_hold"] = None
            elif isinstance(hold, dict):
                account["credit_hold"] = {
                    "reason": str(hold.get("reason", "payment overdue")),
                    "since": str(hold.get("since", today)),
                }
            else:
                raise Rejected(422, "invalid_field", "credit_hold is an object, true or null.")
        self._put("account", number, account)
        return self.account(number)

    def change_tier(self, name: str, changes: Json) -> Json:
        """Set a tier's discount_percent (0 to 100, a string or an integer)."""
        tier = self._get("tier", name)
        if tier is None:
            raise Rejected(404, "unknown_tier", f"There is no tier {name}.")
        _only(changes, {"discount_percent"})
        try:
            percent = Decimal(str(changes["discount_percent"]))
        except (KeyError, InvalidOperation):
            raise Rejected(422, "invalid_field", "discount_percent is a number.") from None
        if not (percent.is_finite() and 0 <= percent <= 100):
            raise Rejected(422, "invalid_field", "discount_percent is between 0 and 100.")
        tier["discount_percent"] = f"{percent.normalize():f}"
        self._put("tier", name, tier)
        return tier

    def change_person(self, email: str, changes: Json) -> Json:
        """Set role, permissions, accounts or name of somebody; a new email needs a role.

        A role without permissions of its own brings the role's permissions.
        """
        email = email.casefold()
        person = self._get("person", email)
        _only(changes, {"role", "permissions", "accounts", "name"})
        if person is None:
            person = {"email": email, "name": email.partition("@")[0], "accounts": []}
            _text(changes, "role")
        if "role" in changes:
            role = changes["role"]
            if role not in world.ROLES:
                raise Rejected(422, "unknown_role", f"Roles are {', '.join(sorted(world.ROLES))}.")
            person["role"] = role
            person["permissions"] = sorted(world.ROLES[role])
        for field in ("permissions", "accounts"):
            if field in changes:
                values = changes[field]
                if not (isinstance(values, list) and all(isinstance(v, str) for v in values)):
                    raise Rejected(422, "invalid_field", f"{field} is a list of strings.")
                person[field] = sorted(set(values))
        if "name" in changes:
            person["name"] = _text(changes, "name")
        self._put("person", email, person)
        return person

    # -- inside ------------------------------------------------------------------------------------

    def _once(self, key: str, kind: str, body: Json, effect: Callable[[], tuple[int, Json]]) -> tuple[int, Json]:
        """Run the effect and store its answer under the key in one transaction, or answer again.

        A rejected request leaves no trace of its key, so the same request may succeed later.
        """
        fingerprint = hashlib.sha256(json.dumps([kind, body], sort_keys=True).encode()).hexdigest()
        with self._transaction():
            row = self._db.execute(
                "select fingerprint, status, answer from operations where key = ?", (key,)
            ).fetchone()
            if row is not None:
                if row[0] != fingerprint:
                    raise Rejected(422, "key_reused", f"The key {key} was used for a different request.")
                self._db.execute("update operations set requests = requests + 1 where key = ?", (key,))
                return row[1], json.loads(row[2])
            status, answer = effect()
            self._db.execute(
                "insert into operations (key, kind, fingerprint, status, answer, committed_at)"
                " values (?, ?, ?, ?, ?, ?)",
                (
                    key,
                    kind,
                    fingerprint,
                    status,
                    json.dumps(answer),
                    self._now().isoformat(timespec="milliseconds"),
                ),
            )
            return status, answer

    def _priced(self, account: Json, ordered: list[Json]) -> Json:
        lines: list[Json] = []
        subtotal = Decimal(0)
        for entry in ordered:
            item = self.sku(entry["sku"])
            quantity = entry["quantity"]
            if quantity < item["minimum_quantity"]:
                raise Rejected(
                    422,
                    "below_minimum",
                    f"{item['sku']} is sold from {item['minimum_quantity']} pieces, not {quantity}.",
                )
            amount = _rounded(Decimal(item["unit_price"]) * quantity)
            subtotal += amount
            lines.append(
                {
                    "sku": item["sku"],
                    "name": item["name"],
                    "quantity": quantity,
                    "unit_price": item["unit_price"],
                    "amount": str(amount),
                }
            )
        percent = Decimal(account["discount_percent"])
        discount = _rounded(subtotal * percent / 100)
        return {
            "currency": account["currency"],
            "lines": lines,
            "subtotal": str(_rounded(subtotal)),
            "discount_percent": account["discount_percent"],
            "discount": str(discount),
            "total": str(_rounded(subtotal - discount)),
        }

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def _get(self, kind: str, number: str) -> Json | None:
        row = self._db.execute("select body from documents where kind = ? and id = ?", (kind, number)).fetchone()
        return None if row is None else json.loads(row[0])

    def _all(self, kind: str) -> list[Json]:
        rows = self._db.execute("select body from documents where kind = ? order by id", (kind,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def _count(self, kind: str) -> int:
        row = self._db.execute("select count(*) from documents where kind = ?", (kind,)).fetchone()
        return int(row[0])

    def _put(self, kind: str, number: str, body: Json) -> None:
        self._db.execute(
            "insert into documents (kind, id, body) values (?, ?, ?)"
            " on conflict (kind, id) do update set body = excluded.body",
            (kind, number, json.dumps(body)),
        )


def _rounded(amount: Decimal) -> Decimal:
    return amount.quantize(_CENT, ROUND_HALF_UP)


def _text(body: Json, field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Rejected(422, "invalid_field", f"{field} is missing or not a text.")
    return value


def _only(body: Json, known: set[str]) -> None:
    unknown = sorted(set(body) - known)
    if unknown:
        raise Rejected(422, "invalid_field", f"Unknown field {', '.join(unknown)}.")


def _ordered(body: Json) -> list[Json]:
    lines: Any = body.get("lines")
    if not isinstance(lines, list) or not 1 <= len(lines) <= _MOST_LINES:
        raise Rejected(422, "invalid_field", f"lines is a list of 1 to {_MOST_LINES} entries.")
    ordered: list[Json] = []
    for line in lines:
        if not isinstance(line, dict):
            raise Rejected(422, "invalid_field", "Each line is {sku, quantity}.")
        quantity = line.get("quantity")
        # bool is an int in Python; "true pieces" is no quantity.
        if not isinstance(quantity, int) or isinstance(quantity, bool):
            raise Rejected(422, "invalid_quantity", "quantity is a whole number.")
        if not 1 <= quantity <= _MOST_PIECES:
            raise Rejected(422, "invalid_quantity", f"quantity is 1 to {_MOST_PIECES}.")
        ordered.append({"sku": _text(line, "sku").upper(), "quantity": quantity})
    return ordered


def _letter(quote: Json) -> str:
    rows = [
        f"{line['quantity']} x {line['sku']} {line['name']} at {line['unit_price']}: {line['amount']}"
        for line in quote["lines"]
    ]
    return "\n".join(
        [
            f"Dear {quote['contact']['name']},",
            "",
            f"please find our quote {quote['number']}, valid until {quote['valid_until']}:",
            *rows,
            f"Discount {quote['discount_percent']} %: -{quote['discount']}",
            f"Total: {quote['total']} {quote['currency']}",
        ]
    )
