# make quickstart: the main job, end to end.   make test: everything CI checks.
# Both are complete on a machine with Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed
DEV := .venv/.installed-dev
# uv installs torch and the rest in half a minute, pip in two. Only pip knows of a private index in
# pip.conf, so it is tried if uv fails.
OPTIONS := --quiet --constraint constraints.txt
INSTALL = $(BIN)/uv pip install --python $(BIN)/python $(OPTIONS) $(1) || \
	$(BIN)/python -m pip install $(OPTIONS) $(1)

.PHONY: quickstart test lint types unit docs clean

$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "expected Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv
	$(call INSTALL,--editable .)
	@touch $@

$(DEV): $(RUN)
	$(call INSTALL,--editable '.[dev]')
	@touch $@

quickstart: $(RUN)
	$(BIN)/vlmtune quickstart

test: lint types unit docs

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(DEV)
	$(BIN)/pyright

unit: $(DEV)
	$(BIN)/python -m pytest

docs: $(DEV)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

clean:
	rm -rf .venv runs docs/_build docs/api
