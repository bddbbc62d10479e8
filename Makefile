PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: demo test check bench fuzz clean training

# A stamp, not the folder, says that the installation finished.
$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch torchvision
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/thinwire compare --data mnist5k --model resnet20 --workers 2 --epochs 2 --out runs/demo --overwrite --markdown runs/demo/table.md

test: $(VENV)/installed
	$(BIN)/python -m pytest
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/numba-bounds-checked $(BIN)/python -m pytest tests/kernels tests/levels/test_optimal_rows.py tests/levels/test_conditions.py tests/schemes

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layering.py --durations=0

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.kernels --values 16777216
	$(BIN)/python -m benchmarks.first_use
	$(BIN)/python -m benchmarks.optimal

fuzz: $(VENV)/installed
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/numba-bounds-checked $(BIN)/python -m tests.kernels.fuzz_entropy

# Hours. Each method of TRAINED on three seeds, a network trained by SGD and one by AdamW; what broke off goes on.
TRAINED ?= fp32,dithered-2,rotated-2,eden-2,orq-3,terngrad,dithered-1,rotated-1,eden-1,deadzone-1,deadzone-1+ef,signsgd+ef,bingrad-b+ef
TRAINING = $(BIN)/thinwire compare --resume --methods $(TRAINED) --workers 4 --seeds 3 --captures 0

training: $(VENV)/installed
	$(TRAINING) --data mnist5k --model resnet20 --epochs 6 --lr 0.05 --lr-warmup 63 --out runs/training-resnet --markdown runs/training-resnet.md
	$(TRAINING) --data stdlib-text --model gpt --epochs 1 --batch-size 16 --out runs/training-gpt --markdown runs/training-gpt.md

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
