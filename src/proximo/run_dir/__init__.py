"""The folder of a run: written by one process at a time, read by anyone, whatever state it is in."""
