"""Environments written in JAX: stepped inside the compiled training program."""
