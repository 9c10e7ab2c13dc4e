# The commands that a contributor types; CONTRIBUTING.md says more. `make` alone lists them.
PYTHON ?= python3
BIN = venv/bin

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

venv/.made: pyproject.toml
	$(PYTHON) -m venv venv
	$(BIN)/pip install -q -e '.[test,test-slow,lint,docs]'
	touch $@

venv: venv/.made  ## make the virtual environment that the others use

unit: venv  ## tests that need no server
	$(BIN)/pytest -q tests/unit

test: venv  ## the quick tests of every kind; two to three minutes on two cores
	$(BIN)/pytest -q -n auto

slow: venv  ## the tests that explore: long runs, every kill point; make slow SEED=7
	$(BIN)/pytest -q -n auto -m 'slow and not nightly' $(if $(SEED),--hypothesis-seed=$(SEED))

lint: venv  ## style, layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/unasync.py --check
	$(BIN)/mypy -p urifilter_redis -p cli

format: venv  ## format the code, and make the blocking twins of the awaited sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/unasync.py

site: venv  ## the pages as a site, in site/
	$(BIN)/sphinx-build -q -W --keep-going -b html docs site

ci:  ## what CI runs at each submission
	.ci/run

nightly:  ## what is too long for that: the longest explorations, every server, other Pythons, coverage
	.ci/nightly

dist: venv  ## build wheel and sdist, and check them
	rm -rf dist
	$(BIN)/hatchling build
	$(BIN)/twine check --strict dist/*

.PHONY: help venv unit test slow lint format site ci nightly dist
