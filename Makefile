# Two commands do all the set-up: `make train` and `make test`. Everything else is for working on Proximo.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := .venv-extras
ENV ?= CartPole-v1
ARGS ?=
PYTEST := $(BIN)/python -m pytest

.PHONY: help train test types tests test-fast test-learning test-faults test-extras figures bench lint format clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

# One stamp per kind of use: training does not wait for the test tools.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ui]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

train: $(VENV)/.installed  ## Train an agent: make train ENV=gymnax/Acrobot-v1 ARGS="--seed 3"
	@$(BIN)/proximo train $(ENV) $(ARGS)
	@echo "proximo is installed in $(VENV): run '. $(BIN)/activate' once in this shell, or call $(BIN)/proximo."

test: $(VENV)/.installed-dev  ## Lint, type check and every test but the long learning ones
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 types tests

# Beside each other. Three processes for two cores, because many tests wait for processes that they start.
types:
	$(BIN)/mypy

tests:
	$(PYTEST) -n 3 --dist worksteal --durations=10 -m "not learning and not faults and not extras"

test-fast: $(VENV)/.installed-dev  ## The tests that take seconds
	$(PYTEST) -n 2 --dist worksteal -m "not learning and not slow and not faults and not extras"

test-learning: $(VENV)/.installed-dev  ## Train to thresholds; takes many minutes
	XLA_FLAGS=--xla_backend_optimization_level=1 $(PYTEST) -m learning -s

figures: $(VENV)/.installed-dev  ## Train the presets, and write their table in README; takes long
	$(BIN)/python tools/figures.py

test-faults: $(VENV)/.installed-dev  ## Break runs in every way: signals at every moment; takes many minutes
	$(PYTEST) -n 2 --dist worksteal -m faults

$(EXTRAS)/.installed: pyproject.toml constraints.txt tests/extras/requirements.txt
	@test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r tests/extras/requirements.txt
	@touch $@

test-extras: $(EXTRAS)/.installed  ## Train on packages from PyPI, and write their returns in docs/packages.md
	$(EXTRAS)/bin/python -m pytest --confcutdir=tests/extras -m extras tests/extras
	$(EXTRAS)/bin/python tools/packages_table.py

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@touch $@

bench: $(VENV)/.installed-bench  ## Measure speed against Stable-Baselines3 and a plain JAX PPO, the start, and the choices made for speed
	$(BIN)/python bench/host.py
	$(BIN)/python bench/compiled.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/checkpoint.py
	$(BIN)/python bench/tracking.py
	$(BIN)/python bench/experiment.py
	$(BIN)/python bench/dense.py
	$(BIN)/python bench/convolution.py
	$(BIN)/python bench/images.py
	$(BIN)/python bench/optimization_level.py
	$(BIN)/python bench/actor.py

lint: $(VENV)/.installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment and caches; runs are kept
	rm -rf $(VENV) $(EXTRAS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build src/*.egg-info
