# Everything is made inside the checkout: .venv (Python), .cache/kafka/libs (Kafka's jars), .cache/tools (kcat, HAProxy and
# Prometheus where the machine has none). `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test hostile lint bench rivals charttools interpreted clean

# The hot path is plain typed Python that runs as it is; mypyc compiles it where there is a C compiler, for up to a quarter less CPU.
# Compiled modules lie beside their sources and win over them, so everything that runs the project depends on this stamp.
COMPILED := $(wildcard protocol/[a-z]*.py protocol/bodies/[a-z]*.py gateway/quotas/[a-z]*.py gateway/proxy/[a-z]*.py gateway/proxy/handlers/[a-z]*.py gateway/features/*/rules.py gateway/features/topic_quotas/one_minute_rate.py)
STAMPS := .cache/stamps
BIN := .venv/bin
export PATH := $(PATH):$(CURDIR)/.cache/tools/bin
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMPS)/compiled $(STAMPS)/kafka $(STAMPS)/tools ## .venv with the project and its tools, Kafka's jars, kcat, HAProxy and Prometheus

demo: setup ## a real Kafka, the gateway and traffic over its quota, until Ctrl-C or DEMO_SECONDS=30
	@exec $(BIN)/python -m loadtest.demo

test: lint $(STAMPS)/helm ## all the checks and tests, the ones against the real Kafka included
	$(BIN)/python -m pytest -n 2 --dist loadfile

hostile: $(STAMPS)/venv ## the tests with hostile clients and odd brokers (they wait more than they compute: three at once on two cores)
	$(BIN)/python -m pytest tests/hostile -n 3 --dist worksteal

lint: setup ## ruff, mypy --strict, import directions, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check-language @.ci/plain-english

bench: setup ## the paired performance comparison
	@exec $(BIN)/python -m loadtest.bench

rivals: setup ## kafka-proxy (built with Go) and Kroxylicious (with Maven), which `make bench` then compares as well
	@.ci/fetch-rivals .cache/tools

charttools: $(STAMPS)/helm ## Helm for the tests of helm/weir, built with Go from its module proxy (make test does so)
	@command -v helm || { echo "charttools: there is no Helm; what is missing stands above" >&2; exit 1; }

interpreted: $(STAMPS)/venv ## run the sources as they are, until the next of the other targets compiles them again
	@find . -maxdepth 1 -name '*__mypyc*.so' -delete
	@find gateway protocol -name '*.so' -delete
	@rm -f $(STAMPS)/compiled

clean: ## remove everything that the other targets have made
	rm -rf .venv .cache .run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -maxdepth 1 -name '*__mypyc*.so' -delete
	find gateway protocol -name '*.so' -delete
	find gateway protocol loadtest tests -name __pycache__ -prune -exec rm -rf {} +

$(STAMPS)/prerequisites: .ci/check-prerequisites
	@mkdir -p $(@D)
	@.ci/check-prerequisites > $@

$(STAMPS)/venv: pyproject.toml | $(STAMPS)/prerequisites
	@echo "setup: making .venv and installing the project and its development tools (a minute or two) ..."
	@"$$(cat $(STAMPS)/prerequisites)" -m venv .venv
	@# mypyc reads pyproject.toml with the virtual environment's own setuptools, which is old in Python 3.11 and absent later.
	@$(BIN)/python -m pip install --quiet 'setuptools>=77'
	@$(BIN)/python -m pip install --quiet --editable '.[dev]' --config-settings editable_mode=compat
	@touch $@

$(STAMPS)/compiled: $(COMPILED) $(STAMPS)/venv
	@find . -maxdepth 1 -name '*__mypyc*.so' -delete
	@find gateway protocol -name '*.so' -delete
	@headers=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	if command -v "$${CC:-cc}" > /dev/null && [ -e "$$headers/Python.h" ]; then \
	  echo "setup: compiling the hot path with mypyc (one to three minutes) ..."; \
	  $(BIN)/mypyc $(COMPILED) > .cache/mypyc.log 2>&1 || { tail -n 20 .cache/mypyc.log; exit 1; }; \
	else \
	  echo "setup: no C compiler (cc) or no Python.h: Weir runs interpreted, with up to a third more CPU."; \
	  echo "       To change that: apt-get install gcc python3-dev, then make clean setup"; \
	fi
	@touch $@

$(STAMPS)/kafka: loadtest/testkit/kafka/pom.xml | $(STAMPS)/prerequisites
	@echo "setup: fetching Kafka's jars with Maven (55 MB) ..."
	@rm -rf .cache/kafka && mkdir -p .cache/kafka
	@mvn --quiet --batch-mode -Dstyle.color=never --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.cache/kafka/unfinished
	@mv .cache/kafka/unfinished .cache/kafka/libs
	@touch $@

$(STAMPS)/helm: | $(STAMPS)/prerequisites
	@if ! command -v helm > /dev/null; then \
	  if command -v go > /dev/null; then \
	    echo "setup: building Helm with Go, for the tests of the chart (one to three minutes) ..."; \
	    GOBIN=$(CURDIR)/.cache/tools/bin go install helm.sh/helm/v3/cmd/helm@v3.19.5 2> .cache/helm.log \
	      || { tail -n 3 .cache/helm.log; echo "setup: no Helm, so tests of the chart are skipped"; }; \
	  else \
	    echo "setup: neither helm nor go here: tests of the chart are skipped. To change that: apt-get install golang-go"; \
	  fi; \
	fi
	@! command -v helm > /dev/null || touch $@

$(STAMPS)/tools: .ci/fetch-debian-tools | $(STAMPS)/prerequisites
	@.ci/fetch-debian-tools .cache/tools kcat haproxy prometheus promtool@prometheus
	@touch $@
