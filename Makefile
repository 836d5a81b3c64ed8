# make creates all files inside the checkout: Python's packages (.venv), Kafka's jars (.cache/kafka/libs), and kcat,
# HAProxy and Prometheus if the machine lacks them (.cache/tools). For the bench and the tests, mypyc compiles the hot path
# into the folder build/compiled. The checkout itself always runs its sources. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test sources quick compiled hostile brokers simulate fuzz mutants lint build docs reference dist images bench rivals charttools clean

STAMPS := .cache/stamps
BIN := .venv/bin
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/vulture && $(BIN)/python .ci/check-language @.ci/plain-english && $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_modules.py
# Runs a command over the compiled build, which is made first if a source has changed; over the sources without a C compiler.
COMPILED := $(BIN)/python -m loadtest.testkit.compiled_build
WHEEL := $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir
# Tests that start processes wait more than they compute, so that two cores run five at a time. BY_FILE gives workers whole files,
# in the order of tests/conftest.py: the longest first.
BY_FILE := -n 5 --dist loadfile --no-loadscope-reorder
BY_TEST := -n 5 --dist worksteal
COPY_JARS := mvn --quiet --batch-mode -Dstyle.color=never dependency:copy-dependencies
COMPILED_TESTS := tests/test_compiled_build.py tests/protocol tests/gateway/quotas tests/gateway/proxy tests/gateway/features tests/gateway/cluster/test_upstream.py tests/hostile
# The default version for `make brokers`.
KAFKA := 3.9.1
export PATH := $(PATH):$(CURDIR)/.cache/tools/bin
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMPS)/prerequisites ## install .venv with the project and its tools, Kafka's jars, kcat, HAProxy and Prometheus
	@$(MAKE) --no-print-directory --jobs=3 $(STAMPS)/venv $(STAMPS)/kafka $(STAMPS)/tools

demo: setup ## show a throttled client with a real Kafka, until Ctrl-C or for DEMO_SECONDS=30
	@exec $(BIN)/python -m loadtest.demo

quick: $(STAMPS)/venv ## run lint and the tests that start no other process
	@lint=$$(mktemp); { $(LINT); } > $$lint 2>&1 & failed=0; \
	$(BIN)/python -m pytest -n 2 -m "not process" || failed=1; \
	wait $$! || { cat $$lint; failed=1; }; rm $$lint; exit $$failed

test: setup ## run all checks and tests; the tests against Kafka run the compiled build
	@# The C compiler takes minutes of one core. The tests of the sources need not wait for it.
	@$(MAKE) --no-print-directory --jobs=4 build sources
	@# The controls do not meet the gateway. `make brokers` runs them with each version of Kafka.
	$(COMPILED) $(BIN)/python -m pytest --import-mode=append $(BY_FILE) -m "not control" $(COMPILED_TESTS) tests/broker

sources: lint $(STAMPS)/helm $(STAMPS)/classes
	@# The clients of tests/hostile meet the compiled build only; `make hostile` runs them over the sources.
	$(BIN)/python -m pytest $(BY_FILE) -m "not broker" --ignore=tests/hostile

build: $(STAMPS)/venv
	$(COMPILED)

compiled: $(STAMPS)/venv ## compile the hot path into build/compiled and run the tests of the proxy and the quotas over it
	$(COMPILED) $(BIN)/python -m pytest --import-mode=append $(BY_TEST) $(COMPILED_TESTS)

hostile: $(STAMPS)/venv ## run the tests with hostile clients and faulty brokers
	$(BIN)/python -m pytest tests/hostile $(BY_TEST)

brokers: setup .cache/kafka-$(KAFKA) ## run tests/broker against brokers of another version, KAFKA=3.9.1, with the same clients and tools
	WEIR_BROKER_LIBS=$(CURDIR)/.cache/kafka-$(KAFKA) $(COMPILED) $(BIN)/python -m pytest --import-mode=append $(BY_FILE) tests/broker

simulate: $(STAMPS)/venv ## run whole gateways under a fake clock and network: SEEDS=1000 from FIRST=0 on
	@$(BIN)/python -m loadtest.simulation --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(addprefix --progress ,$(PROGRESS))

fuzz: $(STAMPS)/venv ## fuzz the parsers with coverage guidance for MINUTES=10 of CPU time, or one TARGET=config
	@$(BIN)/python -c 'import atheris' 2> /dev/null || $(BIN)/python -m pip install --quiet 'atheris>=3.0'
	@$(BIN)/python -m tests.fuzzing --minutes $(or $(MINUTES),10) $(if $(TARGET),--target $(TARGET))

mutants: $(STAMPS)/venv ## plant small defects into quotas, framing and states, and print those that no test finds: PART=0.1 of them
	@nice -n 19 $(BIN)/python -m loadtest.mutation_testing --part $(or $(PART),0.1) --seed $(or $(SEED),0)
	@$(BIN)/python -m loadtest.mutation_testing --part $(or $(PART),0.1) --seed $(or $(SEED),0) --survivors

lint: $(STAMPS)/venv ## run ruff, mypy --strict, the import contracts, vulture, and the checks of sentences and of modules
	$(LINT)

docs: $(STAMPS)/venv $(STAMPS)/docs ## build the documentation site into build/site, without access to the network after the first time
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/mkdocs.yml
	@echo "docs: open build/site/index.html"

reference: $(STAMPS)/venv ## write the pages of docs/reference that follow from the code
	$(BIN)/python .ci/reference

