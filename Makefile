# Everything from a fresh clone: `make run` does the main job on this machine's device, `make test` tests.
PYTHON ?= python3
VENV ?= .venv
VARIANT ?= cuda13
BIN := $(VENV)/bin
BESIDE := --numprocesses logical --maxprocesses 8 --dist loadgroup
# Whole runs wait much of their time, for a budget, a container or a job of Slurm: three on two cores. With four, pairs of
# one run resemble each other by what runs beside it.
CORES := $(shell getconf _NPROCESSORS_ONLN)
CROWDED := --numprocesses $(shell echo $$((3 * $(CORES) / 2))) --maxprocesses 8 --dist loadgroup
WORKFLOWS := src/perfci/cli/templates/perf.yml src/perfci/cli/templates/nightly.yml $(wildcard .github/workflows/*.yml examples/*/.github/workflows/*.yml)
SCRIPTS := action/start src/perfci/cli/templates/perf.slurm.sh $(wildcard .ci/* examples/*/*.sh)

NPM := $(if $(shell command -v npm),node_modules)

.PHONY: run test test-all test-docker test-gpu check schemas pictures dist image prove-image clean

# Tells of pip's lines those that somebody waits for; what goes wrong stands on stderr, which is not filtered.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
define install
	@$(BIN)/python -m pip install --progress-bar off --constraint constraints.txt --editable "$(1)" | \
		while read -r line; do case "$$line" in \
			Downloading*) echo "  $${line#Downloading }" ;; \
			Installing\ collected*) echo "  installing" ;; \
		esac; done
endef

run: $(VENV)/runs
	$(BIN)/perfci compare HEAD --measure-all

test: $(VENV)/ready $(NPM)
	$(BIN)/python -m pytest -m "not slow and not alone" $(BESIDE)
ifneq ($(shell command -v nvidia-smi),)
	$(BIN)/python -m pytest -m "not slow and alone"
endif

test-all: $(VENV)/ready $(NPM)
	$(BIN)/python -m pytest -m "not alone and not simulation" $(CROWDED)
	$(BIN)/python -m pytest -m "alone"

test-docker: $(VENV)/ready
	$(BIN)/python -m pytest -m docker

test-gpu: $(VENV)/ready
	$(BIN)/python -m pytest -m gpu

check: $(VENV)/ready node_modules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --pedantic --strict-collection --quiet . $(filter-out .github/%,$(WORKFLOWS))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml publish/action.yml
	node --import ./tests/github/json.mjs tests/github/workflows.mjs $(WORKFLOWS) action.yml publish/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.gitlab-ci examples/ci/.gitlab-ci.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.buildkite examples/ci/buildkite.yml
	$(BIN)/shellcheck $(SCRIPTS)
	$(BIN)/hadolint Dockerfile

schemas: $(VENV)/ready
	$(BIN)/python -m perfci.schemas schemas

pictures: $(VENV)/ready node_modules
	$(BIN)/python -m docs.pictures.take node_modules/github-markdown-css/github-markdown.css

dist: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

image: $(VENV)/ready
	arguments=$$($(BIN)/python -m perfci.system.pins $(VARIANT)) && echo "$$arguments" | xargs docker build . \
		--tag perfci:$(VARIANT) --tag perfci --build-arg REVISION=$$(git rev-parse HEAD)

prove-image: image
	.ci/prove-image $(VARIANT)

clean:
	rm -rf $(VENV) node_modules dist perfci-out .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/runs: pyproject.toml constraints.txt
	@echo "Installing perfci and torch into $(VENV): some minutes, and up to 3 GB to fetch; once"
	$(PYTHON) -m venv $(VENV)
	$(call install,.[torch])
	@touch $@

$(VENV)/ready: $(VENV)/runs
	@echo "Installing what the tests need into $(VENV), too"
	$(call install,.[dev])
	@touch $@

node_modules: package-lock.json
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20 or newer, with npm" >&2; exit 1; }
	npm ci --silent
	touch $@
