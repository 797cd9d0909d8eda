"""An agent of your own: one read, one write that waits for a click, who may do what, and a model without a provider."""

import re
import sqlite3
from typing import Literal

from pydantic import BaseModel, Field

import core

SHOP = sqlite3.connect("orders.db", isolation_level=None)
SHOP.execute("create table if not exists orders (key text primary key, item text, pieces integer)")
PRICES = {"chairs": 120, "desks": 340, "lamps": 45}


class Item(BaseModel):
    item: Literal["chairs", "desks", "lamps"]


class Order(Item):
    pieces: int = Field(ge=1, le=100)
    model_config = {"json_schema_extra": {"examples": [{"item": "desks", "pieces": 2}]}}  # doctor renders it


class Price(core.Tool[Item]):
    name, description, doing = "price", "Say what one piece costs, in US dollars.", "looking up the price"

    async def execute(self, args: Item, ctx: core.ToolContext) -> dict[str, int]:
        return {"usd_each": PRICES[args.item]}


class PlaceOrder(core.Tool[Order]):
    name, description, doing = "place_order", "Order pieces of one item.", "placing the order"
    writes, approval = True, core.Approval(by="requester")

    def permitted(self, args: Order, scope: core.Scope) -> bool:
        return "orders.place" in scope.permissions

    async def preview(self, args: Order, ctx: core.ToolContext) -> core.Preview:
        total = f"{PRICES[args.item] * args.pieces:,} USD"
        return core.Preview(title=f"Order {args.pieces} {args.item}", totals={"Total": total})

    async def execute(self, args: Order, ctx: core.ToolContext) -> str:
        SHOP.execute("insert into orders values (?, ?, ?)", (ctx.idempotency_key, args.item, args.pieces))
        return f"ordered {args.pieces} {args.item}"

    async def reconcile(self, args: Order, ctx: core.ToolContext) -> core.Happened | core.DidNotHappen:
        found = SHOP.execute("select item from orders where key = ?", (ctx.idempotency_key,)).fetchone()
        return core.Happened(result=f"ordered {args.pieces} {args.item}") if found else core.DidNotHappen()


class Clerk:
    async def respond(
        self, messages: list[core.Message], tools: list[core.ToolSpec], max_output_tokens: int
    ) -> core.ModelReply:
        asked = max(at for at, message in enumerate(messages) if message.role == "user")
        wanted = re.search(r"order (\d+) (\w+)", messages[asked].text, re.IGNORECASE)
        results = [message.text for message in messages[asked:] if message.role == "tool"]
        if wanted is None or len(results) == 2:
            return core.ModelReply(text=f"The order came to this: {results[1]}" if wanted else "Say: order 3 chairs")
        item = {"item": wanted[2].lower()}
        tool, arguments = [("price", item), ("place_order", item | {"pieces": int(wanted[1])})][len(results)]
        return core.ModelReply(calls=(core.ToolCall(id=tool, tool=tool, arguments=arguments),))


async def scopes(user: core.User) -> core.Scope:
    return core.Scope(permissions=frozenset({"orders.place"} if user.email else ()))


agent = core.Agent(
    instructions="Order what people ask for.", tools=[Price(), PlaceOrder()], scopes=scopes, model=Clerk()
)
