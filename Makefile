# make demo: the demo, in an environment of its own.   make test: what CI runs.
#
# PYTHON    the interpreter to build with (3.11 to 3.13)
# VENV      where the environment goes
# PIP_ARGS  passed to pip, say: make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# DEMO_ARGS passed to the demo, say: make demo DEMO_ARGS="--optimizer adamw --json result.json"
#
# A stamp in the environment says what it was built for, so that a second run needs no network.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
DEMO_ARGS ?=
BIN = $(VENV)/bin
SOURCES = pyproject.toml constraints.txt .ci/environment

export PYTHON VENV PIP_ARGS
.PHONY: demo test clean

demo: $(VENV)/.stamp-demo
	$(BIN)/lbbsp demo $(DEMO_ARGS)

test: $(VENV)/.stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

$(VENV)/.stamp-%: $(SOURCES)
	@.ci/environment $*

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output
