"""The demo's panel offers what does something: the CRM's levers belong to the sales desk."""

from pathlib import Path
from typing import Any, cast

import pytest

from bot.demo.children import Leash
from bot.demo.panel import Panel
from bot.demo.stage import Stage
from bot.settings import DESK, read_settings

OF_THE_CRM = {"hold", "discount", "role", "directory_down", "send_fails", "send_answer_lost", "kill_after_commit"}


class AnsweredStage(Stage):
    """A stage of which only the CRM's answers are needed."""

    async def ask_crm(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answers: dict[str, dict[str, Any]] = {
            "/accounts/4471": {"credit_hold": None},
            "/tiers": {"tiers": [{"name": "gold", "discount_percent": "10"}]},
            "/people": {"people": [{"email": "rita.reyes@northwind.example", "role": "inside_sales"}]},
            "/admin/faults": {"faults": []},
        }
        return answers[path]


@pytest.mark.parametrize("agent", ["my_agent:agent", DESK])
async def test_levers_of_the_crm_are_there_for_the_sales_desk_only(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_AGENT", agent)
    monkeypatch.setenv("ATLAS_DATA_DIR", str(tmp_path))
    stage = AnsweredStage(read_settings(slack=False), tmp_path, Leash(), cast("Any", None))
    stage.own_agent = True
    groups = (await Panel(stage).state())["groups"]
    offered = {control["id"] for group in groups for control in group["controls"]}
    assert {"kill", "deploy", "second", "lose_post", "drop_sockets"} <= offered
    assert (offered & OF_THE_CRM) == (OF_THE_CRM if agent == DESK else set())
    assert stage.without_crm is (agent != DESK)
