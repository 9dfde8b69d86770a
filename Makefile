# Needs Python 3.11 to 3.13 and nothing else: each word installs what it needs into .venv, once.
#   make demo    what drafting brings on a small real model
#   make test    quick tests          make check   format, lint, types, imports, quick tests
#   make fix     format and lint      make docs    the documentation, and the examples in it
#   make bench   the benchmark set    make dist    wheel and source archive

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODULES := specdec drafters verifiers plugins tests benchmarks

.PHONY: demo test check lint fix docs bench dist clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed-hf
	$(BIN)/specdec demo $(DEMO)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not gpu" $(PYTEST)

check: lint test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check $(MODULES)
	$(BIN)/ruff check $(MODULES)
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(MODULES)
	$(BIN)/ruff format $(MODULES)

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python -m pytest tests/docs

bench: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" benchmarks/run.sh

dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) dist build docs/_build

# torch comes first, so that its version is chosen here; where that one is not to be had, pip chooses.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed; name one with make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-torch: | $(VENV)/bin/python
	@echo "installing torch into $(VENV) (once)"
	@$(BIN)/python -c "import torch" 2>/dev/null \
		|| $(PIP) install -q "torch==2.13.0" \
		|| $(PIP) install -q "torch>=2.9"
	@touch $@

$(VENV)/.installed-%: pyproject.toml $(VENV)/.installed-torch
	@echo "installing specdec with its extra '$*' into $(VENV) (once)"
	@$(PIP) install -q -e ".[$*]"
	@touch $@

.PRECIOUS: $(VENV)/.installed-%
