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

# --no-deps: the lock is complete, and leaves out CUDA builds that break a CPU environment (see requirements/cpu.txt).
INSTALL := $(BIN)/python requirements/install.py
$(VENV): $(VENV)/.complete
$(VENV)/.complete: requirements/cpu.txt pyproject.toml
	@echo "setting up $(VENV): $$(grep -c == requirements/cpu.txt) packages of requirements/cpu.txt, 3.5 GB on disk, a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) "1/3 $(TORCH)" --no-deps "$(TORCH)" || { \
	  echo "1/3 not where pip looks: PyTorch's own index is tried"; \
	  $(INSTALL) "1/3 $(TORCH)" --no-deps "$(TORCH)" --index-url $(TORCH_INDEX); }
	@$(INSTALL) "2/3 packages" --no-deps -r requirements/cpu.txt
	@$(INSTALL) "3/3 nemo-specrl" --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
