"""The tree of errors: who has to act on each.

Decides: which branch a failure belongs to. Does not: format texts for Slack (bot does).
asyncpg's and Slack's own errors never cross their package; they are turned into one of these at its edge.
A suspension, a halt and a refusal are return values, never errors: a tool's own ``except`` could catch them.
"""


class AtlasError(Exception):
    """Root of everything Atlas raises on purpose."""


class Misconfigured(AtlasError):
    """A setting, an agent or a policy that cannot work; the start stops with exit code 2.

    *problems* lists everything that is wrong, each naming its fix.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class Conflict(AtlasError):
    """Somebody else moved first: an expected race. Logged at info, never retried blindly."""


class ClaimLost(Conflict):
    """The worker's claim is gone (reaped, released); it stops and touches nothing more."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"the claim on run {run_id} is lost")


class NewsArrived(Conflict):
    """The run changed since it was read (a message, a decision, a stop); compute the next act again."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} has news; the next act is computed again")


class CouldNotCheck(AtlasError):
    """A directory, preview, guard, policy or scope could not be asked. Nothing was done; trying again is safe."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"could not check {what}: {why}")


class NoSuchGroup(CouldNotCheck):
    """A policy names a user group that the workspace does not have: asking again tells the same."""

    def __init__(self, handle: str) -> None:
        super().__init__(f"the user group @{handle}", "the workspace has none of this handle")


class InvalidArguments(AtlasError):
    """An editor's arguments do not load. Nothing was changed; *why* goes back onto the form."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class StoreUnavailable(AtlasError):
    """PostgreSQL cannot be reached or refuses work just now; the same call may succeed later."""


class ToolFailed(AtlasError):
    """Raised by a tool's ``execute``: certainly nothing happened. The reason becomes the model's error result."""

    def __init__(self, reason: str) -> None:
        # Engineers raise it with whatever they have at hand.
        self.reason = str(reason or "").strip() or "the tool gave no reason"
        super().__init__(self.reason)


class ModelError(AtlasError):
    """The model gave no usable reply."""


class ModelUnavailable(ModelError):
    """Rate limit, 5xx or timeout: worth another try.

    *retry_after_s*: seconds the provider asked for, if it did. *charged*: the call may have been billed.
    """

    def __init__(self, words: str, *, retry_after_s: float | None = None, charged: bool = False) -> None:
        self.words = words
        self.retry_after_s = retry_after_s
        self.charged = charged
        super().__init__(words)


class ModelRefused(ModelError):
    """Any other provider error; *words* are the provider's own. Trying the same again is useless."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


class InvariantBroken(AtlasError):
    """A defect of ours: rows that no move can have written. The run fails; the alert carries the text."""


WORDS_LIMIT = 500


def words_of(error: BaseException) -> str:
    """Return an error's words for people and the model: never empty, storable everywhere, of bounded length."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  somebody else's __str__ may be the next thing to break
        words = ""
    return shortened(words) or type(error).__name__


def shortened(words: str) -> str:
    """Return words of somebody else's for people: storable everywhere, of bounded length, visibly cut."""
    kept = words[: WORDS_LIMIT + 1].encode("utf-8", "replace").decode().replace("\0", "\ufffd").strip()
    return kept if len(kept) <= WORDS_LIMIT else f"{kept[:WORDS_LIMIT]}…"
