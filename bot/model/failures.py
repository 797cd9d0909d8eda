"""Provider errors, sorted by what can be done about them.

Decides: which are worth another try, which may have been billed, and the words people see. Does not: try again. The
failure it can cause: a billed call taken for a free one would let a run spend more than its budget; in doubt it counts
as billed.
"""

import logging
import math

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)

from bot.model.replay import visible
from core.errors import ModelRefused, ModelUnavailable

log = logging.getLogger(__name__)

# Statuses after which the provider may have worked, and billed, although we got no reply.
LATE_STATUSES = frozenset({408, 499, 504, 524})
WORDS_LIMIT = 500


def sorted_error(error: Exception) -> ModelUnavailable | ModelRefused:
    """Sort a failed request: worth another try (and perhaps billed), or not."""
    words = _words(error)
    if isinstance(error, ModelQuotaExceededError):
        return ModelRefused(words)  # comes as 429 too, but waiting does not fill an account
    if isinstance(error, ModelConnectionError):
        unsent = error.phase in ("pool", "connect")
        return ModelUnavailable(words, retry_after_s=_seconds(error), charged=not unsent)
    if isinstance(error, ModelRequestTimeout):
        return ModelUnavailable(words, charged=True)
    if isinstance(error, ModelHTTPError):
        status = error.status_code
        if status in LATE_STATUSES or status == 429 or status >= 500:
            return ModelUnavailable(words, retry_after_s=_seconds(error), charged=status in LATE_STATUSES)
        return ModelRefused(words)
    if isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError):
        return ModelUnavailable(words, retry_after_s=_seconds(error), charged=True)
    undecoded = isinstance(error, ModelAPIError) and isinstance(error.__cause__, ValueError)
    if isinstance(error, ModelAPIError | ContentFilterError | UserError) and not undecoded:
        return ModelRefused(words)
    # An answer came, and was perhaps paid for, but it cannot be read: a cut body, a proxy's page. The SDKs check
    # nothing and trip over such answers with errors of any type, so the traceback is kept for whoever looks.
    log.warning("a provider's answer could not be read", exc_info=error)
    return ModelUnavailable(f"the provider's answer cannot be read: {words}", charged=True)


def _words(error: Exception) -> str:
    """Return the provider's own words, with the HTTP status if there is one."""
    found: object = getattr(error, "body", None)
    for key in ("error", "message"):
        if isinstance(found, dict):
            found = found.get(key, found)
    text = found if isinstance(found, str) and found.strip() else str(error) or type(error).__name__
    status = f"HTTP {error.status_code}: " if isinstance(error, ModelHTTPError) else ""
    shown = visible(status + text.strip())
    return shown if len(shown) <= WORDS_LIMIT else shown[:WORDS_LIMIT] + "…"


def _seconds(error: ModelAPIError) -> float | None:
    wait = error.retry_after
    return wait if wait is not None and math.isfinite(wait) and wait >= 0 else None
