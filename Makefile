# make quickstart   the main job, end to end
# make quick        under a minute, while editing
# make test         before a commit: lint, types, tests, documentation
# make slow         the tests marked slow; CI runs `make test` and `make slow`
# Each is complete on a machine with Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed
DEV := .venv/.installed-dev
# uv installs torch and the rest in half a minute, pip in two. Only pip knows of a private index in
# pip.conf, so it is tried if uv fails. Compiled once here, torch and its kin are imported in 6 seconds
# in place of 16 by each process that a test starts.
OPTIONS := --quiet --constraint constraints.txt
INSTALL = $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python $(OPTIONS) $(1) || \
	$(BIN)/python -m pip install $(OPTIONS) $(1)

# One process a core, one thread a process. The tests of a file share its fixtures, so a file stays
# with one process.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile
# Laws and pure functions: what most edits break.
QUICK := tests/test_architecture.py tests/test_language.py tests/test_rooms.py tests/test_types.py \
	tests/test_config.py tests/metrics tests/objectives tests/pairs tests/data/test_sample_order.py \
	tests/contracts/test_objectives.py tests/contracts/test_pairs.py vlmtune/metrics vlmtune/objectives

# Files with slow tests: no other is imported. Those that take longest start first, so that no core
# waits at the end.
SLOW = $(sort $(shell grep -rl --include='test_*.py' 'mark\.slow' tests))
LONGEST := tests/test_documented_commands.py tests/export/test_to_onnx.py \
	tests/faults/test_kills.py tests/contracts/test_adapters.py \
	tests/distributed/test_real_adapters.py tests/test_gpu_bench.py

.PHONY: quickstart quick test slow lint types unit docs clean

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

quick: $(DEV)
	$(BIN)/ruff check .
	$(PYTEST) -q -m 'not slow' $(QUICK)

# Types and documentation fill the minute in which the last test files keep one core busy.
test: lint
	$(MAKE) -j 3 unit types docs

slow: $(DEV)
	$(PYTEST) --no-loadscope-reorder -m slow $(LONGEST) $(filter-out $(LONGEST),$(SLOW))

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(DEV)
	$(BIN)/pyright

unit: $(DEV)
	$(PYTEST) -m 'not slow'

docs: $(DEV)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

clean:
	rm -rf .venv runs docs/_build docs/api
