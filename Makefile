# Two commands on a fresh machine with python3 and make:  make demo   and   make test
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ROUNDS ?= 20
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# What each of them runs, and how long it may take: scripts/stages.toml
STAGES := $(BIN)/python scripts/run_stages.py

##@ Start here

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

.PHONY: install
install: .venv/.installed ## Create .venv with all that the demo and the tests need (exact versions of requirements.lock)
	@:

.venv/.installed: requirements.lock constraints.txt pyproject.toml snowpipe-local/pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" scripts/install.sh

.PHONY: demo
demo: install ## 336,776 flights through Airflow and Spark into channels, exactly once; KEEP=1 leaves the UI running
	@KEEP="$(KEEP)" $(BIN)/python -m demo

##@ Check

.PHONY: quick
quick: install ## For every change: lint and the unit tests of both distributions
	@$(STAGES) quick

.PHONY: test
test: install browser ## Everything: lint, types, import rules, docs, all tests of both distributions
	@$(BIN)/python -m tests.java_options
	@$(STAGES) test

.PHONY: nightly
nightly: install browser ## What takes too long for every day: repeated kills, 300 campaigns, 20,000 fuzz cases, every Airflow, 400 mutants
	@$(BIN)/python -m tests.java_options
	@$(STAGES) nightly

.PHONY: unit
unit: install ## The unit tests only
	@$(STAGES) quick unit local-unit

.PHONY: lint
lint: install ## Code style, formatting, and which room may import which
	@$(STAGES) quick lint

.PHONY: types
types: install ## Strict type check
	@$(STAGES) test types

.PHONY: docs
docs: install ## Build the documentation into docs/_build; a warning is an error
	@$(STAGES) test docs

.PHONY: links
links: install ## Ask every address that the documentation links to whether it answers; needs a network
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links
	$(BIN)/python -m sphinx -q -b linkcheck snowpipe-local/docs snowpipe-local/docs/_build/links

.PHONY: flaky
flaky: install ## ROUNDS=20 rounds of the unit tests that wait for something, beside two busy loops
	@ROUNDS="$(ROUNDS)" scripts/flaky.sh

.PHONY: test-airflow
test-airflow: install ## The Airflow skin on VERSION=2.11, 3.1, 3.2 or 3.3: unit tests and one system test
	@scripts/test-airflow.sh "$(VERSION)"

.PHONY: test-account
test-account: install ## What we take Snowflake to do, checked on the real account of CONNECTION=name in connections.toml
	@test -n "$(CONNECTION)" || { echo "make test-account CONNECTION=name: which connection of Snowflake's connections.toml?"; exit 2; }
	cd snowpipe-local && SNOWPIPE_CONTRACT_CONNECTION="$(CONNECTION)" python -m pytest tests/contract

.PHONY: browser
browser: ## Install Chromium with apt-get, where that is possible: the tests of Airflow's pages skip without it
	@scripts/install_browser.sh

.PHONY: mutants
mutants: install ## Change the exactly-once core line by line: a unit test has to notice; MODULES="streaming/offsets …" for some
	$(BIN)/python scripts/mutants.py $(MODULES)

.PHONY: mutants-local
mutants-local: install ## The same for the engine of snowpipe-local; MODULES="engine/spool …" for some
	cd snowpipe-local && ../$(BIN)/python ../scripts/mutants.py $(MODULES)

.PHONY: mutants-sample
mutants-sample: install ## 400 mutants of the whole provider, other ones each day; SEED=20261128 repeats a day's
	$(BIN)/python scripts/mutants.py --sample 400 $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: install ## Ratios against peers and limits in one table, in a quarter of an hour; exits with 1 below a goal
	@$(BIN)/python -m benchmarks

##@ Change

.PHONY: format
format: install ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: lock
lock: install ## Resolve both pyproject.toml into requirements.lock and the versions of Airflow (pins of constraints.txt hold)
	scripts/lock.sh

.PHONY: dist
dist: install ## Build sdist and wheel of both distributions into dist/, and check them as a package index does
	scripts/dist.sh

.PHONY: release-check
release-check: install ## What a release needs: builds, metadata, empty environments, the quickstart; TAG=v0.1.0 compares versions
	scripts/release-check.sh "$(TAG)"

.PHONY: clean
clean: ## Remove what the demo, the tests and the docs build left behind (.venv* stays)
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m demo stop; fi
	rm -rf .demo .stages dist docs/_build snowpipe-local/docs/_build mutants snowpipe-local/mutants spark-warehouse
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf {} +
