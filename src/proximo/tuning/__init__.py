"""The search for settings: a space, a study that Optuna keeps, and a protocol that says what the result is worth."""
