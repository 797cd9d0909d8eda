"""What is loaded by name: the agent that ``ATLAS_AGENT`` names, and the model of each run.

Decides: whether what was named can serve. Does not: run it. The failure it can cause: an agent that starts although a
write of it lacks a check; so ``core.agent.problems`` is asked, and everything wrong is said at once.
"""

import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

from core.agent import Agent, problems
from core.conversation import Model
from core.errors import Misconfigured
from core.run import Run

log = logging.getLogger("atlas.loading")


def load_agent(name: str) -> Agent:
    """Return the agent that "module:attribute" names; the working directory is importable.

    Raises: Misconfigured with everything that keeps it from starting.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        own = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        advice = "start in the directory that holds it" if own else "install what it needs beside Atlas"
        raise Misconfigured([f"ATLAS_AGENT={name}: cannot import {module_name} ({error}); {advice}"]) from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}{_where(error)}"
        raise Misconfigured([f"ATLAS_AGENT={name}: importing {module_name} failed: {what}"]) from error
    agent = getattr(module, attribute, None)
    if not isinstance(agent, Agent):
        raise Misconfigured([f"ATLAS_AGENT={name}: {attribute} is not a core.Agent in {module_name}"])
    wrong = problems(agent)
    if wrong:
        raise Misconfigured([f"ATLAS_AGENT={name}: {problem}" for problem in wrong])
    return agent


def _where(error: Exception) -> str:
    """Say in which line of which file it was raised; a syntax error says so itself."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames and not isinstance(error, SyntaxError) else None
    return f" ({Path(last.filename).name}, line {last.lineno})" if last else ""


def load_model(agent: Agent, name: str | None) -> Model:
    """Return the model that serves: ``ATLAS_MODEL``'s, else the agent's own. Raises: Misconfigured."""
    if name is not None:
        from bot.model import provider_model  # the providers' packages are loaded only where they are used

        return provider_model(name, instructions=agent.instructions)
    if agent.model is None:
        raise Misconfigured(["ATLAS_MODEL is not set and the agent brings no model: set ATLAS_MODEL=provider:model"])
    return agent.model


class Models:
    """The model of each run: the one of its route, which it keeps across deploys."""

    def __init__(self, agent: Agent, current: str | None) -> None:
        self.agent = agent
        self.current = current
        self.default = load_model(agent, current)
        self._known: dict[str, Model] = {current or "": self.default}

    def __call__(self, run: Run) -> Model:
        """Return the run's model; the current one when its own cannot be had any more (the log says so)."""
        name = str(run.route.get("model") or "")
        if name not in self._known:
            try:
                self._known[name] = load_model(self.agent, name or None)
            except Misconfigured as error:
                log.warning("run %s: its model %s cannot be had (%s); the current one goes on", run.id, name, error)
                self._known[name] = self.default
        return self._known[name]


def route_of(agent: Agent, model: str | None) -> dict[str, Any]:
    """Return what a new run keeps across deploys."""
    return {"model": model or "", "tools": {tool.name: tool.version for tool in agent.tools}}
