# Needs make and a Python >= 3.11, nothing else. Everything is installed into .venv, from requirements.lock.
#
#   make test KAFKA=testcontainers     a broker in a container instead of the embedded one
#   make test ARGS="-k lease -x"       further arguments for pytest (or for the tool of another target)
#   make test-fast                     the inner loop: unit tests without Spark and without a broker, about a minute
#   make test JOBS=1                   one process instead of six, each with a broker of its own; tests wait more than
#                                      they compute, so six are right for two cores, too
#   make setup PYTHON=/path/to/python  a certain Python

.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
STAMP := .venv/.installed
CLASSES := .venv/.classes
ARGS ?=
KAFKA ?=
JOBS ?= 6
# One a core: its tests compute more than they wait, and each further process takes 8 s of CPU to collect them.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
test-fast: JOBS := $(if $(filter file,$(origin JOBS)),$(CORES),$(JOBS))
# By files, in the order of tests/times.toml: the longest first, where xdist would begin with those of the most tests.
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder
# To catch what processes write takes half a millisecond of CPU a test: `make test` does.
BRIEF = --capture=sys
PYTHON ?=
# Where it is set, as in many containers, each of the many processes that tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-long test-times check format features bench bench-check screenshots chaos mutation \
  docs docs-serve docs-version wheel new-user lock clean
# The theme's advice about its successor is not news of this build.
export NO_MKDOCS_2_WARNING := 1

help: ## Show the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Install everything into .venv and fetch Kafka and Spark jars (instant and offline afterwards)
	@:

demo: setup ## Show queues, lifetimes and dead letters at work, on a broker of its own
	@$(BIN)/lapse demo $(ARGS)

test-fast: setup ## Run the unit tests that need neither a broker nor Spark: the loop while working, about a minute
	@LAPSE_QUICK=1 $(BIN)/python -m pytest -q $(PARALLEL) $(BRIEF) -m "not spark and not slow" tests/unit $(ARGS)

test: setup $(CLASSES) ## Run unit, integration and acceptance tests, against a real Kafka broker
	@$(BIN)/python -m pytest $(PARALLEL) $(if $(KAFKA),--kafka=$(KAFKA)) $(ARGS)

# Only the files with such tests: each process takes 8 s of CPU to collect all.
test-long: setup $(CLASSES) ## Run the tests that show at length what those of `make test` show (`.ci/run` runs both)
	@LAPSE_LONG=1 $(BIN)/python -m pytest $(PARALLEL) $(if $(KAFKA),--kafka=$(KAFKA)) \
	  $$(grep -rlE --include='test_*.py' 'mark\.long\b|\blong=' tests | sort) $(ARGS)

test-times: setup $(CLASSES) ## Run all tests, and record which files take longest: the next runs begin with them
	@$(BIN)/python -m pytest $(PARALLEL) --record-times $(ARGS)

check: setup ## Check format, style, types, the direction of imports, and that the documentation builds
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/mkdocs --quiet build --strict

docs: setup ## Build the documentation as a site, into build/site; a warning is an error
	@$(BIN)/mkdocs --quiet build --strict $(ARGS)
	@echo "build/site/index.html"

docs-serve: setup ## Show the documentation at http://127.0.0.1:8000 while one writes it
	@$(BIN)/mkdocs serve --strict $(ARGS)

