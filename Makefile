# `make brackets` and `make test` do everything on a fresh machine: Python 3.11+, pip and make are enough.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What to install with the package; qiskit-aer's GPU build: `make EXTRAS=aer-gpu,plots,dev …`.
EXTRAS ?= aer,plots,dev
ARGS ?=

.PHONY: help setup brackets reproduce test test-slow lint bench docs tutorials clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Installed once, and again whenever pyproject.toml is newer. A torch that is already there and satisfies
# pyproject's range stays (pip installs nothing over it).
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ising-attn needs Python 3.11 or newer; say make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $@

setup: $(VENV)/.installed  ## create .venv and install

brackets: setup  ## the main job: bracket matching through simulated quantum annealing (pass options in ARGS)
	$(BIN)/python experiments/brackets.py --sampler=dqa $(ARGS)

reproduce: setup  ## all rows of the reproduction, resumable: make reproduce ARGS="--quick" (or --workers=8, --list, …)
	$(BIN)/python experiments/reproduce.py $(ARGS)

test: setup  ## unit tests, under 10 minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

test-slow: setup  ## the tests that take longer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow $(ARGS)

lint: setup  ## style, types and the layer contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## speed against peers, as ratios
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# With what builds the pages, once, and again whenever pyproject.toml is newer.
$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

docs: $(VENV)/.installed-docs  ## the documentation site, into site/: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: $(VENV)/.installed-docs  ## run the notebooks of docs/tutorials again and keep their outputs
	OMP_NUM_THREADS=1 $(BIN)/python docs/execute_tutorials.py

clean:  ## remove what was built (runs/ and results/ stay)
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
