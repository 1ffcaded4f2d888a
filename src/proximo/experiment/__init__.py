"""Experiments: trials, environments and seeds, and what can be said of them."""
