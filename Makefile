# dcplake: everything a checkout can do. `make help` lists the targets.
#
# Setup is a stamp file named after the lock's hash: a second run does nothing, a changed lock
# installs again. What it does is in tools/setup.sh, so that this file stays readable.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
# A suite starts hundreds of Pythons: without compiled modules each takes two seconds of CPU more.
unexport PYTHONDONTWRITEBYTECODE

VENV   := .venv
PYTHON := $(VENV)/bin/python
ARGS   ?=
BENCH  ?= $(patsubst benchmarks/%.py,%,$(wildcard benchmarks/[a-z]*.py))
ROUNDS ?= 1
SEED   ?= $(shell date +%s)
SCALE  ?= 4
SEEDS  ?= 10000

.PHONY: help setup airflow-setup docs-setup interop-setup demo test interop log-store lint format types core bench soak site lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## virtual environment, Delta jars, Java (does nothing when they are there)
	@tools/setup.sh job

airflow-setup:  ## the separate environment that runs the Airflow DAG
	@tools/setup.sh airflow

docs-setup:  ## the separate environment that builds the documentation's site
	@tools/setup.sh docs

demo: setup  ## producer, real documents, replication, SQL on the result (ARGS="..." passes options)
	@$(VENV)/bin/dcplake demo $(ARGS)

# More processes than a small machine has cores: tests wait for sockets, disks and time limits, too.
# Dozens of JVMs start in them, each with a quarter less CPU where set-up has archived Spark's classes.
# A module is tested by one process, which makes once what its tests share.
test: setup  ## run all tests (ARGS="tests/wire -x" narrows)
	@! command -v flock >/dev/null || flock $(VENV)-classes.lock true
	@$(PYTHON) -m pytest -n 4 --dist loadscope --no-loadscope-reorder --durations=40 --durations-min=5 $(ARGS)

# The drivers of the official clients.
JAVA_DRIVER := tests/interop/java/target/classes/dcplake/interop/Driver.class
GO_DRIVER   := tests/interop/go/bin/driver
# Servers of object stores, beside moto: a second one of S3, Google's and Azure's.
VERSITYGW   := tests/interop/go/bin/versitygw
FAKE_GCS    := tests/interop/go/bin/fake-gcs-server
AZURITE     := build/azurite/node_modules/.package-lock.json
needs        = command -v $(1) >/dev/null || { echo "make interop: $(1) is not installed" >&2; exit 1; }

interop-setup: $(JAVA_DRIVER) $(GO_DRIVER) $(VERSITYGW) $(FAKE_GCS) $(AZURITE)  ## what the official clients' tests run, built where its sources changed

interop: setup interop-setup  ## the official clients, servers of object stores, our Java, pages in a browser, alarms (needs Maven, Go, Node, Chromium, promtool)
	@$(call needs,chromium); $(call needs,chromedriver); $(call needs,promtool)
	@$(PYTHON) -m pytest -m interop $(or $(ARGS),tests/interop)

$(JAVA_DRIVER): tests/interop/java/pom.xml $(wildcard tests/interop/java/src/main/java/dcplake/interop/*.java)
	@$(call needs,mvn); $(call needs,java)
	rm -rf $(dir $<)target && mvn --quiet --batch-mode --file $< compile

$(GO_DRIVER): $(wildcard tests/interop/go/*.go) tests/interop/go/go.mod tests/interop/go/go.sum
	@$(call needs,go)
	cd $(dir $<) && go vet . && go build -mod=readonly -o bin/driver .

$(VERSITYGW):
	@$(call needs,go)
	GOBIN=$(abspath $(dir $@)) go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

$(FAKE_GCS):
	@$(call needs,go)
	GOBIN=$(abspath $(dir $@)) go install github.com/fsouza/fake-gcs-server@v1.56.1

# In build/, since a folder of packages has many thousand files; npm writes the one that is named last.
$(AZURITE): $(wildcard tests/interop/azurite/*.json)
	@$(call needs,npm)
	mkdir -p build/azurite && cp $^ build/azurite
	npm ci --prefix build/azurite --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error && touch $@

LOG_STORE := dcp/lake/spark/log_store
log-store:  ## build the jar of dcp/lake/spark/log_store, which is committed (needs Maven)
	@$(call needs,mvn); $(call needs,java)
	mvn --quiet --batch-mode --file $(LOG_STORE)/pom.xml clean package
	cp build/log-store/dcplake-s3-log-store.jar $(LOG_STORE)/

lint: setup  ## style and formatting
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

format: setup  ## put the formatting right
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

types: setup  ## mypy, strict
	@$(VENV)/bin/mypy

core: setup  ## the tests of wire and protocol on the lowest and the newest other Python of this machine
	@tools/core.sh

bench: setup  ## measure everything in benchmarks/ (BENCH="decode" narrows)
	@for name in $(BENCH); do echo "== $$name"; $(PYTHON) -m benchmarks.$$name $(ARGS); done

# Tests take their seed and the size of their data from these two; without them both are fixed.
soak: setup  ## simulated systems, slow tests and properties with fresh seeds (ROUNDS=10 SEED=1 SCALE=4 SEEDS=10000)
	@echo "== simulated systems: $(SEEDS) from $(SEED)00000 on"; \
	$(PYTHON) -m tests.simulation $(SEED)00000 $(SEEDS) --processes $$(nproc)
	@for round in $$(seq $(ROUNDS)); do \
	    seed=$$(($(SEED) + round - 1)); \
	    echo "== soak $$round of $(ROUNDS): SEED=$$seed SCALE=$(SCALE)"; \
	    DCPLAKE_TEST_SEED=$$seed DCPLAKE_TEST_SCALE=$(SCALE) \
	        $(PYTHON) -m pytest -m "slow or hypothesis" --hypothesis-seed=$$seed $(ARGS); \
	done

# The pages beside the files that they link to: a link that works in the checkout works in the site.
SITE_SOURCE := README.md CHANGELOG.md LICENSE docs benchmarks/README.md conf/dcplake.toml deploy/grafana.json deploy/alerts.yml deploy/dcplake.service tools/site/iframe-worker.js tools/site/site.css conf/spark-defaults.conf schemas/replica_suite.json

site: docs-setup  ## the documentation as a site, in build/site; a broken link is an error
	@rm -rf build/site-source && mkdir -p build/site-source
	@tar -cf - $(SITE_SOURCE) | tar -xf - -C build/site-source
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict  # --quiet would count no warnings
	@echo "site: build/site/index.html"

lock:  ## resolve the lock files anew (UPGRADE=1 lifts the versions; needs the network)
	@tools/lock.sh $(if $(UPGRADE),--upgrade)

clean:  ## remove what setup, tests and demo made
	@rm -rf .venv .venv-airflow .venv-docs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-lake log tests/interop/java/target tests/interop/go/bin
	@find dcp jobs tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
