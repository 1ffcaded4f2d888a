"""Does TPE find better settings than random search, on the same budget? And do trials share their programs?

    python bench/tuning.py search           # Pendulum-v1, five studies with each sampler; stopped, it goes on
    python bench/tuning.py search --minutes 5       # for so long, and then no further
    python bench/tuning.py report           # writes the table in docs/tuning.md, and docs/tuning/pendulum.png
    python bench/tuning.py ratio            # 32 trials that differ in numbers, against 32 runs one after the other

Studies of `search` lie in bench/tuning-runs, and what came out of each is a line of docs/tuning/pendulum.jsonl: the
scores of its trials, and those of its best trial with five fresh seeds, by which nothing was chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["PROXIMO_MLFLOW"] = "0"

import numpy as np

import proximo.experiment.progress
import proximo.train.finish
from proximo import PPOTrainer, settings, tune
from proximo.config import Config
from proximo.envs import make
from proximo.envs.groups import Groups
from proximo.experiment import statistics as st
from proximo.experiment.plan import SPACING
from proximo.plots import drawing as d
from proximo.plots import panels as p
from proximo.tuning.protocol import SEEDS, TUNING
from proximo.tuning.space import configure, from_mapping, params_of
from proximo.tuning.study import Study, open_storage

ENV, STEPS, TRIALS, REPEATS = "Pendulum-v1", 30_000, 30, 5
SAMPLERS = ("random", "tpe")
HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "tuning" / "pendulum.jsonl"
PICTURE = RESULTS.with_suffix(".png")
PAGE, BEGIN, END = RESULTS.parent.with_suffix(".md"), "<!-- written by bench/tuning.py report -->", "<!-- end -->"
BASE: dict[str, Any] = {
    "env.id": ENV, "env.num_envs": 4, "env.workers": 0, "ppo.rollout_length": 256, "ppo.minibatch_size": 128,
    "train.total_timesteps": STEPS, "eval.frequency": 0, "eval.episodes": 20, "checkpoint.num_checkpoints": 0,
}  # fmt: skip
SPACE: dict[str, Any] = {
    "ppo.learning_rate": {"log": [1e-5, 1e-2]},
    "1 - ppo.gamma": {"log": [1e-3, 0.3]},
    "1 - ppo.gae_lambda": {"log": [1e-3, 0.3]},
    "ppo.entropy_coef": {"log": [1e-8, 0.1]},
    "ppo.clip_epsilon": {"uniform": [0.1, 0.4]},
    "ppo.max_grad_norm": {"log": [0.3, 2.0]},
    "ppo.epochs_per_update": {"choices": [4, 10]},
    "normalize.rewards": {"choices": [True, False]},
}
NUMBERS: dict[str, Any] = {
    "ppo.learning_rate": {"log": [1e-4, 2e-3]},
    "1 - ppo.gamma": {"log": [1e-3, 3e-2]},
    "ppo.clip_epsilon": {"choices": [0.1, 0.2, 0.3]},
}


def score_of(config: Config, seed: int) -> float:
    """The mean return of the final evaluation of one run."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(config=dataclasses.replace(config, seed=seed), out=Path(folder) / "run")
        return float(trainer.train()["final_eval"]["return_mean"])


def one_study(sampler: Any, repeat: int, until: float) -> dict[str, Any] | None:
    """All of a study: what stands in the record is not done again. None if the time is up before its end."""
    base, space = settings.build(BASE), from_mapping(SPACE, "space")
    groups = make(ENV).spec.groups

    def groups_of(_: Config) -> Groups:
        return groups

    folder = HERE / "tuning-runs" / f"{sampler}-{repeat}"
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(space, base, open_storage(folder, None), folder.name, sampler, seed=repeat)
    while len(study.trials) < TRIALS or study.trials[-1].state == "running":
        if time.monotonic() > until:
            return None
        if study.trials and study.trials[-1].state == "running":
            asked = study.trials[-1]
        elif study.trials:
            asked = study.ask()
        else:
            params, outside = params_of(base, space, groups_of)
            asked = study.begin(params, bool(outside))
        config = base if asked.number == 0 else configure(base, space, asked.params, groups_of)
        value = score_of(config, TUNING + 1000 * repeat + SPACING * asked.number)
        study.tell(asked.number, "complete", value)
        print(f"{sampler} {repeat}: trial {asked.number} {value:.0f}", flush=True)
    scores = [trial.value for trial in study.trials if trial.value is not None]
    best = int(np.argmax(scores))
    config = base if best == 0 else configure(base, space, study.trials[best].params, groups_of)
    again = [score_of(config, 1000 * repeat + SPACING * i) for i in range(SEEDS)]
    print(f"{sampler} {repeat}: best {best}, again {st.strata_iqm({'': again}):.0f}", flush=True)
    return {"sampler": sampler, "repeat": repeat, "steps": STEPS, "trials": scores, "best": best, "again": again}


