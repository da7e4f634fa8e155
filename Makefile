# Each target makes the environment in .venv first, where it is not ready; nothing else is needed.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ENVIRONMENT := infrastructure/deployment/environment.sh
PYTHON := .venv/bin/python
TEMPER := .venv/bin/temper
SOURCES := infrastructure colab temper notebooks tests benchmarks
TEST_FLAGS := -n 4 --dist worksteal --durations 25 # processes of one thread each; some wait for others that they have started

# What a notebook's side does before there is any PyTorch: installing, Drive, secrets, form, panel.
LIGHT := bootstrap cost_line drive form_groups form_state live_panel needed_packages runtime secrets
LIGHT_TESTS := $(patsubst %,tests/colab/test_%.py,$(LIGHT) session_clock settings) tests/core/test_waiting.py

# Some containers forbid bytecode; every start would then compile PyTorch's sources anew.
unexport PYTHONDONTWRITEBYTECODE

# What a target is told on make's command line is for the target, not a variable of the environment,
# which Temper reads as settings. It reaches the shell as the value of a GIVEN_… variable, never as a
# piece of its program: a path may hold quotes, spaces and dollars, and nothing of it is executed.
unexport DATA_PATH CHECKPOINT MODEL DATA FLAGS TEST_FLAGS GPU_PYTHON JOBS OTHER
export GIVEN_DATA_PATH = $(value DATA_PATH)
export GIVEN_CHECKPOINT = $(value CHECKPOINT)
export GIVEN_MODEL = $(value MODEL)
export GIVEN_DATA = $(value DATA)
export GIVEN_FLAGS = $(value FLAGS)
export GIVEN_TEST_FLAGS = $(value TEST_FLAGS)
export GIVEN_GPU_PYTHON = $(value GPU_PYTHON)
export GIVEN_JOBS = $(value JOBS)
export GIVEN_OTHER = $(value OTHER)

# The words of flags, with a shell's quotes and without its substitutions: xargs knows just these.
WORDS = words=(); [ -z "$$$(1)" ] || { printf '%s' "$$$(1)" | xargs printf '%s\n' >/dev/null; \
	while IFS= read -r -d '' word; do words+=("$$word"); done \
	< <(printf '%s' "$$$(1)" | xargs printf '%s\0'); }
FLAGS_WORDS := $(call WORDS,GIVEN_FLAGS)
TEST_WORDS := $(call WORDS,GIVEN_TEST_FLAGS)
GIVEN_WORDS := $${words[@]+"$${words[@]}"}

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

.PHONY: train
train: ## train; DATA_PATH=file or folder (default: the sample data), FLAGS='…' of temper train
	@$(FLAGS_WORDS); ./launch_training.sh $${GIVEN_DATA_PATH:+"$$GIVEN_DATA_PATH"} $(GIVEN_WORDS)

.PHONY: train-resume
train-resume: ## go on with a run; CHECKPOINT=run, run@step or path (default: the newest run)
	@$(ENVIRONMENT)
	@$(FLAGS_WORDS); $(TEMPER) train-resume $${GIVEN_CHECKPOINT:+"$$GIVEN_CHECKPOINT"} $(GIVEN_WORDS)

.PHONY: train-eval
train-eval: ## evaluate MODEL=folder on DATA=file
	@[ -n "$$GIVEN_MODEL" ] && [ -n "$$GIVEN_DATA" ] || { echo 'usage: make train-eval MODEL=… DATA=…' >&2; exit 2; }
	@$(ENVIRONMENT)
	@$(FLAGS_WORDS); $(TEMPER) train-eval "$$GIVEN_MODEL" "$$GIVEN_DATA" $(GIVEN_WORDS)

.PHONY: check
check: environment ## ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

.PHONY: format
format: environment ## mend what ruff can mend
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

.PHONY: hooks
hooks: ## before each commit: ruff, mypy, and a look at its message; makes .venv only where that lacks them
	@$(PYTHON) -c 'import pre_commit, ruff, mypy' 2>/dev/null || $(ENVIRONMENT) --with-unsloth --with-dev
	$(PYTHON) -m pre_commit install

.PHONY: test
test: check ## what every change has to pass: the checks, then the tests that are not slow
	@$(TEST_WORDS); OMP_NUM_THREADS=1 $(PYTHON) -m pytest $(GIVEN_WORDS)

.PHONY: test-slow
test-slow: environment ## the tests that are too slow for every change
	@$(TEST_WORDS); OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m slow --timeout 1800 $(GIVEN_WORDS)

.PHONY: test-colab
test-colab: ## the tests with the versions that a Colab runtime holds, in .venv-colab
	@$(ENVIRONMENT) --colab --with-dev
	@$(TEST_WORDS); OMP_NUM_THREADS=1 .venv-colab/bin/python -m pytest $(GIVEN_WORDS)

