PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/core  ## train a small character model for about a minute and let it write
	@rm -rf out/demo
	$(BIN)/relmo train lm src/relmo/data/alice.txt --preset demo --out out/demo
	$(BIN)/relmo generate out/demo --prompt "Alice " --limit 400 --temperature 0.6

test: .venv/dev lint  ## lint, check types, run all tests
	$(BIN)/python -m pytest

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/core  ## the speed table of this machine, in some minutes
	$(BIN)/relmo bench

.venv/core: pyproject.toml hatch_build.py $(wildcard src/relmo/nn/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relmo needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv out build dist .mypy_cache .ruff_cache .pytest_cache
