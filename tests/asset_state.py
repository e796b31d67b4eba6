"""A state store of one asset, as a trigger meets it."""

import json
from typing import Any


class AssetState:
    """Outlives the triggerer; keeps JSON text, and refuses to write when a test asks for it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.broken = False

    async def aget(self, key: str) -> Any:
        return json.loads(self.values[key]) if key in self.values else None

    async def aset(self, key: str, value: Any) -> None:
        if self.broken:
            raise RuntimeError("no answer from the API server")
        self.values[key] = json.dumps(value)
