"""What only many agents need."""
