PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint docs campaigns load fuzz bench recipe release-check clean

demo: .venv/core  ## one word in two sentences: what it is near to in context, and what without
	@$(BIN)/python examples/meaning_in_context.py
	@echo 'Next: type "source .venv/bin/activate", and then "relmo --help" and the commands of README.md work as printed.'
	@echo 'Or type ".venv/bin/relmo" in place of "relmo".'

test: .venv/dev lint  ## lint, check types, run the quick tests: a few minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser"

test-slow: .venv/dev  ## run all other tests (trainings, browsers, guides, notebooks) and build the site
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or browser"
	$(MAKE) docs

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs  ## the site, in out/site: open out/site/index.html
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --doctree-dir out/site-doctrees docs out/site

campaigns: .venv/dev fuzz  ## fuzz, and long tests of kills, threads and interruptions: an hour
	$(BIN)/python tests/campaigns/kills.py
	$(BIN)/python tests/campaigns/threads.py
	$(BIN)/python tests/campaigns/interruptions.py

load: .venv/load  ## relmo serve under load: throughput, four times too much, bad and hostile clients, kills, half an hour; with wrk where it is installed
	$(BIN)/python tests/campaigns/service.py
	$(BIN)/python tests/campaigns/hostile.py

fuzz: .venv/dev  ## damage files of every kind, 10,000 times, and see that relmo says so in one line
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --count 10000

recipe: .venv/core  ## how the bundled models were made, from raw text on, at reduced size
	RELMO=$(BIN)/relmo PYTHON=$(BIN)/python experiments/recipes/bundled_models.sh $${RELMO_DATA:-data} out/recipe reduced

release-check: .venv/dev  ## build the sdist and the wheels, and try each in a bare environment, without a compiler and with one
	PYTHON=$(abspath $(BIN))/python .ci/release-check

bench: .venv/core  ## the speed table of this machine, in some minutes
	$(BIN)/python -m benchmarks

.venv/core: pyproject.toml hatch_build.py $(wildcard src/relmo/nn/kernels/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relmo needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

.venv/load: .venv/dev
	$(BIN)/pip install --quiet 'schemathesis>=4'
	@touch $@

.venv/docs: .venv/core
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

clean:
	rm -rf .venv out build dist .mypy_cache .ruff_cache .pytest_cache
