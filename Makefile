# Each command sets up what it needs: Python 3.11 or newer, git and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RANGE ?= HEAD^!
MACHINE ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: watch bench test nightly lint clean

## Benchmark the newest commits with what this machine has, then open the dashboard (ONCE=1: don't).
watch: $(VENV)/run.stamp
	@$(BIN)/bandwatch watch $(if $(ONCE),--once)

## Measure the commits of RANGE into results/MACHINE (the host's name), to be committed there.
bench: MACHINE_OPTION := $(if $(MACHINE),--machine "$(MACHINE)")
bench: $(VENV)/run.stamp
	$(BIN)/asv machine --yes $(MACHINE_OPTION)
	$(BIN)/asv run $(MACHINE_OPTION) "$(RANGE)"

test: lint
	$(BIN)/python -m pytest

## Compile and look at every kernel variant, not only the 600 of an ordinary test run.
nightly: $(VENV)/dev.stamp
	MEMBOUND_NIGHTLY=1 $(BIN)/python -m pytest tests/kernels/test_static.py

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .asv .bandwatch/dataset build dist .*_cache

$(VENV)/run.stamp: EXTRAS := kernels,bench,dashboard
$(VENV)/dev.stamp: EXTRAS := kernels,bench,dashboard,dev
$(VENV)/%.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[$(EXTRAS)]'
	@touch $@
