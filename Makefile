# make         a virtual environment in .venv, ready to use
# make demo    what tilewright does, in a minute
# make test    the tests; no GPU needed (TILEWRIGHT_TEST_GPU=1 runs those that want one)
# make fuzz    random programs, formats and inputs against a judge of its own (ARGS="--count 5000 --seed 1"), and a part
#              of all conformance cases x patterns x index widths x dtypes (ARGS="--cross" for all of it)
#              random schedules of known programs: ARGS="--schedules --count 2000"
# make mutants planted compiler bugs: each must be caught
# make check   format, lint, types, house rules
# PYTHON=python3.12 chooses the interpreter; ARGS="-k spmm" goes to pytest or to the demo.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.tilewright-ready

.PHONY: all demo test fuzz mutants check sizes
all: $(READY)
	@echo "tilewright: next, make demo, make test or make check"

$(READY): pyproject.toml constraints.txt scripts/setup.py
	@$(PYTHON) scripts/setup.py $(VENV) $(READY)

demo: $(READY)
	@$(PY) -m tilewright demo $(ARGS)

test: $(READY)
	@$(PY) -m pytest -q $$($(PY) -c 'import importlib.util as u; print("-n 2" * (u.find_spec("xdist") is not None))') $(ARGS) tests

fuzz: $(READY)
	@PYTHONPATH=src:tests $(PY) -m fuzz.run $(ARGS)

mutants: $(READY)
	@PYTHONPATH=src:tests $(PY) -m fuzz.run --mutants $(ARGS)

check: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy src/tilewright
	$(PY) -m pytest -q tests/test_house.py

sizes:
	@$(PYTHON) scripts/sizes.py
