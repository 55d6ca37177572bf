# `make help` lists the targets. Every target sets up what it needs, unless that is up to date.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL .SUFFIXES:
$(if $(word 2,$(CURDIR)),$(error the path of this clone has a space: $(CURDIR). Move it to one without, as make needs))

# The interpreter to make the environment from, and the environment.
PYTHON ?= python3
VENV ?= .venv
export VENV TORCH TORCH_INDEX SYSTEM_TORCH UV PYTEST_ARGS
export CARGO_TERM_COLOR ?= auto

# One build of the bindings serves cargo and maturin alike.
bin := $(abspath $(VENV))/bin
export PYO3_PYTHON := $(bin)/python
python := $(bin)/python
environment := $(PYTHON) scripts/environment.py

.PHONY: help demo horovod soak test test-full test-rest test-night test-rust test-python
help: ## This page
	@awk -f scripts/help.awk $(MAKEFILE_LIST)

demo: ## Train two models over a slow link, with and without compression (ARGS="--help" for options)
	@$(environment) demo && $(python) -m benches.demo $(ARGS)

prepare_python = $(environment) test cuda trainers horovod
prepare_tests = $(prepare_python) && $(python) scripts/build_horovod.py --tests

test: ## The tests of every part in ten to fifteen minutes: Rust, then Python with real processes
	@$(prepare_tests)
	@$(python) scripts/run_tests.py quick

test-full: test test-rest test-night ## All tests: those of `make test`, then all others

test-rest: ## More compositions, more ranks, other SIMD levels, examples that train: with `make test`, what CI runs
	@$(prepare_tests)
	@$(python) scripts/run_tests.py rest

test-night: ## What neither runs: all of Rust below the best SIMD level, every distributed test on other backends
	@$(prepare_python) && $(python) scripts/run_tests.py night

test-rust: ## Only the Rust tests, of all tiers
	@$(environment) test && $(python) scripts/run_tests.py rust

test-python: ## Only the Python tests, of all tiers (PYTEST_ARGS="-k name"; builds Horovod if they name it, or if there are none)
	@$(prepare_python)
	@$(if $(if $(PYTEST_ARGS),$(findstring horovod,$(PYTEST_ARGS)),all),$(python) scripts/build_horovod.py --tests)
	@$(python) scripts/run_tests.py python

horovod: ## Build Horovod for its tests, once (HOROVOD_OPTIONAL=1: go on where there is no compiler)
	@$(environment) test horovod && $(python) scripts/build_horovod.py $(if $(HOROVOD_OPTIONAL),--optional)

soak: ## Train 2 000 steps under random faults, restarts and changes of the number of ranks (some minutes)
	@$(environment) test horovod
	@$(python) scripts/build_horovod.py --tests
	@$(python) -m pytest -q -s -m slow tests/distributed/test_soak.py tests/horovod/test_soak.py $(PYTEST_ARGS)

.PHONY: gpu-visit bench-gpu test-races toy-parts neon fuzz miri oldest-rust oldest-trainers lint format
gpu-visit: wheel ## The folder for a visit to a GPU, where `scripts/gpu_visit.py STEP` runs; takes no GPU (GPUS="80 90"; default: 90)
	@$(environment) demo cuda && $(python) scripts/gpu_visit.py prepare --architectures $(or $(GPUS),90)

bench-gpu: ## Time the CUDA extension, a copy and what torch offers, with what PYTHON has installed (ARGS="--quick")
	@$(PYTHON) -m benches.gpu $(ARGS)

test-races: ## The CUDA kernels' tests, all with the race detector (`make test-rest`: a share; PYTEST_ARGS="-k name")
	@$(environment) test cuda && GRADWIRE_TEST_RACES=all $(python) -m pytest -q tests/csrc tests/torch/cuda $(PYTEST_ARGS)

toy-parts: ## Build the toy parts in tests/toy_parts and run the suites that pick them up
	@$(PYTHON) scripts/toy_parts.py

neon: ## The Rust tests on NEON, cross-compiled and run under qemu-aarch64
	@scripts/neon.sh

fuzz: SECONDS ?= 60
fuzz: ## Fuzz every target for so long (SECONDS=3600 TARGETS="frame encode" SANITIZER=address)
	@scripts/fuzz.sh $(SECONDS) $(TARGETS)

miri: ## What packs, reads and writes bytes, and the kernels, under Miri (nightly)
	@scripts/miri.sh

oldest-rust: ## Build the crates with the oldest Rust that Cargo.toml declares
	@$(environment) test && scripts/oldest_rust.sh

oldest-trainers: ## The trainers' tests with the oldest releases that pyproject.toml declares (PYTEST_ARGS="-k name")
	@$(environment) test trainers && $(python) scripts/oldest_trainers.py $(PYTEST_ARGS)

lint: ## Formatters in check mode, clippy, ruff, mypy --strict, stubtest
	@$(environment) test trainers && PATH="$(bin):$$PATH" scripts/lint.sh

format: ## Format Rust and Python
	@$(environment) test
	cargo fmt --all
	$(bin)/ruff check --fix-only --quiet .
	$(bin)/ruff format --quiet .

.PHONY: bench accuracy study weights bench-instructions
bench: ## Time the codecs, a plain copy and other implementations (ARGS="--quick" for a short run)
	@$(environment) bench && $(python) -m benches.compare $(ARGS)

accuracy: ## Train four models to completion with and without compression (ARGS="--quick" for ten minutes)
	@$(environment) demo && $(python) -m benches.accuracy $(ARGS)

study: ## Time to dense accuracy over links and ranks: who wins, where compression loses (ARGS="--only 25M")
	@$(environment) demo && $(python) -m benches.study $(ARGS)

weights: ## Weights, checkpoints and activations in fewer bits (ARGS="--quick --only checkpoints"; PEERS=1: beside zstd and zipnn)
	@$(environment) demo weights $(if $(PEERS),peers) && $(python) -m benches.weights $(ARGS)

bench-instructions: ## Instructions per element of kernels and encodes, with valgrind (ARGS="sweep" for those with this text)
	@scripts/instructions.sh $(ARGS)

.PHONY: docs wheel release-check cuda lock clean
docs: ## The documentation as HTML, under .cache/docs
	@$(environment) docs trainers && $(python) -m sphinx -W --keep-going -b html docs .cache/docs

wheel release-check: export VENV := .cache/wheel-env
wheel release-check: export PYO3_PYTHON := $(abspath .cache/wheel-env)/bin/python
wheel: ## The abi3 wheel, in dist, tested without torch (ARGS="--target TRIPLE" to cross-compile)
release-check: ## All of a release that needs no host, and what is left to a person (ARGS="--only cargo-deny")
wheel release-check:
	@$(environment) wheel && .cache/wheel-env/bin/python scripts/$(if $(filter wheel,$@),wheel,check_release).py $(ARGS)

cuda: ## The CUDA extension for all GPUs as the wheel gradwire-cuda, in dist; takes no GPU
	@$(environment) demo cuda manylinux && $(python) scripts/cuda_wheel.py $(ARGS)

lock: ## Rewrite requirements/*.txt with the newest versions that the .in files allow
	@$(environment) test && PATH="$(bin):$$PATH" scripts/lock.sh

clean: ## Remove everything these targets create: environment, caches, builds, results
	rm -rf $(VENV) .venv-oldest .cache target dist {demo,accuracy,study,weights}-results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f python/gradwire/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
