"""External selects: what a person typed goes to the app as block_suggestion, its answer is what they may choose from.

Decides which options were offered to whom, where. It keeps them for as long as it runs and opens nothing. Failure it
can cause: in HTTP mode Slack asks a URL of its own (the manifest's message_menu_options_url); here it is the app's one.
Source: Slack, "Select menu with external data source" and "block_suggestion payload".
"""

from typing import Any

from bot.simulator.block_elements import check_options
from bot.simulator.delivery import Dispatch, Interaction
from bot.simulator.findings import Findings
from bot.simulator.payloads import Payload, Payloads
from bot.simulator.workspace import Person

Element = dict[str, Any]
Option = dict[str, Any]
KINDS = ("external_select", "multi_external_select")
MIN_QUERY = 3
MOST = 100


class Suggestions:
    """What the app suggested, by person and by element (of a message, a view or Home)."""

    def __init__(self, payloads: Payloads, dispatch: Dispatch) -> None:
        self._payloads = payloads
        self._dispatch = dispatch
        self._offered: dict[tuple[str, str, str, str], list[Option]] = {}

    def ask(
        self, person: Person, holder: str, block_id: str, element: Element, value: str, where: Payload
    ) -> Interaction:
        """Send what was typed; `offered` knows the options once the interaction is acked.

        Its `error` says what was wrong with the answer; *where* is the payload's container and what it contains.
        """
        key = (person.id, holder, block_id, str(element["action_id"]))

        def answered(interaction: Interaction, answer: Payload) -> None:
            try:
                self._offered.setdefault(key, []).extend(suggested(answer))
            except ValueError as error:
                # Slack's client shows an empty list and says that loading failed
                interaction.error = f"invalid_response:{error}"

        payload = self._payloads.block_suggestion(person, str(element["action_id"]), block_id, value)
        return self._dispatch.interaction("block_suggestion", person.id, {**payload, **where}, answered)

    def offered(self, user: str, holder: str, block_id: str, element: Element) -> Element:
        """Return the element with everything that this person may choose in it."""
        if element["type"] not in KINDS:
            return element
        options = self._offered.get((user, holder, block_id, str(element["action_id"])), [])
        initial = element.get("initial_options") or [element.get("initial_option")]
        # the newest answer first: it tells the same value in newer words
        return {**element, "options": [*options[::-1], *(option for option in initial if option)]}


def suggested(answer: Payload) -> list[Option]:
    """Return the options of an app's answer, those in groups one after the other.

    Raises:
        ValueError: neither options nor option_groups, too many, or one that Slack would refuse.
    """
    groups = answer.get("option_groups")
    given = answer.get("options")
    if isinstance(groups, list):
        given = [option for group in groups if isinstance(group, dict) for option in group.get("options", [])]
    if not isinstance(given, list):
        raise ValueError("neither options nor option_groups")
    found = Findings()
    check_options(given, "/options", MOST, found, least=0)
    if found.messages:
        raise ValueError("; ".join(found.messages))
    return [dict(option) for option in given]
