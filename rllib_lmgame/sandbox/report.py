"""What confines programs on this machine, in words."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from rllib_lmgame.sandbox.gate import machine_gate
from rllib_lmgame.sandbox.modes import ALLOW_WEAK, LIMITS, describe_mode, find_mode, weakness


@dataclass(frozen=True)
class SandboxReport:
    """A machine's sandbox: mode and programs at once, why it is weak (or empty), and whether programs are refused."""

    host: str
    text: str
    warning: str
    refused: bool


def report_sandbox() -> SandboxReport:
    """The sandbox here. Raises: SandboxError: if the gate's settings are wrong."""
    mode, slots = find_mode(), machine_gate().size.slots
    refused = mode == LIMITS and os.environ.get(ALLOW_WEAK) != "1"
    text = f"{describe_mode(mode)}; at most {slots} program{'s' if slots > 1 else ''} at once"
    return SandboxReport(platform.node(), text, weakness(mode), refused)
