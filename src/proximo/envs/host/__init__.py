"""Environments that run outside the compiled program: Gymnasium, EnvPool and PettingZoo."""
