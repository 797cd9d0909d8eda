"""Who gets a card directly when its place is closed."""

from dataclasses import dataclass, field, replace

import pytest

from bot.reach import MOST_PEOPLE, deciders, named_deciders
from core.errors import NoSuchGroup
from core.run import SuspensionKind
from core.tools import Approval, UserGroup
from tests.unit.test_blocks_policies import ASK
from tests.unit.test_blocks_runs import RUN

OWNER = RUN.owner.user_id


@dataclass
class Town:
    """Who belongs where."""

    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    channels: dict[str, frozenset[str]] = field(default_factory=dict)

    async def group_members(self, handle: str, *, fresh: bool = False) -> frozenset[str]:
        """Return who is in a user group."""
        if handle not in self.groups:
            raise NoSuchGroup(handle)
        return self.groups[handle]

    async def channel_members(self, channel_id: str) -> frozenset[str]:
        """Return who is in a channel."""
        return self.channels[channel_id]


def people(count: int) -> frozenset[str]:
    """Return so many people."""
    return frozenset(f"U0PERSON{n:03}" for n in range(count))


@pytest.mark.parametrize(
    ("policy", "kind", "expected"),
    [
        (Approval(), SuspensionKind.APPROVAL, [OWNER]),
        (Approval(operators=True), SuspensionKind.APPROVAL, [OWNER, "U0OP"]),
        (Approval(by=("U0A", OWNER, "U0B")), SuspensionKind.APPROVAL, ["U0A", OWNER, "U0B"]),
        (Approval(by=UserGroup(handle="few")), SuspensionKind.APPROVAL, [OWNER, "U0PERSON000", "U0PERSON001"]),
        (Approval(by="anyone"), SuspensionKind.APPROVAL, [OWNER, "U0PERSON000", "U0PERSON001", "U0PERSON002"]),
        (Approval(by="anyone", channel="C0BIG000001"), SuspensionKind.APPROVAL, [OWNER]),
        (Approval(by=UserGroup(handle="few")), SuspensionKind.OUTCOME, [OWNER, "U0OP"]),
    ],
)
async def test_whoever_may_act_is_written_to(policy: Approval, kind: SuspensionKind, expected: list[str]) -> None:
    """Named people, the owner, operators where they may, a group's members, a small channel's; nobody twice."""
    town = Town({"few": people(2)}, {RUN.channel_id: people(3), "C0BIG000001": people(MOST_PEOPLE + 1)})
    found = await deciders(replace(ASK, policy=policy, kind=kind), RUN, ["U0OP"], town)
    assert found == expected


async def test_a_large_group_is_written_to_in_part_and_an_unknown_one_is_said() -> None:
    """More than a score of direct messages would be noise; a group that is gone is no reason to write to nobody."""
    ask = replace(ASK, policy=Approval(by=UserGroup(handle="many")))
    found = await deciders(ask, RUN, [], Town({"many": people(50)}))
    assert len(found) == MOST_PEOPLE + 1
    with pytest.raises(NoSuchGroup):
        await deciders(ask, RUN, [], Town())
    assert named_deciders(ask, RUN, []) == [OWNER]
