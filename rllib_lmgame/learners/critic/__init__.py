"""What makes a value function learn: its last layer fitted before PPO, its targets in units of their own."""
