"""Many runs: `submit`, `events`, `cancel`, on this machine (`local`)."""
