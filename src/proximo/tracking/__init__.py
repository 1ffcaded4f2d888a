"""Trackers: fed from the files of a run by a process of their own, which training never waits for."""
