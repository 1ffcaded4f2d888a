"""One PPO update, in the order it happens: rollout, advantages, loss, optimizer, update."""
