"""Environments that run outside the compiled program: Gymnasium and EnvPool."""
