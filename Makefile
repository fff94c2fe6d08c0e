# make demo: the demo, in an environment of its own.   make test: what CI runs.
#
# PYTHON    the interpreter to build with (3.11 to 3.13)
# VENV      where the environment goes
# PIP_ARGS  passed to pip, say: make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# TENSORFLOW=no leaves TensorFlow, some 600 MB, and its tests out of make test
# DEMO_ARGS passed to the demo, say: make demo DEMO_ARGS="--optimizer adamw --json result.json"
#
# A stamp in the environment says what it was built for, so that a second run needs no network.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
DEMO_ARGS ?=
TENSORFLOW ?= yes
BIN = $(VENV)/bin
SOURCES = pyproject.toml constraints.txt .ci/environment

# Real processes on a machine that others use too: a test that failed may show once more, alone, that it holds.
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

export PYTHON VENV PIP_ARGS
.PHONY: demo test clean

demo: $(VENV)/.stamp-demo
	$(BIN)/lbbsp demo $(DEMO_ARGS)

test: $(VENV)/.stamp-test $(if $(filter yes,$(TENSORFLOW)),$(VENV)/.stamp-tensorflow)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(PYTEST) || { echo "what failed is run once more, by itself:"; $(PYTEST) --last-failed --last-failed-no-failures none; }

$(VENV)/.stamp-tensorflow: $(SOURCES) .ci/tensorflow | $(VENV)/.stamp-test
	@.ci/tensorflow

$(VENV)/.stamp-%: $(SOURCES)
	@.ci/environment $*

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output
