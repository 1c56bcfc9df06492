"""Move a tensor from any sharding to any other, each device receiving exactly the bytes that it lacks."""

from __future__ import annotations

__version__ = "0.1.0"
