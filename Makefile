# Needs only Python 3.11 or newer with pip. Everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An environment with the lowest version of every dependency that pyproject.toml allows.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/contract tests/redis tests/unit/stores/encrypted tests/cli \
	$(filter-out %_load.py,$(wildcard tests/workers/scenarios/test_*.py))
# More than there are cores: most of the time, tests wait for servers and workers.
JOBS ?= 6
# Hundreds of processes import the same modules, so let Python cache their bytecode.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-deep test-lowest test-loops check bench chaos fuzz compose-check api docs format clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "This needs Python 3.11 or newer. To use another Python than python3: make PYTHON=/path/to/python")'
	@echo "Installing into $(VENV). The first time, this takes about a minute."
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/demo-ready: pyproject.toml | $(VENV)/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/ready: pyproject.toml | $(VENV)/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/bench-ready: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(VENV)/docs-ready: pyproject.toml | $(VENV)/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

demo: $(VENV)/demo-ready ## Kill an agent's worker, deploy the next one, compare the bills (half a minute)
	@$(BIN)/celery-ckpt demo $(ARGS)

test: $(VENV)/ready ## Run all tests, on real servers from a wheel
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-deep: test-lowest test-loops ## Run the long tests: test-lowest and test-loops

$(LOWEST)/ready: pyproject.toml tests/support/lowest_versions.py | $(VENV)/ready
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/python -m tests.support.lowest_versions suite > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt --editable '.[suite]'
	@touch $@

# The ignored warning: Celery 5.6 raises in a destructor after a result backend was unavailable.
test-lowest: $(LOWEST)/ready ## Test stores, commands and workers with the lowest versions of all dependencies
	$(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal $(LOWEST_TESTS) \
		-W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS)

test-loops: $(VENV)/ready ## Interrupt loops of many iterations at every place
	CKPT_DEEP=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit/run/test_loop_end.py $(ARGS)

check: $(VENV)/ready ## Check formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/bench-ready ## Run the benchmarks, and write docs/benchmarks.*
	$(BIN)/python -m benchmarks

chaos: $(VENV)/ready ## Inject faults for about 20 minutes: kill, freeze, deploy, partition, full disk, clock skew
	CKPT_MODEL_DEPTH=2 $(BIN)/python -m pytest -q -n $(JOBS) tests/protocol
	$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/ready ## Decode forged, torn and random bytes: 30,000 cases of each kind
	$(BIN)/python -m tests.fuzz $(ARGS)

api: $(VENV)/ready ## Generate docs/reference/api.md from the docstrings
	$(BIN)/python docs/.api

docs: $(VENV)/docs-ready ## Build the documentation into site/ (warnings are errors)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

# 77: there is no Docker engine; the script has said so.
compose-check: ## Start docker-compose.yml, kill its worker, check that the agent resumes (needs Docker)
	$(PYTHON) deploy/compose_check.py || test $$? -eq 77

format: $(VENV)/ready ## Format the code and fix lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove everything that make has created
	rm -rf $(VENV) $(LOWEST) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
