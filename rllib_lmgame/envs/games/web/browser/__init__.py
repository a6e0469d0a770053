"""A real browser for games: one Chromium per process, driven by Playwright."""
