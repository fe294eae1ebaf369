# every target sets itself up: a virtual environment in .venv, the project and its tools installed, then the work
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint format mutation setup clean

PYTHON ?= python3
ARGS ?=
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := circuit nodes compiler drafts
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# only a finished installation leaves it, one per Python version
STAMP := $(VENV)/.installed-$(PYTHON_VERSION)

help: ## show this list
	@echo "usage: make TARGET [PYTHON=python3.12] [JOBS=2] [ARGS='...']"
	@sed -n 's/^\([a-z]*\):.*## /  \1 /p' $(firstword $(MAKEFILE_LIST)) | awk '{ printf "  %-8s", $$1; $$1 = ""; print }'

demo: $(STAMP) ## draft with a trained checkpoint, eager and as a circuit (ARGS goes to `circuit demo`)
	@$(BIN)/circuit demo $(ARGS)

test: lint ## check style and types, then run every test (ARGS goes to pytest)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

mutation: $(STAMP) ## plant faults in every node and lowering, and tell how many the tests catch (docs/parity.md)
	$(BIN)/python -m tests.mutation.score --jobs $(JOBS) $(ARGS)

lint: $(STAMP) ## check style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

setup: $(STAMP) ## install into .venv and stop there
	@echo "$(BIN)/circuit is installed"

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "error: $(PYTHON): expected Python 3.11 or newer, got $(or $(PYTHON_VERSION),none); run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "== setting up $(VENV) with Python $(PYTHON_VERSION); the first time takes a few minutes"
	@rm -f $(VENV)/.installed-*
	@if [ "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$(PYTHON_VERSION)" ]; then \
	    $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || $(PYTHON) -m venv --clear --without-pip $(VENV); fi
	@# a Python packaged without ensurepip makes no pip in the environment; its own pip installs there instead
	@pip="$(BIN)/python -m pip"; $$pip --version >/dev/null 2>&1 || pip="$(PYTHON) -m pip --python $(BIN)/python"; \
	    $$pip install --disable-pip-version-check --no-input -c constraints.txt -e '.[hf,dev]' \
	    | sed -un -E -e 's#^ *(Downloading|Using cached|Processing) (.*/)?([^/ -]+-[^-]+)-[^ ]*( \([0-9].*)?( \(from.*)?$$#   \3\4#p' \
	        -e 's/^(Installing collected packages).*/   \L\1/p'
	@touch $@
