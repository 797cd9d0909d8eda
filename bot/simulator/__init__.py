"""A local Slack: Web API, Socket Mode, response URLs and a page, for tests and for the demo.

It speaks Slack's wire protocol and knows nothing of the app that connects to it.
"""

from bot.simulator.acts import ActRefused
from bot.simulator.clock import Clock
from bot.simulator.delivery import Interaction
from bot.simulator.server import Simulator
from bot.simulator.workspace import AppManifest, Person, Workspace

__all__ = ["ActRefused", "AppManifest", "Clock", "Interaction", "Person", "Simulator", "Workspace"]
