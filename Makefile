# dcplake: everything a checkout can do. `make help` lists the targets.
#
# Setup is a stamp file named after the lock's hash: a second run does nothing, a changed lock
# installs again. What it does is in conf/setup.sh, so that this file stays readable.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help

VENV   := .venv
PYTHON := $(VENV)/bin/python
ARGS   ?=

.PHONY: help setup airflow-setup demo test lint format types bench soak lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1|/' | column -t -s '|'

setup:  ## virtual environment, Delta jars, Java (does nothing when they are there)
	@conf/setup.sh job

airflow-setup:  ## the separate environment that runs the Airflow DAG
	@conf/setup.sh airflow

demo: setup  ## producer, real documents, replication, SQL on the result (ARGS="..." passes options)
	@$(VENV)/bin/dcplake demo $(ARGS)

test: setup  ## run all tests (ARGS="tests/wire -x" narrows)
	@$(PYTHON) -m pytest $(ARGS)

lint: setup  ## style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

format: setup  ## put the formatting right
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

types: setup  ## mypy, strict
	@$(VENV)/bin/mypy

bench: setup  ## measure: drain, end to end, one round on small and large tables
	@$(PYTHON) -m benchmarks $(ARGS)

soak: setup  ## the slow tests again and again, with fresh seeds (ARGS="--rounds 20 --seed 1")
	@$(PYTHON) -m tests.soak $(ARGS)

lock:  ## resolve the lock files anew (UPGRADE=1 lifts the versions; needs the network)
	@conf/lock.sh $(if $(UPGRADE),--upgrade)

clean:  ## remove what setup, tests and demo made
	@rm -rf .venv .venv-airflow build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-lake log
	@find dcp jobs tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
