# Everything a newcomer needs: Python 3.11 or newer, and make.
#
#   make demo            set up, then run an unmodified CUDA-graph program under gfxgraph
#   make test            every test that needs no GPU
#
# Variables: PYTHON (whose torch to use), TORCH_INDEX_URL (where to get one from), PROMPT, ARGS, JOBS.

VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
PROMPT ?= Alice opened the little door and
ARGS ?=
# On a GPU machine without a prepared environment, its own Python, which has its torch, serves.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/.ready),$(BIN)/python,$(or $(PYTHON),python3))
export PROMPT TORCH_INDEX_URL PYTHON

.DEFAULT_GOAL := help
.PHONY: help venv demo check native test test-fast test-gpu test-engines test-versions test-emulator test-port-build test-fuzz bench docs release hooks clean

help:
	@echo "make demo   [PROMPT=\"...\"]  set up and run the example: text, speed, graphs, fallbacks, verdict"
	@echo "make test                  every test that needs no GPU"
	@echo "make test-fast             the unit tests that start no other process: half a minute on two cores"
	@echo "make check                 ruff and its format, strict mypy, import rules, ratchet, slow expressions"
	@echo "make native                the companion libraries, into build/; needs CMake and a C++ compiler"
	@echo "make test-gpu              the tests that need a GPU, with the torch of this machine"
	@echo "make test-engines          vLLM's and SGLang's own graph files, fetched; on a GPU where there is one"
	@echo "make test-versions         each torch under each Python, and engines: gigabytes; writes docs/versions.md"
	@echo "make test-emulator         the tests that need AMD's emulator (rocjitsu) on the PATH"
	@echo "make test-port-build       port fix and build with the hipcc on the PATH"
	@echo "make test-fuzz             60 s of changed inputs for each target of tests/fuzz"
	@echo "make bench                 measure, on a GPU"
	@echo "make docs                  build the documentation's site, check every link"
	@echo "make release VERSION=2.0.0  changelog, both packages built twice and tried with each Python, commit, tag; publishes nothing"
	@echo "make venv   [TORCH_INDEX_URL=...] [PYTHON=...]   only set up"
	@echo "make hooks                 run 'make check' and 'make test-fast' before every commit"
	@echo "make clean                 remove what make made"

venv: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml tools/make_venv.py
	@$(or $(PYTHON),python3) tools/make_venv.py $(VENV)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "venv: installing the tools for tests and checks"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/gfxgraph demo --prompt "$$PROMPT" $(ARGS)

check: $(VENV)/.ready-dev
	@echo "check: ruff" && $(BIN)/ruff check --quiet --output-format concise .
	@echo "check: ruff format" && $(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --diff .; exit 1; }
	@echo "check: mypy" && $(BIN)/mypy --no-error-summary
	@echo "check: import rules" && PYTHONPATH=src $(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log \
		|| { cat $(VENV)/lint-imports.log; exit 1; }
	@echo "check: import circles" && $(BIN)/python tools/import_circles.py
	@echo "check: ratchet" && $(BIN)/python tools/ratchet.py
	@echo "check: one writer of files" && $(BIN)/python tools/check_writes.py
	@echo "check: names of files and decisions" && $(BIN)/python tools/check_references.py
	@echo "check: private names of torch" && $(BIN)/python tools/check_torch_names.py
	@echo "check: dependencies" && $(BIN)/python tools/check_dependencies.py
	@echo "check: expressions of audit and catalogue" && $(BIN)/python tools/check_patterns.py

# The native tests' libraries are built first, so that no test's time limit counts a compiler's time.
# Each process begins with a stretch of whole files (worksteal), whose fixtures are then made once.
test: $(VENV)/.ready-dev
	@$(BIN)/python -m tests.native_builds
	@$(BIN)/python -m pytest -p tests.progress -n $(JOBS) --dist worksteal tests --ignore=tests/gpu --ignore=tests/emulator --ignore=tests/engines --ignore=tests/port_build $(ARGS)

native:
	@cmake --preset release
	@cmake --build build -j $(JOBS)

# Which tests those are is a rule, in tests/fast.py.
test-fast: $(VENV)/.ready-dev
	@$(BIN)/python -m pytest -p tests.progress -p tests.fast -n $(JOBS) --dist worksteal tests/unit $(ARGS)

test-gpu:
	@PYTHONPATH=src $(GPU_PYTHON) -m pytest tests/gpu $(ARGS)

test-engines: $(VENV)/.ready-dev
	@$(BIN)/python tools/fetch_engines.py build/engines
	@GFXGRAPH_ENGINE_FILES=$(CURDIR)/build/engines $(BIN)/python -m pytest tests/engines $(ARGS)

# make test-versions ARGS="--torch 2.11 --python 3.12"; its environments are made once, in build/versions.
test-versions: $(VENV)/.ready-dev
	@JOBS=$(JOBS) $(BIN)/python tools/test_versions.py $(ARGS)

test-emulator: $(VENV)/.ready-dev
	@if [ ! -d tests/emulator ]; then echo "test-emulator: no such tests yet"; \
	elif ! command -v rocjitsu > /dev/null; then echo "test-emulator: skipped: rocjitsu is not on the PATH"; \
	else $(BIN)/python -m pytest tests/emulator $(ARGS); fi

# Debian has hipcc and HIP's headers (hipcc, libamdhip64-dev); nothing is installed here.
test-port-build: $(VENV)/.ready-dev
	@$(BIN)/python -c 'import sys; from gfxgraph_port.build.compiler import find_compiler as f; sys.exit(f() is None)' \
		|| echo "test-port-build: lacks hipcc, or a clang++ that finds HIP headers, on the PATH: its tests are skipped"
	@$(BIN)/python -m pytest tests/port_build $(ARGS)

# make test-fuzz TARGETS=port ARGS="--seconds 600"; an input that fails is left in a file that the message names.
test-fuzz: $(VENV)/.ready-dev
	@$(BIN)/python tests/fuzz/run.py $(TARGETS) $(ARGS)

bench:
	@for file in benchmarks/bench_*.py; do \
		echo "bench: $$file"; PYTHONPATH=src $(GPU_PYTHON) $$file $(ARGS) || exit 1; done

$(VENV)/.ready-docs: $(VENV)/.ready-dev
	@echo "venv: installing the tools for the documentation"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(VENV)/.ready-docs
	@$(BIN)/python tools/make_evidence.py --check
	@$(BIN)/python tools/make_docs.py
	@echo "docs: building the site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open build/site/index.html; for the search: python3 -m http.server -d build/site"

release: $(VENV)/.ready-dev
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[release]'
	@$(BIN)/python tools/release.py $(VERSION) $(ARGS)

hooks:
	@install -m 755 tools/pre-commit "$$(git rev-parse --git-path hooks)/pre-commit"
	@echo "hooks: 'make check test-fast' now runs before every commit; git commit --no-verify leaves it out"

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
