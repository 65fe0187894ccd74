# `make demo` and `make test` set up what they need: a virtual environment with the pinned packages and, as root on a
# Debian-like system, bubblewrap. They need Python 3.11 or newer, git and make.

PYTHON ?= python3
VENV ?= .venv
LAB ?= lab
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/demo.stamp sandbox
	$(BIN)/bilevel demo --lab $(LAB)

test: $(VENV)/test.stamp sandbox
	$(BIN)/python -m pytest -n auto --dist loadgroup

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/demo.stamp

# Confinement. Without it everything still runs, and says that nothing is confined.
.PHONY: sandbox
sandbox:
	@command -v bwrap >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 \
	     && echo "installing bubblewrap" && apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } \
	|| echo "bubblewrap is missing: experiments will run unconfined. Install it, for example: sudo apt install bubblewrap"

clean:
	rm -rf $(VENV) $(LAB) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
