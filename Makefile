# Two commands on a fresh machine with python3 and make:  make demo   and   make test
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTEST := $(BIN)/python -m pytest
# Without the last option a run whose worker process dies waits for ever (seen with pytest-xdist 3 and loadfile).
IN_PARALLEL := -n 2 --dist loadfile --max-worker-restart 0

##@ Start here

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-z][a-z-]*:.*## / {printf "  \033[36m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

.PHONY: install
install: .venv/.installed ## Create .venv with all that the demo and the tests need (exact versions of requirements.lock)
	@:

.venv/.installed: requirements.lock constraints.txt pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" scripts/install.sh

.PHONY: demo
demo: install ## 336,776 flights through Airflow and Spark into channels, exactly once; KEEP=1 leaves the UI running
	@KEEP="$(KEEP)" $(BIN)/python -m demo

##@ Check

.PHONY: test
test: lint types docs browser ## Everything: lint, types, import rules, docs, all tests, and the skin on Airflow 2.11
	$(PYTEST) tests/unit tests/integration tests/fuzz $(IN_PARALLEL)
	$(PYTEST) tests/faults -m "not nightly"
	$(PYTEST) tests/system -m "not nightly"
	scripts/test-airflow.sh 2.11

.PHONY: test-airflow
test-airflow: install ## The Airflow skin on VERSION=2.11, 3.1, 3.2 or 3.3: unit tests and one system test
	@scripts/test-airflow.sh "$(VERSION)"

.PHONY: browser
browser: ## Install Chromium with apt-get, where that is possible: the tests of Airflow's pages skip without it
	@scripts/install_browser.sh

.PHONY: nightly
nightly: install ## What takes too long for every day: 300 deferred sensors, 100 kills of the local service and of Spark, 20,000 fuzz cases
	$(PYTEST) tests/system tests/faults -m nightly --timeout 3600
	SNOWPIPE_SPARK_FAULT_ROUNDS=100 $(PYTEST) tests/faults/test_spark_executor_faults.py tests/faults/test_spark_service_faults.py --timeout 3600
	SNOWPIPE_SPARK_FAULT_ROUNDS=20 $(PYTEST) tests/faults/test_spark_driver_faults.py --timeout 3600
	SNOWPIPE_SPARK_FAULT_ROUNDS=20 $(PYTEST) tests/faults/test_data_source_cluster_faults.py --timeout 3600
	SNOWPIPE_KILLS=100 $(PYTEST) tests/faults/test_local_service_kill_loop.py --timeout 3600
	SNOWPIPE_FUZZ_CASES=20000 $(PYTEST) tests/fuzz $(IN_PARALLEL) --timeout 3600

.PHONY: unit
unit: install ## The unit tests only
	$(PYTEST) tests/unit $(IN_PARALLEL)

.PHONY: mutants
mutants: install ## Change the exactly-once core line by line: a unit test has to notice; MODULES="streaming/offsets …" for some
	$(BIN)/python scripts/mutants.py $(MODULES)

.PHONY: lint
lint: install ## Code style, formatting, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

.PHONY: types
types: install ## Strict type check
	$(BIN)/mypy

.PHONY: docs
docs: install ## Build the documentation into docs/_build; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

.PHONY: bench
bench: install ## Ratios against peers and limits
	$(BIN)/python benchmarks/spark_to_channel.py
	$(BIN)/python benchmarks/row_shapes.py
	$(BIN)/python benchmarks/crossover.py
	$(BIN)/python benchmarks/local_service.py
	$(BIN)/python benchmarks/parse_time.py

##@ Change

.PHONY: format
format: install ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: lock
lock: install ## Resolve pyproject.toml anew into requirements.lock and the versions of Airflow (pins of constraints.txt hold)
	scripts/lock.sh

.PHONY: clean
clean: ## Remove what the demo, the tests and the docs build left behind (.venv* stays)
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m demo stop; fi
	rm -rf .demo dist docs/_build mutants spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf {} +
