"""Playing: environments stepped by policies, whatever for."""
