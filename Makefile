# Everything from a fresh clone: `make run` does the main job on this machine's device, `make test` tests.
PYTHON ?= python3
VENV ?= .venv
VARIANT ?= cuda13
BIN := $(VENV)/bin
BESIDE := --numprocesses logical --maxprocesses 8 --dist loadgroup
WORKFLOWS := src/perfci/cli/templates/perf.yml $(wildcard .github/workflows/*.yml examples/*/.github/workflows/*.yml)
SCRIPTS := action/start $(wildcard .ci/* examples/*/*.sh)

.PHONY: run test test-slow test-docker test-gpu check schemas pictures dist image prove-image clean

run: $(VENV)/ready
	$(BIN)/perfci compare --base HEAD

test: $(VENV)/ready
	$(BIN)/python -m pytest -m "not slow and not alone" $(BESIDE)
	$(BIN)/python -m pytest -m "not slow and alone"

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest -m "slow and not alone" $(BESIDE)
	$(BIN)/python -m pytest -m "slow and alone"

test-docker: $(VENV)/ready
	$(BIN)/python -m pytest -m docker

test-gpu: $(VENV)/ready
	$(BIN)/python -m pytest -m gpu

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --pedantic --strict-collection --quiet . $(filter-out .github/%,$(WORKFLOWS))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml publish/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/shellcheck $(SCRIPTS)
	$(BIN)/hadolint Dockerfile

schemas: $(VENV)/ready
	$(BIN)/python -m perfci.model.schemas schemas

pictures: $(VENV)/ready
	npm install --silent --no-save --prefix $(VENV)/pictures github-markdown-css@5.8.1
	$(BIN)/python -m docs.pictures.take $(VENV)/pictures/node_modules/github-markdown-css/github-markdown.css

dist: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

image: $(VENV)/ready
	arguments=$$($(BIN)/python -m perfci.system.pins $(VARIANT)) && echo "$$arguments" | xargs docker build . \
		--tag perfci:$(VARIANT) --build-arg REVISION=$$(git rev-parse HEAD)

prove-image: image
	.ci/prove-image $(VARIANT)

clean:
	rm -rf $(VENV) dist perfci-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,torch]"
	touch $@
