"""The sandbox CRM: an HTTP service of its own that stands in for a company's sales system.

It decides what a quote is, what it costs, and whether an idempotency key was seen before. It does
not decide who may do what or whether an account is good for its money: it publishes permissions
and credit holds, and trusts its callers to look, as most real systems of this kind do. The failure
it can cause: a caller that forgets the key, or mints a new one for a retry, gets a second effect.
"""

from bot.sandbox.faults import FAULT_KINDS, Fault
from bot.sandbox.service import Crm

__all__ = ["FAULT_KINDS", "Crm", "Fault"]
