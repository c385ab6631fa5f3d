# Common tasks. The first one makes their environment, .venv, with the tested versions:
#   make test PYTHON=python3.11    another Python for it, while there is none
PYTHON := $(shell for name in python3.12 python3; do \
  $$name -c 'import venv' 2>/dev/null && echo $$name && break; done)
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)

.PHONY: test integration docs lint types
test: .venv/made
	$(BIN)/pytest
integration: .venv/made
	$(BIN)/pytest -m integration
docs: .venv/made
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs
lint: .venv/made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types: .venv/made
	$(BIN)/mypy

.venv/made: setup.cfg constraints.txt
	[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[test,docs]'
	touch $@
