# Everything here needs Python 3.11 or newer with venv, and nothing else; .venv is made and kept current by itself.
#   make demo ARGS=--no-browser      make test ARGS="-k approvals"

NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	command -v $(python) >/dev/null 2>&1 && $(python) -c $(NEW_ENOUGH) 2>/dev/null && echo $(python))))
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test lint check format bench mutants chaos soak jitter lock clean
.NOTPARALLEL:

help: ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(READY) ## make .venv and install everything pinned in requirements.lock

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" && $(PYTHON) -c $(NEW_ENOUGH) 2>/dev/null || { \
		echo "Atlas needs Python 3.11 or newer, and found: $(or $(PYTHON),none). Name one by: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@$(BIN)/python -c $(NEW_ENOUGH) 2>/dev/null || { echo "Making .venv with $(PYTHON)"; $(PYTHON) -m venv --clear .venv; }
	@echo "Installing the packages of requirements.lock"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY) ## a workspace in the browser, with no account, database or model key
	@$(BIN)/python -m bot demo $(ARGS)

test: $(READY) ## all tests
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

lint: $(READY) ## format, lint, types, imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check: lint test ## what CI runs

format: $(READY) ## put the code into shape
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY) ## measure speed on this machine
	$(BIN)/python tests/benchmarks/run.py $(ARGS)

mutants: $(READY) ## break each safeguard in turn; its tests must notice
	$(BIN)/python tests/mutations/run.py $(ARGS)

chaos: $(READY) ## kill processes at random; the invariants must hold
	$(BIN)/python tests/chaos/run.py $(ARGS)

soak: $(READY) ## run under load for long
	$(BIN)/python tests/soak/run.py $(ARGS)

jitter: $(READY) ## play tests while all around them comes late
	$(BIN)/python tests/jitter/run.py $(ARGS)

lock: ## resolve the newest allowed versions into requirements.lock
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check hatchling editables
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/^\(uvloop==.*\)$$/\1; sys_platform != "win32"/' > requirements.lock
	rm -rf .venv-lock

clean: ## remove .venv and caches
	rm -rf .venv .venv-lock .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
