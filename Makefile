# `make help` lists what there is. Nothing is needed but Python 3.11+ and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# A lock file to install first: make LOCK=requirements.lock test. It is of Linux and Python 3.11; elsewhere leave it out.
LOCK ?=
INSTALL = $(if $(LOCK),$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r $(LOCK) && )$(BIN)/python -m pip install --quiet

# Flower and Ray report usage by default; nothing here does.
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export RAY_USAGE_STATS_ENABLED = 0

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-exhaustive mutants fuzz trust trust-all check generated docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/installed ## Run a private federation on embedded data; ARGS go to `fedpriv simulate`
	$(BIN)/fedpriv simulate --out runs/demo --overwrite $(ARGS)

test: $(VENV)/installed-test ## Run the tests, one process a core; ARGS go to pytest
	$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

test-slow: $(VENV)/installed-test ## Run the tests that take longer, one process a core
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "slow and not exhaustive" $(ARGS)

test-exhaustive: $(VENV)/installed-test ## Run the longest cases, which repeat others in another way or with other values
	$(BIN)/python -m pytest -n auto --dist loadgroup -m exhaustive $(ARGS)

mutants: $(VENV)/installed-test ## Plant faults in a copy, one at a time: a default test must notice each; ARGS select
	$(BIN)/python tests/helpers/mutants.py $(ARGS)

fuzz: $(VENV)/installed-dev ## Look for inputs that a reader must refuse and does not, guided by coverage; ARGS select
	$(BIN)/python -P tests/helpers/guided_fuzzing.py $(ARGS)

check: $(VENV)/installed-dev ## Lint code and Dockerfile, check the format and types, run the examples in docstrings and the layering test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/python -m pytest --doctest-modules fedpriv tests/test_architecture.py

trust: $(VENV)/installed-test ## Run what docs/trust.md counts, and write the page; ARGS go to pytest
	$(BIN)/python tests/helpers/trust.py -n auto --dist loadgroup $(ARGS)

trust-all: $(VENV)/installed-test ## The same with all audits and all planted faults, which takes hours
	$(BIN)/python benchmarks/audit.py --write
	$(BIN)/python tests/helpers/audit_faults.py --write
	$(BIN)/python tests/helpers/mutants.py --write
	$(MAKE) trust

generated: $(VENV)/installed ## Write the tables in README and docs, and Flower's run-config, anew
	$(BIN)/python docs/_site/blocks.py

docs: $(VENV)/installed-docs ## Build the documentation into site/, without network; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

define LOCK_HEADER
# The versions of all dependencies but torch, with hashes, on Linux and Python 3.11. torch is left out because its builds
# differ by platform and hardware: a hash of the build for CPUs would refuse the one for CUDA or macOS.
# Install it with `make LOCK=requirements.lock test`; `make lock` writes it anew.
endef
export LOCK_HEADER

lock: $(BIN)/python ## Write requirements.lock anew: versions and hashes of all dependencies but torch
	$(BIN)/python -m pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --all-extras --strip-extras --generate-hashes \
		--unsafe-package torch --unsafe-package setuptools --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --output-file requirements.lock pyproject.toml
	@{ echo "$$LOCK_HEADER"; cat requirements.lock; } > requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## Remove the virtual environment and the tools' caches
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[test]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[test,dev]'
	@touch $@ $(VENV)/installed $(VENV)/installed-test

$(VENV)/installed-docs: pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	@touch $@ $(VENV)/installed
