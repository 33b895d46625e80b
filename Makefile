# Everything a developer types. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The machine's own Python tools stay out of the way: buf finds its plugins in the virtual environment.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The tests start hundreds of Python processes: what the first one compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE
# What is imported is compiled then: to compile all of it takes longer than the rest of the installation.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint .ci/constraints.txt

.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo  ## Stream three answers from a real model through two processes
	$(BIN)/enginewire demo

test: $(VENV)/.dev  ## Run the tests, in parallel
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal

test-long: $(VENV)/.dev  ## Run the variants that `make test` leaves out, and drawn examples in full number
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m 'long or hypothesis' --hypothesis-profile all-examples --part $(PART) \
		$$(grep -rlE 'tests\.long|mark\.long|hypothesis' tests --include='test_*.py')

conformance: $(VENV)/.dev  ## Have the kit judge our own servers, over a socket and over TCP
	.ci/check/servers

self-test: $(VENV)/.dev  ## Prove the kit: every mutant fails exactly its own checks
	$(BIN)/enginewire-conformance self-test --quick

wheel:  ## Build both distributions, and prove that the kit's stands alone
	.ci/check/wheel

hashes:  ## Lock sidecar and backend with hashes, in .ci/hashes.txt
	.ci/make/hashes

sbom: $(VENV)/.dev  ## List what an environment is made of, as CycloneDX, in build/sbom.json: OF=/opt/venv/bin/python
	.ci/make/sbom $(OF)

chaos: $(VENV)/.dev  ## Kill, freeze and cut off engines under load; every answer must be right
	GRPC_VERBOSITY=NONE $(BIN)/python -m tests.chaos --seconds $(SECONDS) --schedules $(SCHEDULES) --seed $(SEED)

fuzz: $(VENV)/.dev  ## Send every RPC, route and port whatever there is: CASES=20000 SEED=1
	GRPC_VERBOSITY=NONE $(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)

soak: $(VENV)/.dev  ## A thousand kills, 50,000 callers who leave, and an hour of faults; about an hour and a half
	GRPC_VERBOSITY=NONE $(BIN)/python -m tests.chaos --seconds 3600 --kills 1000 --only kill --seed $(SEED)
	$(BIN)/python benchmarks/endurance/rude_callers.py leavers
	$(BIN)/python benchmarks/endurance/soak.py -- --kv-cache-memory-bytes 67108864
	$(BIN)/python benchmarks/endurance/hours.py --seed $(SEED)

gpu-check: $(VENV)/.dev  ## Is the torch engine right on this GPU, and how quick is it: under nine minutes
	$(BIN)/python benchmarks/model/gpu_check.py $(GPU)

test-browser: $(VENV)/.dev  ## Test the page in a headless Chromium
	.ci/install_browser
	$(BIN)/pytest -q tests/browser

vllm-test:  ## Test the vLLM engine, in an environment of its own with vLLM for CPUs
	.ci/check/vllm

dynamo-test:  ## Try the worker of Dynamo with Dynamo's own frontend, in an environment of its own
	.ci/check/dynamo

llama-test: $(VENV)/.dev  ## Test the OpenAI engine with llama.cpp's server, in an environment of its own
	.ci/check/llama

clients-test:  ## Try the clients of docs/http.md, in environments of their own, on real servers
	.ci/check/clients

deploy-check:  ## Hold the files of deploy/ against hadolint, Kubernetes, systemd, Prometheus and Grafana
	.ci/check/deploy

check: static test test-long  ## Everything a change is judged by

# Side by side: mypy, the slowest by far, is busy on one core only.
static: $(VENV)/.dev
	$(MAKE) --jobs=2 --output-sync=target --no-print-directory types lint imports proto-check site

lint: $(VENV)/.dev  ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy --strict
	$(BIN)/mypy

imports: $(VENV)/.dev  ## Who may import whom
	$(BIN)/lint-imports --config .ci/importlinter.toml --no-cache

proto-check: $(VENV)/.dev  ## buf lint, format, breaking; stubs are current
	buf lint
	buf format --diff --exit-code
	buf breaking --against .ci/baseline/enginewire_v1.binpb
	.ci/check/stubs

stubs: $(VENV)/.dev  ## Generate the Python stubs again
	buf generate

site: $(VENV)/.site  ## Build the documentation as a website into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/site/mkdocs.yml

examples: $(VENV)/.dev  ## Build the engines in other languages and judge them
	.ci/check/examples $(EXAMPLES)

format: $(VENV)/.dev  ## Put code and proto files into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	buf format --write

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build

SECONDS ?= 60
SCHEDULES ?= 6
CASES ?= 20000
SEED ?= 1

# Of the long tests: 2/3 is the second third of them.
PART ?= 1/1

# Two more than processors: many tests wait for processes. But each worker collects all tests, and imports torch.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

# Stamp files: an install is repeated only when what it depends on has changed.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml .ci/constraints.txt
	$(PIP) torch
	$(PIP) --editable '.[engine,chat,http,top]'
	@touch $@

$(VENV)/.site: $(VENV)/bin/python pyproject.toml .ci/constraints.txt
	$(PIP) --editable '.[site]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml .ci/constraints.txt
	$(PIP) torch
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.site
# Compiles what tests import, once: each of the processes that run them would compile all of it for itself.
	-$(BIN)/pytest --collect-only --quiet >/dev/null

.PHONY: help demo test test-long chaos fuzz soak conformance self-test wheel hashes sbom gpu-check test-browser vllm-test dynamo-test llama-test clients-test deploy-check check static lint types imports proto-check stubs site examples format clean
