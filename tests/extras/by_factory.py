"""What a user's own script does: hand in a factory, look at the untrained policy, train, evaluate, resume.

python by_factory.py PACKAGE: into the folder `by_factory`; prints the numbers as JSON.
"""

from __future__ import annotations

import json
import sys

from packages import PACKAGES

from proximo import PPOTrainer

OUT = "by_factory"

package = next(package for package in PACKAGES if package.name == sys.argv[1])
trainer = PPOTrainer(
    package.make,
    max_steps_per_episode=package.max_steps_per_episode,
    out=OUT,
    total_timesteps=4096,
    preset=False,
    eval_frequency=0,
    eval_episodes=5,
)
before = trainer.evaluate(20, deterministic=False)
trainer.train()
after = trainer.evaluate(5)
resumed = PPOTrainer.resume(OUT, env=package.make, steps=2048).train()
print(json.dumps({"before": before, "after": after, "steps": resumed["total_steps"]}))
