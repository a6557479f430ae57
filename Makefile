# Needs nothing but Python 3.11 or newer with pip; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Has the lowest versions of all dependencies that pyproject.toml allows.
LOWEST := .venv-lowest
LOWEST_TESTS := tests/contract tests/redis tests/unit/stores/encrypted tests/cli \
	$(filter-out %_load.py,$(wildcard tests/workers/scenarios/test_*.py))
# Many tests wait for others most of the time.
JOBS ?= 6
# Hundreds of processes import the same modules: Python may keep what it has compiled.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-deep test-lowest test-loops check bench chaos fuzz compose-check api docs format clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "This needs Python 3.11 or newer; for another one than python3: make PYTHON=/path/to/python")'
	@echo "Everything goes into $(VENV); the first time that takes about a minute."
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

demo: $(VENV)/demo-ready ## Kill an agent's worker, deploy the next one, and see the bill: half a minute
	@$(BIN)/celery-ckpt demo $(ARGS)

test: $(VENV)/ready ## Run all tests, on real servers that come in a wheel
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-deep: test-lowest test-loops ## Run the long tests, each a target of its own

$(LOWEST)/ready: pyproject.toml tests/support/lowest_versions.py | $(VENV)/ready
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/python -m tests.support.lowest_versions suite > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt --editable '.[suite]'
	@touch $@

# Ignored: what Celery 5.6 raises in a destructor when a result backend has been away.
test-lowest: $(LOWEST)/ready ## Run stores, commands and workers on the lowest versions of all dependencies
	$(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal $(LOWEST_TESTS) \
		-W ignore::pytest.PytestUnraisableExceptionWarning $(ARGS)

test-loops: $(VENV)/ready ## Interrupt loops of many iterations everywhere
	CKPT_DEEP=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit/run/test_loop_end.py $(ARGS)

check: $(VENV)/ready ## Lint, check types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/bench-ready ## Measure against the bare commands and against others; writes docs/benchmarks.*
	$(BIN)/python -m benchmarks

chaos: $(VENV)/ready ## Kill, freeze, deploy and cut off workers and servers for about 20 minutes, and judge
	CKPT_MODEL_DEPTH=2 $(BIN)/python -m pytest -q -n $(JOBS) tests/protocol
	$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/ready ## Give forged, torn and strange bytes to everything that decodes: 30,000 cases of each kind
	$(BIN)/python -m tests.fuzz $(ARGS)

api: $(VENV)/ready ## Write docs/reference/api.md anew, from the docstrings
	$(BIN)/python docs/.api

docs: $(VENV)/docs-ready ## Build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

# 77: there is no engine here, which it has said.
compose-check: ## Bring docker-compose.yml up, kill its worker, see the agent go on; needs a Docker engine
	$(PYTHON) deploy/compose_check.py || test $$? -eq 77

format: $(VENV)/ready ## Put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what was made
	rm -rf $(VENV) $(LOWEST) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
