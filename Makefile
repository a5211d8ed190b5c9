# `make demo` and `make test` work on a fresh clone: each sets up .venv first, at pinned versions.
# PYTHON=... chooses the interpreter (3.10 to 3.12); otherwise the first fitting one is taken.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-verl lint bench setup clean

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet -c constraints.txt
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_PIP := $(FRAMEWORKS)/bin/python -m pip install --disable-pip-version-check --quiet --quiet -c constraints-frameworks.txt
CHECKED = $(wildcard align dumps reports tokenizer_check tests benchmarks)
WORKERS ?= 2
ARGS ?=

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target what; do printf '%-18s %s\n' "$$target" "$$what"; done

demo: $(CORE) ## plant a known fault in a small training run; the report lands in demo-report/
	@$(BIN)/align demo -o demo-report $(ARGS)

test: lint ## lint, types and the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-fast: $(DEV) ## the unit tests alone, no lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not browser and not device" tests/unit $(ARGS)

test-verl: $(FRAMEWORKS)/.installed ## our objective against the real verl, TRL and Megatron-core
	ALIGN_REQUIRE_FRAMEWORKS=1 $(FRAMEWORKS)/bin/python -m pytest tests/frameworks tests/unit/test_objective_*.py $(ARGS)

lint: $(DEV) ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(CHECKED)

bench: $(DEV) ## measure speed and size
	$(BIN)/python -m benchmarks.run $(ARGS)

setup: $(DEV) ## only set up .venv with everything the tests need

clean: ## remove .venv, caches and what was generated
	rm -rf $(VENV) $(FRAMEWORKS) build dist demo-report bench-results .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A venv of its own for the frameworks, which pin what we do not. torch first, so that nothing picks
# another; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids the 2 GB CUDA build.
$(FRAMEWORKS)/.installed: pyproject.toml constraints-frameworks.txt
	@fits='import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; \
	for python in $(or $(PYTHON),python3 python3.12 python3.11); do \
	  if $$python -c "$$fits" >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "no Python 3.11 or 3.12 with venv in '$(or $(PYTHON),PATH)', which verl and TRL need: run make PYTHON=/path/to/python3.11 test-verl" >&2; \
	  exit 1; \
	fi; \
	[ -x $(FRAMEWORKS)/bin/python ] || $$found -m venv --clear $(FRAMEWORKS)
	@echo "installing verl, TRL and Megatron-core (about two minutes and 2 GB the first time)"
	@$(FRAMEWORKS_PIP) torch
	@$(FRAMEWORKS_PIP) torch verl trl TransferQueue pyzmq msgspec fastapi uvicorn cachetools pytest hypothesis
	@$(FRAMEWORKS_PIP) --no-deps megatron-core mbridge
	@$(FRAMEWORKS_PIP) -e .
	@touch $@

# The first interpreter that runs, is 3.10 to 3.12, and can make a virtual environment.
$(BIN)/python:
	@fits='import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))'; \
	for python in $(or $(PYTHON),python3 python3.12 python3.11 python3.10); do \
	  if $$python -c "$$fits" >/dev/null 2>&1; then \
	    echo "making $(VENV) with $$($$python --version)"; \
	    exec $$python -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "no Python 3.10 to 3.12 with venv in '$(or $(PYTHON),PATH)': install one (Debian: apt-get install python3-venv) or run make PYTHON=/path/to/python3.11" >&2; \
	exit 1

# Two stamps, so that the demo does not wait for the test tools. Both hold torch, which the bundled
# stack computes with; it comes first, so that nothing picks another build.
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids the 2 GB CUDA build.
$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing npu-align with torch (about two minutes the first time)"
	@$(PIP) torch
	@$(PIP) -e '.[torch]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing npu-align with torch and its test tools (about three minutes the first time)"
	@$(PIP) torch
	@$(PIP) -e '.[dev,torch]'
	@touch $(CORE) $@
