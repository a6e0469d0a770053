"""Programs of users that ask the policy for completions, as games."""
