# Verbs of the project; `make` alone lists them. Each does what it needs first, so any of them works in a fresh clone.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv/bin
ROW ?= 2.13-cpu

# What the tests need from Debian beside the engine: to compile smddp (libfabric-dev: its transport for EFA), what it is compared with (openmpi-bin, libopenmpi-dev), to start hosts in namespaces, to bootstrap a base,
# to look at the catalogue of images (chromium), to push images (docker-registry, apache2-utils), to send jobs to (slurm...),
# to be what SageMaker's SDK runs jobs with (docker-compose).
TEST_PACKAGES := g++ python3-dev libgtest-dev libfabric-dev openmpi-bin libopenmpi-dev openssh-server iproute2 faketime busybox-static mmdebstrap chromium docker-registry apache2-utils slurmctld slurmd slurm-client docker-compose

.PHONY: help
help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

.PHONY: demo
demo: ## Take a clean machine to a model trained on two hosts
	@scripts/demo.sh

.PHONY: test
test: ## Set up everything and run every check and test
	@scripts/test.sh $(TEST_PACKAGES)

.PHONY: venv
venv: ## Make .venv with the locked Python packages and the shoal command
	@scripts/venv.sh

.PHONY: engine engine-stop
engine: ## Have a Docker engine: the one there is, or Debian's
	@scripts/engine.sh start
engine-stop: ## Stop the engine that `make engine` started
	@scripts/engine.sh stop

.PHONY: image
image: venv engine ## Build, measure and tag the image of ROW (default 2.13-cpu)
	@$(VENV)/shoal build $(ROW)

.PHONY: test-offline test-reproducible
test-offline: venv engine ## Build ROW from its bundle without a network, on an engine that holds nothing (as root; minutes)
	@ROW=$(ROW) scripts/test-slow.sh tests/images/offline_build.py docker.io util-linux
test-reproducible: venv engine ## Build ROW twice with buildah from one bundle and compare the digests (as root; minutes)
	@ROW=$(ROW) scripts/test-slow.sh tests/images/reproducible_build.py buildah util-linux

.PHONY: test-image test-images
FLAVOUR ?= sagemaker
test-image: venv engine ## Test the image of ROW: all tests of its kinds (tests/images/by_image)
	@$(VENV)/shoal build --flavour $(FLAVOUR) $(ROW)
	@$(VENV)/pytest -q tests/images --row $(ROW) --flavour $(FLAVOUR)
test-images: venv engine ## Test every image that today's sources make and the engine has
	@$(VENV)/python tests/images/run_all.py

.PHONY: smddp
smddp: venv ## Compile the collective library and install it in .venv
	@$(VENV)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --config-settings=cmake.define.SMDDP_WERROR=ON ./smddp_core

.PHONY: test-smddp
test-smddp: ## Tests of the collective library alone: the C++ core (plain, ASan and UBSan, TSan), then through torch
	@scripts/test-smddp.sh $(TEST_PACKAGES)

.PHONY: test-modelparallel
test-modelparallel: venv ## Tests of the model parallelism library alone, on ranks of this machine (they use mpirun where it is)
	@$(VENV)/pytest -q tests/modelparallel

.PHONY: test-entrypoint
test-entrypoint: ## Tests of `train` alone, on hosts that are namespaces of this machine
	@scripts/test-entrypoint.sh $(TEST_PACKAGES)

.PHONY: test-report
test-report: ## Tests of what measures jobs, and of `shoal report`: sampler, marks, rules, the page in Chromium
	@scripts/test-report.sh $(TEST_PACKAGES)

.PHONY: test-jobs
test-jobs: ## Tests of jobs alone: run, submit, serve, advise, and every example on the real image
	@scripts/test-jobs.sh $(TEST_PACKAGES)

.PHONY: matrix torch-suite torch-headers torch-releases old-compilers
matrix: venv ## Build smddp for the torch and Python of every row of versions.yaml and run its collectives (ROWS=)
	@$(VENV)/python tests/smddp/matrix.py $(ROWS)
torch-suite: smddp ## PyTorch's own distributed tests: all that passes on gloo must pass on smddp (2, 3, 4 ranks)
	@$(VENV)/python tests/smddp/torch_suite.py
torch-headers: venv ## Compile smddp's binding against the headers of every torch release since 1.12
	@$(VENV)/python tests/smddp/torch_headers.py $(RELEASES)
torch-releases: venv ## Build smddp against real releases of torch since 1.12 and test it on each (RELEASES=, gigabytes to download)
	@$(VENV)/python tests/smddp/torch_releases.py $(RELEASES)

old-compilers: venv ## Compile smddp's core with GCC 9 and 10 and test its loops (as root; COMPILERS=)
	@tests/smddp/old_compilers.sh $(or $(COMPILERS),g++-9 g++-10)

.PHONY: soak
soak: smddp ## Run 100,000 random operations on random groups (OPERATIONS=, SEED=)
	@$(VENV)/python tests/smddp/run_soak.py $(if $(OPERATIONS),--operations $(OPERATIONS)) $(if $(SEED),--seed $(SEED))

.PHONY: faults
faults: smddp ## Run 200 jobs in which one rank fails somehow (JOBS=, SEED=)
	@$(VENV)/python tests/smddp/run_faults.py $(if $(JOBS),--jobs $(JOBS)) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: smddp ## Time the collectives beside other libraries briefly (as root: between hosts too)
	@$(VENV)/python benchmarks/collectives.py --quick

.PHONY: smp-docs
smp-docs: venv ## Write docs/smp-api.md and smp's drawing again, from docstrings and code
	@$(VENV)/python scripts/smp_api.py
	@$(VENV)/python scripts/smp_pictures.py

.PHONY: lint
lint: venv ## Formatters, linters, types, rendered Dockerfiles
	@scripts/lint.sh

.PHONY: format
format: venv ## Let the formatters rewrite what they would complain about
	@$(VENV)/ruff check --fix --quiet . ; $(VENV)/ruff format --quiet .
	@git ls-files 'smddp_core/*.cpp' 'smddp_core/*.hpp' 'benchmarks/*.cpp' 'benchmarks/*.hpp' | xargs -r $(VENV)/clang-format -i

.PHONY: lock
lock: venv ## Choose the versions of all Python packages anew
	@$(VENV)/python scripts/lock.py
	@$(VENV)/shoal lock $(ROW)

.PHONY: clean
clean: ## Remove what the other verbs made here (images of the engine stay)
	rm -rf .venv .shoal runs wheelhouse/*/ wheelhouse/.[a-z]* smddp_core/build entrypoint/build .mypy_cache .ruff_cache .pytest_cache
