# Every command of the project, each written once.
#
#   make         set up, then plan and run the bundled demo and write its page
#   make test    set up, then run the tests; ARGS="-m slow" and the like go to pytest
#   make check   lint, types, arrows, tests
#   make format  let ruff mend what it can
#   make sweep   the tests that go through every case of a large family
#   make bench   measure
#   make docs    run the examples of the documents
#   make site    build the documents as a site, its links checked
#   make clean   remove all that the other targets made

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 4
ARGS ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# A run starts hundreds of processes, which share what Python compiles, whatever the environment says of that.
export PYTHONDONTWRITEBYTECODE :=
# The constraints go in by environment so that they hold for the build's own environment too.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install -q --disable-pip-version-check

# One environment, a stamp for what a user runs, for what the tests need besides, and for what builds the site.
RUN_READY := $(VENV)/.run-ready
TEST_READY := $(VENV)/.test-ready
SITE_READY := $(VENV)/.site-ready

DEMO_OUT := build/demo
DEMO_PAGE := build/demo.html
DEMO_SOURCE := '[{"y"}, {}]'
DEMO_TARGET := '[{"x"}, {"y"}]'

.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:
.PHONY: demo test check lint types arrows format sweep bench docs site clean

demo: $(RUN_READY)
	$(BIN)/reshard plan --mesh x=2,y=4 --shape 8,8 --dtype float32 $(DEMO_SOURCE) $(DEMO_TARGET)
	@rm -rf $(DEMO_OUT)
	$(BIN)/reshard run examples/demo.npy --mesh x=2,y=4 --source $(DEMO_SOURCE) --target $(DEMO_TARGET) --out $(DEMO_OUT)
	$(BIN)/reshard view plan --mesh x=2,y=4 --shape 8,8 --dtype float32 $(DEMO_SOURCE) $(DEMO_TARGET) --out $(DEMO_PAGE)

test: $(TEST_READY)
	$(PYTEST) -n auto --maxprocesses $(WORKERS) --dist loadfile $(ARGS)

check: lint types arrows test

lint: $(TEST_READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(TEST_READY)
	$(BIN)/mypy

arrows: $(TEST_READY)
	$(BIN)/lint-imports --no-logo

format: $(TEST_READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

sweep: $(TEST_READY)
	$(PYTEST) -m sweep $(ARGS)

bench: $(TEST_READY)
	$(BIN)/python -m bench $(ARGS)

docs: $(TEST_READY)
	$(PYTEST) tests/test_docs.py $(ARGS)

site: $(SITE_READY)
	$(BIN)/python -m mkdocs build --quiet
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find bench src tests -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(RUN_READY): pyproject.toml constraints.txt
	@echo "set-up: installing reshard and what it runs on into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -e .
	@touch $@

# What the tests need includes what a user runs, so this touches both stamps.
$(TEST_READY): pyproject.toml constraints.txt
	@echo "set-up: installing reshard, its test tools, jax, torch and mpi4py into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -e '.[test,jax,torch]'
	@touch $(RUN_READY) $@

$(SITE_READY): pyproject.toml constraints.txt
	@echo "set-up: installing what builds the site"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -e '.[site]'
	@touch $(RUN_READY) $@