docs-version: setup ## Add the site of a version to the branch gh-pages: make docs-version VERSION=0.1
	@[ -n "$(VERSION)" ] || { echo "docs-version: name the version: make docs-version VERSION=0.1" >&2; exit 2; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" mike deploy --update-aliases $(ARGS) $(VERSION) latest
	@PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default latest

format: setup ## Format the code and repair what ruff can repair
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

features: setup ## Show the contract, with the number of tests behind each promise
	@$(BIN)/python tests/features.py $(ARGS)

bench: setup ## Measure throughput, latency and memory, side by side with peers
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: setup ## See that a message costs no more than benchmarks/expected.toml says (three minutes, on a quiet machine)
	@$(BIN)/python -m benchmarks.check $(ARGS)

screenshots: setup ## Take the docs' pictures of the console again, in the browser test
	@mkdir -p docs/images
	@LAPSE_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest -q \
	  tests/integration/gateway/test_console.py tests/integration/gateway/test_console_pages.py \
	  -k "overview or edited or accessibility or its_life" $(ARGS)

chaos: setup $(CLASSES) ## Kill workers and the broker while messages flow, and count what was lost (nothing)
	@LAPSE_SOAK=$${LAPSE_SOAK:-5000} LAPSE_FREEZES=$${LAPSE_FREEZES:-20} LAPSE_SOW_SECONDS=$${LAPSE_SOW_SECONDS:-600} \
	  LAPSE_ENTITIES=$${LAPSE_ENTITIES:-1000} LAPSE_MESSAGES=$${LAPSE_MESSAGES:-100000} LAPSE_LOOKS=$${LAPSE_LOOKS:-100} \
	  $(BIN)/python -m pytest -v --timeout 3600 \
	  tests/unit/core/queue/test_shard_search.py tests/integration/worker/test_runtime_recovery.py \
	  tests/integration/gateway/test_console.py tests/integration/spark/test_spark_state_chaos.py \
	  tests/acceptance/test_frozen_workers.py tests/acceptance/test_sow_crashes.py \
	  $$(grep -rlE --include='test_*.py' 'at_length|mark\.long\b|@given' tests | sort) $(ARGS)

mutation: setup ## Break the core on purpose, and see whether its tests notice
	@$(BIN)/python tests/mutation.py $(ARGS)

wheel: setup ## Build the source distribution and two wheels into dist/: for this platform, faster, and for any
	@LAPSE_PURE=1 $(BIN)/uv build --quiet --python $(BIN)/python $(ARGS)
	@$(BIN)/uv build --quiet --python $(BIN)/python $(ARGS)
	@ls dist

new-user: setup ## Follow the README as a new user does, in a fresh clone and with empty caches; each Python that is found, or PYTHONS="…"
	@$(BIN)/python tests/new_user.py $(ARGS) $(PYTHONS)

lock: setup ## Resolve the dependencies of pyproject.toml again, into requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --output-file requirements.lock $(ARGS)

# Archives of Java's classes, written once: the many brokers and Sparks of the tests start with half the CPU. Meanwhile
# the tests are collected, so Python's files are compiled: else each of the processes would compile all, at the same time.
$(CLASSES): $(STAMP) tests/support/suite/class_archives.py tests/support/suite/archived_job.py
	@$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider >/dev/null 2>&1 & \
	  $(BIN)/python tests/support/suite/class_archives.py; code=$$?; wait; exit $$code
	@touch $@

clean: ## Delete what tools leave behind (not .venv, and no jars)
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis spark-warehouse
	@find streams connectors tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python >= 3.11 that can make a virtual environment; the error says which of the two is missing.
define FIND_PYTHON
found=; old=; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python); do \
  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
  old="$$candidate"; \
  if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then found="$$candidate"; break; fi; \
done; \
if [ -z "$$found" ] && [ -n "$$old" ]; then \
  echo "setup: $$old has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
elif [ -z "$$found" ]; then \
  echo "setup: no Python >= 3.11 found$(if $(PYTHON), at $(PYTHON))." \
    "Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; \
fi
endef

$(STAMP): requirements.lock pyproject.toml hatch_build.py streams/lapse/runtime/kafka/columns.c \
  connectors/lapse_client/kafka/record_columns.c
	@if ! [ -x $(BIN)/python ]; then \
	  $(FIND_PYTHON); \
	  echo "[1/4] a virtual environment with $$($$found --version), in .venv"; \
	  "$$found" -m venv .venv; \
	fi
	@# uv comes from the lock as well: its own lines, with their hashes.
	@awk '/^uv==/ { on = 1 } on { print } on && !/\\$$/ { exit }' requirements.lock > .venv/uv.lock
	@if ! $(BIN)/uv --version 2>/dev/null | grep -qF "$$(sed -n 's/^uv==\([^ ]*\).*/\1/p' .venv/uv.lock)"; then \
	  echo "[2/4] uv, the installer"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock; \
	fi
	@echo "[3/4] the packages of requirements.lock (Spark is large: the first time takes minutes)"
	@# What the cache of uv holds is asked first: an index without ETags would have pyspark downloaded and built again.
	@$(BIN)/uv pip install --offline --quiet --python $(BIN)/python --require-hashes -r requirements.lock 2>/dev/null \
	  || $(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@echo "[4/4] the jars of Kafka and of Spark's connectors"
	@$(BIN)/python -m lapse.embedded
	@touch $@
