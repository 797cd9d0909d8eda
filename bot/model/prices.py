"""What tokens cost, from genai-prices' list.

Decides: the price of a reply and the dearest price of a call. Does not: download newer lists. The failure it can cause:
a price that is missing or too low would break every budget; a model without one is refused when it is constructed.
"""

from decimal import Decimal
from typing import Any

from genai_prices import calc_price
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model as Client
from pydantic_ai.usage import RequestUsage

from core.errors import Misconfigured


class Prices:
    """The price list of one model, from genai-prices: tiers and dates included."""

    def __init__(self, name: str, client: Client[Any]) -> None:
        self._model_name = client.model_name
        # The address says more than the name: several providers resell the same models at their own prices.
        self._sellers: tuple[dict[str, str], ...] = (
            *({"provider_api_url": url} for url in (client.base_url,) if url),
            {"provider_id": client.system},
        )
        price = self._price(RequestUsage(input_tokens=1, output_tokens=1), self._model_name)
        if price is None:
            fix = "choose a model with a known price, or upgrade genai-prices if the model is new"
            raise Misconfigured([f"ATLAS_MODEL={name}: no price is known, so no budget could hold; {fix}"])

    def of(self, response: ModelResponse) -> Decimal:
        """Return what *response* cost, at the price of the model that answered (else of the configured one)."""
        for model_name in (response.model_name, self._model_name):
            price = self._price(response.usage, model_name) if model_name else None
            if price is not None:
                return price
        return self.most(response.usage.input_tokens, response.usage.output_tokens)

    def most(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the dearest way to bill these counts: as plain input, or all of it as a cache write."""
        plain = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        cached = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens, cache_write_tokens=input_tokens)
        prices = [self._price(usage, self._model_name) for usage in (plain, cached)]
        return max((price for price in prices if price is not None), default=Decimal(0))

    def _price(self, usage: RequestUsage, model_name: str) -> Decimal | None:
        for seller in self._sellers:
            try:
                found = calc_price(usage, model_name, **seller)  # type: ignore[call-overload]
            except (LookupError, ValueError):
                # LookupError: not in the list. ValueError: counts that contradict each other.
                continue
            if found.model_price.input_mtok is not None and found.model_price.output_mtok is not None:
                return Decimal(found.total_price)
        return None
