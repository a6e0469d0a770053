# make help lists the targets. PYTHON=python3.12 names the interpreter; else install.sh looks for one.
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := rllib_lmgame tests docs benchmarks examples setup.py
PYTEST_ARGS ?=
TRAIN_ARGS ?=
export VENV PYTHON

# One OpenMP thread per process: engine, learners and runners share the cores. Ray's memory monitor kills workers
# when anything else on the machine takes memory, which is not what a test is about.
export OMP_NUM_THREADS ?= 1
export RAY_memory_monitor_refresh_ms ?= 0
export RAY_DEDUP_LOGS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help lock chromium install quickstart test test-install test-slow test-learning lint docs format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# Once: delete the stamp or run `make clean` to do it again.
FILES := install.sh setup.py pyproject.toml constraints.txt
$(VENV)/.quickstart: $(FILES)
	@sh install.sh $$(test -e $(VENV)/.all && echo all || echo quickstart)
	@touch $@ $(wildcard $(VENV)/.all)

$(VENV)/.all: $(FILES)
	@sh install.sh all
	@touch $@ $(VENV)/.quickstart

# Versions that stand in the file stay where they can. Newer ones: make lock LOCK_ARGS='--upgrade-package ray', or --upgrade.
LOCK := constraints.txt
LOCK_ARGS ?=
lock: ## resolve all that setup.py can install into constraints.txt, for Python 3.11 and later, for every system
	@env -u UV_TORCH_BACKEND UV_CUSTOM_COMPILE_COMMAND='make lock' UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile --quiet --universal \
	--python-version 3.11 --all-extras --no-annotate $(LOCK_ARGS) setup.py --output-file $(LOCK) >/dev/null

# The browser of the browser games is Debian's. It is some 110 MB to load and takes half a minute.
chromium: ## install Chromium where there is none, with apt-get as root; without root say how
	@for name in chromium chromium-browser google-chrome google-chrome-stable $$RLLIB_LMGAME_CHROMIUM; do \
	if command -v $$name >/dev/null; then exit 0; fi; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo 'Installing Chromium with apt-get.' && apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium >/dev/null || echo 'Chromium could not be installed.'; \
	else echo 'There is no Chromium: tests of browser games are skipped. Install it (sudo apt-get install chromium).'; fi

install: $(VENV)/.all ## install the package with the CPU engine and the tools, from pinned versions

quickstart: $(VENV)/.quickstart ## train a tiny language model to play Sokoban (about six minutes on two cores)
	$(BIN)/rllib train file tuned_examples/quickstart-sokoban.yaml $(TRAIN_ARGS)

lint: $(VENV)/.all ## formatter rules, linter, type checker, that imports run downwards, and the budget of lines
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/size.py

docs: $(VENV)/.all ## build the site, build/site/index.html, with the reference and the pages of games; a dead link ends it
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet

format: $(VENV)/.all ## apply the linter's safe fixes and format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Processes that share the tests, each with a Ray of its own.
WORKERS ?= 2
# Ray gives its workers the lowest priority: they would wait for the tests beside them.
test: export RAY_worker_niceness = 0

test: $(VENV)/.all ## linter, type checker and all tests but the slow ones (about 8 minutes on two cores)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint chromium
	$(BIN)/python -m pytest -m "not slow and not learning" --numprocesses=$(WORKERS) --dist=worksteal --durations=20 --durations-min=3 $(PYTEST_ARGS)

test-install: ## both set-ups and the first iterations of the quick start in an empty environment without a compiler
	sh tests/empty_environment.sh $(PYTHON)

test-slow: $(VENV)/.all chromium ## the slow tests: whole training runs, process kills, several nodes; more examples for the others
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile=thorough $(PYTEST_ARGS)

test-learning: $(VENV)/.all ## whether the quick start and self-play end like their committed runs, and PPO learns four games (nine minutes on two cores)
	$(BIN)/python -m pytest -m learning $(PYTEST_ARGS)

clean: ## remove the virtual environment and everything built
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