dist: $(STAMPS)/venv ## build an sdist and a compiled wheel for this platform into dist, and a pure wheel into dist/pure
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation --sdist --outdir dist > /dev/null
	@# Both wheels come from the sdist. pip would keep them in its cache, and give them out again after a change of the sources.
	$(WHEEL) --wheel-dir dist/pure dist/*.tar.gz
	WEIR_COMPILE=1 $(WHEEL) --wheel-dir build/wheel dist/*.tar.gz
	@# The wheel needs symbols of glibc 2.17 only, so that it gets the tag manylinux2014.
	if command -v $(BIN)/auditwheel > /dev/null; then PATH=$(BIN):$$PATH auditwheel repair --wheel-dir dist build/wheel/*.whl; else cp build/wheel/*.whl dist; fi
	@$(BIN)/python -m loadtest.testkit.installation dist/*.whl dist/pure/*.whl

images: $(STAMPS)/venv ## build both images from Debian's packages, without a registry, and start them (root; 15 minutes)
	.ci/try-images .cache/images $(BIN)/python

bench: setup ## compare the CPU time of Weir, compiled, with that of other proxies in paired rounds
	@exec $(BIN)/python -m loadtest.bench

rivals: setup ## fetch kafka-proxy (built with Go) and Kroxylicious (with Maven), which `make bench` then compares as well
	@.ci/fetch-rivals .cache/tools

charttools: $(STAMPS)/helm ## build Helm with Go, for the tests of helm/weir (`make test` does so)
	@command -v helm || { echo "charttools: Helm is missing; see the message above" >&2; exit 1; }

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
	@# The compiled build is made with the virtual environment's own setuptools, which is old in Python 3.11 and absent later.
	@$(BIN)/python -m pip install --quiet 'setuptools>=77'
	@$(BIN)/python -m pip install --quiet --editable '.[dev]' --config-settings editable_mode=compat
	@# Weir up to 0.1.0 compiled in place. Those extensions would win over their sources.
	@find . -maxdepth 1 -name '*__mypyc*.so' -delete; find gateway protocol -name '*.so' -delete
	@touch $@

$(STAMPS)/kafka: loadtest/testkit/kafka/pom.xml | $(STAMPS)/prerequisites
	@echo "setup: fetching Kafka's jars with Maven (55 MB) ..."
	@rm -rf .cache/kafka && mkdir -p .cache/kafka
	@$(COPY_JARS) --file $< -DoutputDirectory=$(CURDIR)/.cache/kafka/unfinished
	@mv .cache/kafka/unfinished .cache/kafka/libs
	@touch $@

# Kafka before 4.0 brings another binding of slf4j, which would write the brokers' logs elsewhere.
.cache/kafka-%: loadtest/testkit/kafka/pom.xml | $(STAMPS)/prerequisites
	@echo "brokers: fetching the jars of Kafka $* with Maven ..."
	@rm -rf $@ $@.unfinished
	@$(COPY_JARS) --file $< -Dkafka.version=$* -DexcludeArtifactIds=slf4j-reload4j,slf4j-log4j12 -DoutputDirectory=$(CURDIR)/$@.unfinished \
		|| { echo "brokers: Maven could not fetch Kafka $*: KAFKA needs a release of Kafka, such as KAFKA=3.9.1"; exit 1; }
	@mv $@.unfinished $@

$(STAMPS)/classes: $(STAMPS)/kafka loadtest/testkit/kafka/class_archive.py | $(STAMPS)/venv
	@$(BIN)/python -m loadtest.testkit.kafka.class_archive || echo "setup: so Kafka's brokers start more slowly, and the tests take longer"
	@touch $@

# Without these flags, Helm takes Kubernetes 1.20 as its default, and the chart refuses it. Helm v3.19 has the client of Kubernetes 1.34.
HELM_DEFAULTS := $(foreach package,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(package).k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$(package).k8sVersionMinor=34)

$(STAMPS)/helm: | $(STAMPS)/prerequisites
	@if ! command -v helm > /dev/null; then \
	  if command -v go > /dev/null; then \
	    echo "setup: building Helm with Go, for the tests of the chart (one to three minutes) ..."; \
	    GOBIN=$(CURDIR)/.cache/tools/bin go install -ldflags '$(HELM_DEFAULTS)' helm.sh/helm/v3/cmd/helm@v3.19.5 2> .cache/helm.log \
	      || { tail -n 3 .cache/helm.log; echo "setup: no Helm, so tests of the chart are skipped"; }; \
	  else \
	    echo "setup: neither helm nor go here: tests of the chart are skipped. To change that: apt-get install golang-go"; \
	  fi; \
	fi
	@! command -v helm > /dev/null || touch $@

$(STAMPS)/tools: .ci/fetch-debian-tools | $(STAMPS)/prerequisites
	@.ci/fetch-debian-tools .cache/tools kcat haproxy prometheus promtool@prometheus
	@touch $@

$(STAMPS)/docs: | $(STAMPS)/prerequisites
	@command -v npm > /dev/null || { echo "docs: npm is missing: install it, e.g. \`apt-get install npm\`" >&2; exit 1; }
	@echo "docs: fetching the scripts for diagrams and search with npm (17 MB) ..."
	@rm -rf .cache/docs && mkdir -p .cache/docs
	@cd .cache/docs && npm pack --silent mermaid@11.16.0 iframe-worker@1.0.4 > /dev/null
	@tar -xzOf .cache/docs/mermaid-11.16.0.tgz package/dist/mermaid.min.js > .cache/docs/mermaid.min.js
	@tar -xzOf .cache/docs/iframe-worker-1.0.4.tgz package/shim/index.js > .cache/docs/iframe-worker.js
	@rm .cache/docs/*.tgz && touch $@
