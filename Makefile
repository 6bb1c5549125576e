# Two commands do everything: `make demo` and `make test`. Both create .venv from the lock when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch comes from wherever pip is configured to look, else from PyTorch's CPU wheel index.
TORCH := $(shell grep '^torch==' requirements/cpu.txt)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test lint bench docs clean

demo: $(VENV)
	$(BIN)/nemo-specrl train experiment=demo

test: $(VENV)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(VENV)
	$(BIN)/nemo-specrl bench --config-name=bench_smollm2 experiment=vanilla,spec_rl

docs: $(VENV)
	$(BIN)/python -m nemo_specrl.config.reference > docs/configuration.md

# --no-deps: the lock is complete, and leaves out CUDA builds that break a CPU environment (see requirements/cpu.in).
$(VENV): $(VENV)/.complete
$(VENV)/.complete: requirements/cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps "$(TORCH)" || \
	  $(BIN)/python -m pip install --quiet --no-deps "$(TORCH)" --index-url $(TORCH_INDEX)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
