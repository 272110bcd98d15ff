# Everything a developer types. `make` lists it. Set-up happens by itself, once, into .venv; after it no network is used
# (but for the test servers' first download, which `make test` keeps in the user's cache folder).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test check bench fmt cases test-crash requirements clean

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The version that the pins are made with and the tests run on comes first.
PYTHONS := python3.11 python3.12 python3.13 python3
# All tests run in two processes: most of their time is waiting for servers. Some (ARGS) run in one, as a debugger wants.
ALL_TESTS := -n 2 --dist worksteal
ROOMS := inbox dlq projections consumers
TYPING := build/typing/tidegate
COMPILE := CUSTOM_COMPILE_COMMAND="make requirements" $(BIN)/pip-compile --quiet --generate-hashes --strip-extras \
	--allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(if $(wildcard $(VENV)/.ready-dev),$(VENV)/.ready-dev,$(VENV)/.ready-demo) ## see the promise kept, in a minute (KEEP=1 goes on running)
	@$(BIN)/tidegate demo $(if $(KEEP),--keep)

test: $(VENV)/.ready-dev ## run all tests, on a real broker and database (ARGS="-k name": some)
	@$(BIN)/python -m tests.services.require
	@$(BIN)/python -m pytest $(or $(ARGS),$(ALL_TESTS))

test-crash: $(VENV)/.ready-dev ## kill the worker at every named point of every path, and at random moments (five seeds)
	@$(BIN)/python -m tests.services.require
	@TIDEGATE_CRASH_SEEDS=5 $(BIN)/python -m pytest -m crash $(ARGS)

check: $(VENV)/.ready-dev $(TYPING) ## format, lint, types, import direction, tidiness
	@failed=0; \
	$(BIN)/ruff format --check --output-format concise . || { failed=1; echo "'make fmt' formats"; }; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/basedpyright || failed=1; \
	$(BIN)/python -m pytest -q tests/tidy || failed=1; \
	exit $$failed

fmt: $(VENV)/.ready-dev ## format, and fix what the linter can fix
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: $(VENV)/.ready-dev ## run one benchmark (BENCH=throughput); without a name: list them
ifdef BENCH
	@$(BIN)/python -m tests.services.require
	@$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)
else
	@grep -l '__main__' benchmarks/*.py 2>/dev/null | sed 's|benchmarks/\(.*\)\.py|  make bench BENCH=\1|'
endif

cases: $(VENV)/.ready-dev ## list the known failures of others, the test that guards each, and what turns it red
	@$(BIN)/python -m tests.cases

requirements: $(VENV)/.ready-dev ## pin anew what pyproject.toml and requirements/*.in ask for (UPGRADE=1: newest)
	$(COMPILE) $(if $(UPGRADE),--upgrade) --extra embedded pyproject.toml requirements/dev.in -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt --extra embedded pyproject.toml requirements/demo.in -o requirements/demo.txt
	$(COMPILE) -c requirements/dev.txt pyproject.toml -o requirements/runtime.txt

clean: ## remove what was built (not .venv, not the download cache)
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
	find $(ROOMS) tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(PYTHON) $(PYTHONS); do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Setting up $(VENV) with $$($$python --version)"; exec $$python -m venv $(VENV); \
	  fi; \
	done; echo "No Python 3.11 or newer was found. Fix: install one, or make PYTHON=/path/to/python ..." >&2; exit 1

$(VENV)/.ready-%: requirements/%.txt pyproject.toml | $(BIN)/python
	@$(PIP) install --quiet --require-hashes -r $<
	@PYTHONWARNINGS=ignore $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The rooms as the package that they become, for the type checker.
$(TYPING):
	@mkdir -p $@
	@for room in $(ROOMS); do ln -sfn ../../../$$room $@/$$room; done
