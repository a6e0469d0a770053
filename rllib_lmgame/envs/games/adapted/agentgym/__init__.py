"""Tasks on AgentGym's servers as games."""
