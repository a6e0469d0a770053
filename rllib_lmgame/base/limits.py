"""Time limits of games' calls."""

from __future__ import annotations

CALL_LIMIT_S = 60.0
"""Of one call into a game."""

CHECK_LIMIT_S = 900.0
"""Of all checks of a game together."""
