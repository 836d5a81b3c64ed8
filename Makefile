# Everything is made inside the checkout: .venv (Python), .cache/kafka/libs (Kafka's jars), .cache/tools (kcat and HAProxy
# where the machine has none). `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint bench clean

STAMPS := .cache/stamps
BIN := .venv/bin
export PATH := $(PATH):$(CURDIR)/.cache/tools/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMPS)/venv $(STAMPS)/kafka $(STAMPS)/tools ## .venv with the project and its tools, Kafka's jars, kcat and HAProxy

demo: setup ## a real Kafka, the gateway and traffic over its quota, until Ctrl-C or DEMO_SECONDS=30
	@exec $(BIN)/python -m loadtest.demo

test: lint ## all the checks and tests, the ones against the real Kafka included
	$(BIN)/python -m pytest

lint: setup ## ruff, mypy --strict, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## the paired performance comparison
	@exec $(BIN)/python -m loadtest.bench

clean: ## remove everything that the other targets have made
	rm -rf .venv .cache .run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find gateway protocol loadtest tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMPS)/prerequisites: .ci/check-prerequisites
	@mkdir -p $(@D)
	@.ci/check-prerequisites > $@

$(STAMPS)/venv: pyproject.toml | $(STAMPS)/prerequisites
	@echo "setup: making .venv and installing the project and its development tools (a minute or two) ..."
	@"$$(cat $(STAMPS)/prerequisites)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(STAMPS)/kafka: loadtest/kafka/pom.xml | $(STAMPS)/prerequisites
	@echo "setup: fetching Kafka's jars with Maven (55 MB) ..."
	@rm -rf .cache/kafka && mkdir -p .cache/kafka
	@mvn --quiet --batch-mode -Dstyle.color=never --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.cache/kafka/unfinished
	@mv .cache/kafka/unfinished .cache/kafka/libs
	@touch $@

$(STAMPS)/tools: .ci/fetch-debian-tools | $(STAMPS)/prerequisites
	@.ci/fetch-debian-tools .cache/tools kcat haproxy
	@touch $@
