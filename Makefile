# make demo | check | test | test-all | lint | bench | docs. Each sets up .venv first; PYTHON names the interpreter it is made from (3.10 to 3.13).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: demo check test test-all lint bench docs clean

demo: $(VENV)/.demo
	$(BIN)/python -m scripts.demo

check: lint
	$(BIN)/python -m scripts.touched

# AMX is emulated in processes of its own: a signal handler of another test would end them.
AMX = QNN_EXT_EMULATE_AMX=1 $(BIN)/python -m pytest -n 2 -k "amx or matrices" \
	tests/topi_int8 tests/targets tests/passes/test_low_precision.py tests/report/test_layers.py

test: $(VENV)/.test
	$(BIN)/python -m scripts.emulators
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	$(AMX)

test-all: $(VENV)/.test
	$(BIN)/python -m scripts.emulators
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --all
	$(AMX) --all

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

docs: $(VENV)/.test
	$(BIN)/python -m scripts.site
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.made:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 13) or sys.exit("Python 3.10 to 3.13 is needed, found %d.%d: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made setup.py pyproject.toml
	$(PIP) install -e '.[tflite,bench]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) install -e '.[tflite,onnx,torch,tune,bench,test]'
	touch $@
