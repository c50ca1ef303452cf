# Everything runs in .venv, which the first target that needs it makes from requirements.lock.
# Needs Python 3.11 (python3.11 or python3), make and a C compiler; nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench lock clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
ARGS ?=

# torch's CPU build: a wheel from pip's find-links where there is one, otherwise uv's source of CPU builds. It is
# installed first and by itself, since that source takes over torch's companion packages too.
PIP_FIND_LINKS ?= $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
comma := ,
empty :=
space := $(empty) $(empty)
uv_links = $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
torch_source = $(if $(foreach place,$(PIP_FIND_LINKS),$(wildcard $(place)/torch-*+cpu-*.whl)),,--torch-backend cpu)
uv = $(if $(uv_links),UV_FIND_LINKS="$(uv_links)") VIRTUAL_ENV="$(CURDIR)/.venv" UV_LINK_MODE=copy $(BIN)/uv
locked = sed -n '/^$(1)==/,/[^\]$$/p' requirements.lock > .venv/$(1).txt

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16

setup: $(READY) ## install everything into .venv (two to ten minutes the first time)

demo: $(READY) ## crawl, stream and ask; then the same by waiting; compare. ARGS="--help" for options
	$(BIN)/stream2llm demo $(ARGS)

test: $(READY) ## all tests on the real CPU engine. ARGS="tests/demo -k robots" for some of them
	$(BIN)/pytest $(ARGS)

lint: $(READY) ## ruff, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## each benchmark, one JSON object a line
	@for file in benchmarks/[a-z]*.py; do \
		$(BIN)/python -m "benchmarks.$$(basename "$$file" .py)" $(ARGS); done

lock: $(READY) ## compile requirements.lock anew from pyproject.toml and requirements.in
	$(uv) pip compile pyproject.toml requirements.in --extra cpu --extra dev --generate-hashes \
		--no-emit-find-links --no-header --python-version 3.11 --quiet -o requirements.lock

clean: ## remove .venv and what the tools left
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "Python 3.11 is needed, found $(or $(PYTHON),none); name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	$(BIN)/uv --version 2>/dev/null | grep -qF "$$(sed -n 's/^uv==\([0-9.]*\).*/uv \1 /p' .venv/uv.txt)" || \
		$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r .venv/uv.txt
	$(call locked,torch)
	$(uv) pip install --no-deps --require-hashes $(torch_source) -r .venv/torch.txt
	$(uv) pip sync requirements.lock --compile-bytecode
	$(uv) pip install --quiet --no-deps --no-build-isolation -e .
	touch $@
