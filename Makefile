# Two commands do everything: `make run` and `make test`. Both set up .venv first, from Python 3.11 or newer and pip alone.
PYTHON ?= python3
BIN := .venv/bin
# pip compiles nothing here, so what is imported is compiled then, and kept even where the environment says not to
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-slow check format clean

run: .venv/run.stamp  ## the main job, on data that ship with the package: about two minutes on 2 cores
	$(BIN)/squareloss compare digits --quick

test: .venv/test.stamp check  ## checks and all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test-slow: .venv/test.stamp  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m slow

check: .venv/test.stamp  ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist src/*.egg-info

INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt

# torch is installed first and pinned: an open range would pull gigabytes of CUDA
.venv/base.stamp: constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	touch $@

.venv/run.stamp: .venv/base.stamp pyproject.toml
	$(INSTALL) --editable .
	touch $@

.venv/test.stamp: .venv/base.stamp pyproject.toml
	$(INSTALL) --editable '.[test]'
	touch .venv/run.stamp $@
