"""Real models: ``ATLAS_MODEL=provider:model``.

Decides: the one door, ``provider_model``. Does not: serve agents that bring their own model. The failure it can cause:
importing this package loads pydantic-ai (about half a second), so the composition root imports it only when a provider
model is asked for; provider SDKs load only inside ``provider_model``.
"""

from bot.model.provider import ProviderModel, provider_model

__all__ = ["ProviderModel", "provider_model"]
