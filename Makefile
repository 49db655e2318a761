# One entry for people and for CI. Needs only Python 3.11 (or newer) and make; everything else goes into .venv.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.headway-setup
# The first interpreter that is new enough. Override with: make PYTHON=/path/to/python
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# Client libraries have an environment of their own: some would hold back Headway's packages, and none may need them.
CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.headway-clients
# Code that is linted and formatted.
CODE := $(wildcard src tests benchmarks docs examples scripts)
# The tests of the pure parts run first: they are fast and say most.
PURE_TESTS := $(wildcard tests/config tests/kv tests/core tests/sim)

.PHONY: help setup demo serve test check format-check lint types imports fix bench bench-http soak aiperf clients browser docs

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything in it (instant when nothing changed)

$(STAMP): pyproject.toml constraints.txt scripts/setup_env.py
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or newer found; use make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) scripts/setup_env.py
	@touch $@

demo: $(STAMP) ## The demonstration, in the terminal
	@$(BIN)/headway demo

serve: $(STAMP) ## The HTTP server, on http://127.0.0.1:8000 (make serve ARGS="--help")
	@$(BIN)/headway serve $(ARGS)

check: format-check lint types imports ## Format, lint, types, import contracts

format-check: $(STAMP)
	@$(BIN)/ruff format --check $(CODE)

lint: $(STAMP)
	@$(BIN)/ruff check $(CODE)

types: $(STAMP)
	@$(BIN)/mypy

imports: $(STAMP)
	@$(BIN)/lint-imports

test: check ## All checks and all tests, the core first
	@$(BIN)/python -m pytest -x -q -n 2 $(PURE_TESTS)
	@$(BIN)/python -m pytest -q -n 2 tests $(PURE_TESTS:%=--ignore=%)

fix: $(STAMP) ## Format and mend what can be mended by machine
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

bench: $(STAMP) ## Benchmarks, the short form
	@$(BIN)/python benchmarks/scheduler_overhead.py --quick

bench-http: $(STAMP) ## What HTTP costs: 64 streams against LLM.generate (ARGS="--rounds 1")
	@$(BIN)/python benchmarks/http_overhead.py $(ARGS)

soak: $(STAMP) ## The server at twice its capacity for five minutes (ARGS="--minutes 1")
	@$(BIN)/python benchmarks/soak.py $(ARGS)

aiperf: ## NVIDIA's load client on a server that runs, 1.2 GB to install (ARGS="--model NAME --tokenizer FOLDER")
	@test -x .venv-aiperf/bin/aiperf || { $(PYTHON) -m venv .venv-aiperf && \
		.venv-aiperf/bin/pip install -q $(HEADWAY_PIP_ARGS) 'aiperf>=0.13'; }
	@.venv-aiperf/bin/aiperf profile --url http://127.0.0.1:8000 --endpoint-type chat --streaming --ui none \
		--concurrency 64 --request-count 128 --synthetic-input-tokens-mean 256 --output-tokens-mean 128 \
		--extra-inputs ignore_eos:true --use-server-token-count --artifact-dir out/aiperf $(ARGS)

clients: $(STAMP) $(CLIENTS_STAMP) ## Six client libraries on a real server, 660 MB to install (ARGS="-k langchain")
	@$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini -q tests/clients $(ARGS)

$(CLIENTS_STAMP): tests/clients/requirements.txt
	@test -n "$(PYTHON)" || { echo "clients: no Python 3.11 or newer found; use make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "clients: installing into $(CLIENTS) (the first time takes a minute or two)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check $(HEADWAY_PIP_ARGS) -r tests/clients/requirements.txt
	@touch $@

browser: ## Chromium for the tests of the page, where apt-get can install it
	@for name in chromium chromium-browser google-chrome-stable google-chrome; do \
		command -v $$name > /dev/null && exit 0; done; \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1 || \
	echo "browser: no Chromium, and apt-get cannot install it; the tests of the page will be skipped" >&2

docs: $(STAMP) ## Regenerate what is generated in docs/
	@$(BIN)/python docs/draw_states.py
	@$(BIN)/python docs/list_options.py
	@$(BIN)/python docs/list_fields.py
	@$(BIN)/python docs/list_schema_keywords.py
	@$(BIN)/python docs/build_dashboard.py
