"""What the sales desk can do: find accounts, items and quotes, price, draft a quote, send it.

Decides who may (permissions and accounts of the scope), what a person is shown before a quote goes out, and when the
world says no (a credit hold). Does not compute prices: the CRM does, and a draft's total follows the account's
discount until it is sent. The failure it can cause: a preview that shows anything but the CRM's facts of that moment.
"""

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from bot.desk.crm import CrmClient, CrmRefused, CrmTrouble, CrmUnreachable, Json
from core import Approval, DidNotHappen, Happened, Preview, Refused, Scope, Tool, ToolContext, ToolFailed, Unknown

_MOST_SHOWN = 10


class _Arguments(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FindAccountArgs(_Arguments):
    """What is known of the account."""

    query: str = Field(min_length=1, max_length=200, description="Words of the account's name, or its number.")


class FindItemArgs(_Arguments):
    """What is known of the item."""

    query: str = Field(min_length=1, max_length=200, description="Words of the item's name, or its SKU.")


class FindQuoteArgs(_Arguments):
    """One quote by number, or the quotes of one account."""

    quote_id: str | None = Field(default=None, max_length=40, description="Such as Q-1042.")
    account_id: str | None = Field(default=None, max_length=40, description="Such as 4471.")


class Line(_Arguments):
    """One line of a quote."""

    sku: str = Field(min_length=1, max_length=40, description="Such as SKU-4411.")
    quantity: int = Field(ge=1, le=1_000_000, description="Pieces.")


class PriceArgs(_Arguments):
    """What to price, and for whom."""

    account_id: str = Field(min_length=1, max_length=40, description="Such as 4471.")
    lines: list[Line] = Field(min_length=1, max_length=50)


class DraftQuoteArgs(PriceArgs):
    """What to quote, and for whom."""


class SendQuoteArgs(_Arguments):
    """The drafted quote, and the account that it is for."""

    quote_id: str = Field(min_length=1, max_length=40, description="Such as Q-1042.")
    account_id: str = Field(min_length=1, max_length=40, description="The account of the quote, such as 4471.")


ArgsT = TypeVar("ArgsT", bound=BaseModel)


def money(amount: str, currency: str) -> str:
    """Return an amount such as "8730.00" as people write it: 8,730.00 USD."""
    whole, _, cents = amount.partition(".")
    return f"{int(whole):,}.{cents or '00'} {currency}"


def _moment(stamp: str) -> str:
    """Return the CRM's "2026-11-29T15:11:14+00:00" as people write it."""
    return f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _their_account(scope: Scope, account_id: str) -> bool:
    accounts = scope.attributes.get("accounts")
    return isinstance(accounts, list) and ("*" in accounts or account_id in accounts)


class _CrmTool(Tool[ArgsT], Generic[ArgsT]):
    timeout_s = 6.0
    permission = ""

    def __init__(self, crm: CrmClient) -> None:
        self.crm = crm


class _Read(_CrmTool[ArgsT], Generic[ArgsT]):
    def permitted(self, args: ArgsT, scope: Scope) -> bool:
        """Look at anything, if looking is permitted at all."""
        return self.permission in scope.permissions


class _Write(_CrmTool[ArgsT], Generic[ArgsT]):
    """A write that the CRM can be asked about by its key, which it also honours.

    ``idempotent_by_key`` stays False all the same: a request that is still on its way could land after the guard
    refused a second attempt, so "did not happen" is believed only when none can be on its way any more.
    """

    writes = True

    async def _write(self, ctx: ToolContext, *path: str, body: Json) -> Json:
        """Post with the call's key. A refusal or no connection means that nothing happened; the rest is unknown."""
        try:
            by = ctx.user.email or ctx.user.user_id
            return await self.crm.post(*path, body={**body, "by": by}, key=ctx.idempotency_key)
        except CrmRefused as refusal:
            raise ToolFailed(refusal.message) from refusal
        except CrmUnreachable as trouble:
            raise ToolFailed(str(trouble)) from trouble

    async def reconcile(self, args: ArgsT, ctx: ToolContext) -> Happened | DidNotHappen | Unknown:
        """Ask the CRM what it did under this call's key."""
        try:
            operation = await self.crm.get("operations", ctx.idempotency_key)
        except CrmRefused as refusal:
            if refusal.error == "unknown_operation":
                return DidNotHappen()
            return Unknown(reason=refusal.message)
        except (CrmUnreachable, CrmTrouble) as trouble:
            return Unknown(reason=str(trouble))
        return Happened(result=operation["result"])


class FindAccount(_Read[FindAccountArgs]):
    """Accounts by name or number, with tier, discount, contact and credit hold."""

    name = "find_account"
    description = "Find customer accounts by words of the name or by number: tier, discount, contact, credit hold."
    doing = "looking up the account"
    permission = "accounts.read"

    async def execute(self, args: FindAccountArgs, ctx: ToolContext) -> Any:
        """Return {accounts: the first ten, found: how many there are}."""
        found = (await self.crm.get("accounts", query=args.query))["accounts"]
        return {"accounts": found[:_MOST_SHOWN], "found": len(found)}


class FindItem(_Read[FindItemArgs]):
    """Items on sale by name or SKU."""

    name = "find_item"
    description = "Find items on sale by words of the name or by SKU: unit price, least quantity, stock."
    doing = "looking up the item"
    permission = "prices.read"

    async def execute(self, args: FindItemArgs, ctx: ToolContext) -> Any:
        """Return {items: the first ten, found: how many there are}."""
        found = (await self.crm.get("skus", query=args.query))["skus"]
        return {"items": found[:_MOST_SHOWN], "found": len(found)}


class FindQuote(_Read[FindQuoteArgs]):
    """Quotes by number or by account."""

    name = "find_quote"
    description = "Look at one quote by its number, or at the latest quotes of an account: lines, total, status."
    doing = "looking up the quote"
    permission = "quotes.read"

    async def execute(self, args: FindQuoteArgs, ctx: ToolContext) -> Any:
        """Return {quotes: the latest ten, found: how many there are}."""
        if args.quote_id is not None:
            try:
                quote = await self.crm.get("quotes", args.quote_id)
            except CrmRefused as refusal:
                if refusal.error != "unknown_quote":
                    raise
                return {"quotes": [], "found": 0}
            return {"quotes": [quote], "found": 1}
        query = {} if args.account_id is None else {"account": args.account_id}
        found = (await self.crm.get("quotes", **query))["quotes"]
        return {"quotes": found[-_MOST_SHOWN:], "found": len(found)}


class Price(_Read[PriceArgs]):
    """What lines would cost an account today."""

    name = "price"
    description = "Price lines for an account at its discount of today. Stores nothing."
    doing = "pricing"
    permission = "prices.read"

    async def execute(self, args: PriceArgs, ctx: ToolContext) -> Any:
        """Return the priced lines with subtotal, discount and total."""
        return await self.crm.post("prices", body=args.model_dump())


class DraftQuote(_Write[DraftQuoteArgs]):
    """Draft a quote; nobody outside sees it."""

    name = "draft_quote"
    description = "Draft a quote for an account. Nothing is sent; the number is needed to send it."
    doing = "drafting the quote"

    def permitted(self, args: DraftQuoteArgs, scope: Scope) -> bool:
        """Draft for one's own accounts."""
        return "quotes.draft" in scope.permissions and _their_account(scope, args.account_id)

    async def execute(self, args: DraftQuoteArgs, ctx: ToolContext) -> Any:
        """Return the drafted quote, with its number."""
        return await self._write(ctx, "quotes", body=args.model_dump())


class SendQuote(_Write[SendQuoteArgs]):
    """Send a drafted quote to the customer; the requester approves."""

    name = "send_quote"
    description = "Send a drafted quote to the customer's contact by email. A person approves it first."
    approval = Approval(by="requester")
    doing = "sending the quote"

    def permitted(self, args: SendQuoteArgs, scope: Scope) -> bool:
        """Send for one's own accounts."""
        return "quotes.send" in scope.permissions and _their_account(scope, args.account_id)

    async def preview(self, args: SendQuoteArgs, ctx: ToolContext) -> Preview:
        """Show what the customer would get, as the CRM has it at this moment.

        Raises: ToolFailed when there is no such quote; what could not be asked raises as the client says.
        """
        try:
            quote = await self.crm.get("quotes", args.quote_id)
        except CrmRefused as refusal:
            raise ToolFailed(refusal.message) from refusal
        currency = quote["currency"]
        fields = {
            "Customer": f"{quote['account_name']} ({quote['account_id']})",
            "Goes to": f"{quote['contact']['name']}, {quote['contact']['email']}",
            "Discount": f"{quote['discount_percent']} %",
            "Valid until": quote["valid_until"],
        }
        if quote["status"] == "sent":
            fields["Already sent"] = f"{_moment(quote['sent_at'])} to {quote['sent_to']}"
        return Preview(
            title=f"Send quote {quote['number']} to {quote['account_name']}",
            fields=fields,
            lines=[
                {
                    "SKU": line["sku"],
                    "Item": line["name"],
                    "Qty": f"{line['quantity']:,}",
                    "Unit price": money(line["unit_price"], currency),
                    "Amount": money(line["amount"], currency),
                }
                for line in quote["lines"]
            ],
            totals={
                "Subtotal": money(quote["subtotal"], currency),
                "Discount": f"-{money(quote['discount'], currency)}",
                "Total": money(quote["total"], currency),
            },
        )

    async def guard(self, args: SendQuoteArgs, ctx: ToolContext) -> Refused | None:
        """Refuse an unknown quote, one of another account, and an account on credit hold."""
        try:
            quote = await self.crm.get("quotes", args.quote_id)
            account = await self.crm.get("accounts", quote["account_id"])
        except CrmRefused as refusal:
            return Refused(reason=refusal.message)
        if quote["account_id"] != args.account_id:
            # The permission was judged on the account in the arguments, so it has to be the quote's.
            return Refused(reason=f"quote {args.quote_id} is for account {quote['account_id']}, not {args.account_id}")
        hold = account["credit_hold"]
        if hold is not None:
            return Refused(reason=f"account on credit hold since {hold['since']}: {hold['reason']}")
        return None

    async def execute(self, args: SendQuoteArgs, ctx: ToolContext) -> Any:
        """Return the quote as it was sent, with sent_to and sent_at."""
        return await self._write(ctx, "quotes", args.quote_id, "send", body={})