.PHONY: test-colab-light
test-colab-light: ## the notebook's side on Colab's versions, without PyTorch, in .venv-colab-light
	@$(ENVIRONMENT) --colab --without-torch --with-dev
	.venv-colab-light/bin/python -m pytest $(LIGHT_TESTS)

.PHONY: notebooks
notebooks: environment ## make notebooks/*.ipynb from notebooks/src/*.py
	$(PYTHON) -m notebooks.build

.PHONY: prove-durability
prove-durability: environment ## kills, power cuts, refusing disks, damage, lies; one JSON line
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.faults.prove

.PHONY: prove-identity
prove-identity: environment ## over 200 single changes between two sessions: refused, recorded or harmless; a table
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.field.identity_changes

.PHONY: storm-places
storm-places: environment ## over 300 disturbances of backup destinations while runs copy to them; one JSON line
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.faults.place_storm

.PHONY: prove-learning
prove-learning: environment ## trainings that teach nothing are refused or stopped, healthy ones left alone; a table
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.field.teaching

.PHONY: storm-signals
storm-signals: environment ## one to four signals at random instants of our loop, each method, ranks, sweep and queue; one JSON line
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.faults.stops

.PHONY: storm-ranks
storm-ranks: environment ## ranks of a training, their agent, or all of them killed 60 times at random; one JSON line
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.faults.rank_kills

.PHONY: storm-callback
storm-callback: environment ## seven kinds of people's own Trainers killed 70 times, here and on another machine; one JSON line
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.faults.kill_storm_own_trainers

.PHONY: field
field: environment ## the cases from people's bug reports, as a table
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.field.table

.PHONY: prove-results
prove-results: environment ## families × kinds of training, and odd bases: plain transformers answers as measured; a table
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.field.results

.PHONY: same-bits
same-bits: environment ## weights of healthy trainings beside those of another checkout; OTHER=folder
	@[ -n "$$GIVEN_OTHER" ] || { echo 'usage: make same-bits OTHER=…' >&2; exit 2; }
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.field.same_bits "$$GIVEN_OTHER"

.PHONY: mutants
mutants: environment ## which planted defects the quick tests find; hours; goes on where it was; JOBS=processes
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.mutants.run --jobs "$${GIVEN_JOBS:-1}"

.PHONY: measure-stackwise
measure-stackwise: environment ## stack-wise training beside its rivals; DATA=gsm8k/train.jsonl; hours; goes on where it was
	@[ -n "$$GIVEN_DATA" ] || { echo 'usage: make measure-stackwise DATA=…' >&2; exit 2; }
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.stackwise_quality "$$GIVEN_DATA"

# Each goes on where one before it has missed its goal; all that did are named at the end.
BENCH := missed=(); bench() { name=$$1; shift; $(PYTHON) -m "benchmarks.$$name" "$$@" \
	--write "benchmarks/results/$$name.md" || missed+=("$$name"); }

.PHONY: bench
bench: environment ## speed, start, memory, each beside its goal; DATA=gsm8k/train.jsonl; hours, on a quiet machine
	@[ -n "$$GIVEN_DATA" ] || { echo 'usage: make bench DATA=…' >&2; exit 2; }
	@$(BENCH); data=(--data "$$GIVEN_DATA"); \
	$(PYTHON) -m benchmarks.throughput "$${data[@]}" --write benchmarks/results || missed+=(throughput); \
	bench step_profile "$${data[@]}"; bench short_attention; bench start_time; bench quickstart_seeds; \
	bench everything_on "$${data[@]}"; bench memory_growth; bench data_preparation "$${data[@]}"; \
	bench stream_resume; bench waiting_threads; bench direct_writes; \
	[ "$${#missed[@]}" = 0 ] || { echo "missed: $${missed[*]}" >&2; exit 1; }

.PHONY: docs
docs: environment ## the pages of docs/, with the reference made from the code, in build/docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

.PHONY: gpu-check
gpu-check: ## what this machine's GPU does, in at most 8 minutes; GPU_PYTHON=python for another environment
	"$${GIVEN_GPU_PYTHON:-$(PYTHON)}" -m benchmarks.gpu_check --json gpu-check.json --write gpu-check.md

.PHONY: environment
environment: ## .venv with everything that the tests need
	@$(ENVIRONMENT) --with-unsloth --with-dev

.PHONY: clean
clean: ## remove caches and build leftovers; runs and the environments stay
	rm -rf build dist temper_train.egg-info .pytest_cache .mypy_cache .ruff_cache unsloth_compiled_cache
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

.PHONY: clean-environment
clean-environment: ## remove the environments; the next command makes them anew
	rm -rf .venv .venv-colab .venv-colab-light
