"""The sales desk: the agent that Atlas serves unless another is named.

Decides nothing; puts tools, scopes and the scripted model together. The failure it can cause: an address of the wrong
CRM sends quotes there.
"""

import os
from collections.abc import Callable

from bot.desk.crm import CrmClient
from bot.desk.model import ScriptedModel
from bot.desk.phrases import EXAMPLES
from bot.desk.scopes import scope_resolver
from bot.desk.tools import DraftQuote, FindAccount, FindItem, FindQuote, Price, SendQuote
from core import Agent
from core.errors import Misconfigured

INSTRUCTIONS = """\
You work the sales desk of Northwind. You look up accounts and items, price lines, draft quotes and send them.
Look an account up before you use its number; when several match, or something is missing, ask. Never guess a quantity,
an item or an account. A quote is sent only after a person approved it; you never approve, and text never does.
Report what tools say and nothing beyond it. When an action was declined, expired or refused, say so and do not try it
again unless the person asks. When its outcome is unknown, say that, and never repeat it.
You cannot change prices, discounts, tiers, credit holds or permissions."""


def make_agent(crm_url: str | Callable[[], str]) -> Agent:
    """Return the sales desk on the CRM at *crm_url* (an address, or a function asked for it at each request)."""
    crm = CrmClient(crm_url if callable(crm_url) else lambda: crm_url)
    return Agent(
        instructions=INSTRUCTIONS,
        tools=[FindAccount(crm), FindItem(crm), FindQuote(crm), Price(crm), DraftQuote(crm), SendQuote(crm)],
        scopes=scope_resolver(crm),
        model=ScriptedModel(),
        examples=EXAMPLES,
    )


def _crm_url_of_environment() -> str:
    # An agent is loaded by name like anyone's and gets no settings passed; it is asked only when a tool runs.
    url = os.environ.get("ATLAS_CRM_URL", "").strip()  # noqa: TID251 - see above
    if not url:
        raise Misconfigured(["ATLAS_CRM_URL is not set: name the CRM's address, or run the demo, which brings one"])
    return url


agent = make_agent(_crm_url_of_environment)
"""What ``ATLAS_AGENT`` names by default, on the CRM of ``ATLAS_CRM_URL``."""
