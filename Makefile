# Everything from a fresh clone: `make run` does the main job on this machine's device, `make test` tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test test-slow check schemas clean

run: $(VENV)/ready
	$(BIN)/perfci compare --base HEAD

test: $(VENV)/ready
	$(BIN)/python -m pytest -m "not slow and not alone" --numprocesses logical --maxprocesses 8 --dist worksteal
	$(BIN)/python -m pytest -m "not slow and alone"

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

schemas: $(VENV)/ready
	$(BIN)/python -m perfci.model.schemas schemas

clean:
	rm -rf $(VENV) perfci-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,torch]"
	touch $@