def search(minutes: float | None) -> None:
    """The studies that are missing, by turns."""
    proximo.train.finish.write_plots = lambda *_: []  # nobody looks at 350 runs
    until = time.monotonic() + (float("inf") if minutes is None else 60 * minutes)
    for repeat in range(REPEATS):
        for sampler in SAMPLERS:
            if not any(row["sampler"] == sampler and row["repeat"] == repeat for row in results()):
                found = one_study(sampler, repeat, until)
                if found is None:
                    return
                RESULTS.parent.mkdir(exist_ok=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                shutil.rmtree(HERE / "tuning-runs" / f"{sampler}-{repeat}")


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []


def report() -> None:
    """The best score so far over trials, and what the best is worth with fresh seeds."""
    rows = results()
    figure, (axes,) = d.canvas("Random search and TPE", ENV, [d.TALL], "trial")
    found: dict[str, list[float]] = {}
    lines = [
        "| sampler | studies | best in the search: mean (least, most) | again with fresh seeds: mean (least, most) |"
    ]
    lines.append("|---|---|---|---|")
    for sampler, colour in zip(SAMPLERS, (d.BLUE, d.VERMILION), strict=True):
        curves = np.array([np.maximum.accumulate(row["trials"]) for row in rows if row["sampler"] == sampler])
        if not len(curves):
            continue
        for curve in curves:
            axes.plot(curve, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(curves.mean(axis=0), color=colour, linewidth=2, label=sampler)
        found[sampler] = [st.strata_iqm({"": row["again"]}) for row in rows if row["sampler"] == sampler]
        lines.append(f"| {sampler} | {len(curves)} | {_spread(curves[:, -1])} | {_spread(np.array(found[sampler]))} |")
    d.heading(axes, "Best score so far (mean return); thick: the mean of the studies", legend=True)
    PICTURE.write_bytes(d.png(figure))
    if len(found) == 2 and min(map(len, found.values())) >= st.FEWEST:
        result = st.improvement({ENV: found["tpe"]}, {ENV: found["random"]})
        ends = p.interval_text(result.probability, *result.interval, digits=2)
        words = {1: "TPE is better", 0: st.NO_DIFFERENCE, -1: "random search is better"}[result.shown]
        lines += ["", f"Probability that a study with TPE ends higher, with fresh seeds: {ends}; {words}."]
    lines += ["", "![The best score so far over the trials of each study](tuning/pendulum.png)"]
    text = PAGE.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:])
    print("\n".join(lines))


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.0f} ({values.min():.0f}, {values.max():.0f})"


def ratio(count: int, steps: int) -> None:
    """A study of `count` trials against as many runs one after the other, both where everything is compiled."""
    env = "gymnax/CartPole-v1"
    given: dict[str, Any] = {"total_timesteps": steps, "target_reward": None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        PPOTrainer(env, out=folder / "warm", seed=999, **given).train()
        started = time.perf_counter()
        for seed in range(count):
            PPOTrainer(env, out=folder / f"alone{seed}", seed=seed, gamma=0.99 - 1e-3 * seed, **given).train()
        alone = time.perf_counter() - started
        print(f"{count} runs one after the other: {alone:.1f} s", flush=True)
        started = time.perf_counter()
        ended: list[float] = []
        tune(env, trials=count, space=NUMBERS, out=folder / "study", progress=Clock(count, ended), **given)
        print(f"{count} trials of a study: {ended[0] - started:.1f} s, {(ended[0] - started) / alone:.2f} of it")


class Clock(proximo.experiment.progress.Progress):
    """When the last of so many trials has ended."""

    def __init__(self, count: int, ended: list[float]):
        self._words, self._ended = f"{count} of {count} trials", ended

    def headline(self, text: str) -> None:
        if text.startswith(self._words) and not self._ended:
            self._ended.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "report", "ratio"])
    parser.add_argument("--minutes", type=float, help="of `search`: stop after so long")
    parser.add_argument("--trials", type=int, default=32, help="of `ratio`")
    parser.add_argument("--steps", type=int, default=100_000, help="of each run of `ratio`")
    given = parser.parse_args()
    if given.what == "search":
        search(given.minutes)
    elif given.what == "report":
        report()
    else:
        ratio(given.trials, given.steps)


if __name__ == "__main__":
    main()
