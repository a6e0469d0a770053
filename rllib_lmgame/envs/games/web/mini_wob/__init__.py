"""MiniWoB++: small web tasks in a real browser."""
