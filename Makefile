# The commands of the project. Each is a script that can also be run by hand.

.DEFAULT_GOAL := help
# Of hpc/install.sh, named on the command line or in the environment.
export PREFIX DESTDIR
.PHONY: help setup setup-ulfm build demo test lint test-peers test-ulfm test-aarch64 cluster-up cluster-down
.PHONY: fuzz slurm-up slurm-down test-slurm install uninstall vendor test-packaging clean

help:
	@echo 'make setup        look for compilers, MPI and HDF5; install them where allowed'
	@echo 'make setup-ulfm   Open MPI 5, whose jobs survive the loss of a rank, in target/ulfm'
	@echo 'make build        the program: target/release/umbra'
	@echo 'make demo         synthetic data, training on 4 MPI ranks, a table of results (5 minutes)'
	@echo 'make install      PREFIX=/usr/local DESTDIR=: the program, job scripts, a modulefile, documents; make uninstall'
	@echo 'make test         everything that must hold before a change goes in; what CI runs. MPI=mpich: on MPICH'
	@echo 'make lint         the quick part of it: format, clippy, docs'
	@echo 'make fuzz         files and messages that are almost right: CASES=12000000 SEED=1 LIBFUZZER_S=10'
	@echo 'make test-peers   models, gradients and the Python lines of docs/formats.md against PyTorch (from its registry)'
	@echo 'make test-docs    the blocks of code in README.md and docs/, as a reader would run them (the program is built before)'
	@echo 'make book         docs/ as pages for a browser, in target/book (mdbook: cargo install mdbook --locked)'
	@echo 'make test-ulfm    jobs that go on inside when a rank is killed, on Open MPI 5 (from its registry)'
	@echo 'make test-aarch64 the core and its NEON kernels under an emulator (Debian'"'"'s packages, in target/aarch64)'
	@echo 'make test-slurm   job scripts and launches under a real Slurm on this machine (2 minutes)'
	@echo 'make test-packaging  install, modulefile, vendored archive, recipes'
	@echo 'make slurm-up     that Slurm to try things on: NODES=2 CPUS=4 (root); make slurm-down'
	@echo 'make cluster-up   nodes of a test cluster on this machine: NODES=4 RATE=100mbit LATENCY_US=0 (root)'
	@echo 'make cluster-down and away again'
	@echo 'make vendor       an archive of the sources and all crates, which builds without a network'
	@echo 'make clean        away with what was built: target/'
	@echo 'make show-NAME    measure a published figure: $(sort $(patsubst hpc/show/%.sh,%,$(wildcard hpc/show/*.sh)))'

# Tests and shows have more threads than machines have cores: here that is meant.
export UMBRA_ALLOW_OVERSUBSCRIBE ?= 1

setup:
	@hpc/setup.sh

setup-ulfm:
	@hpc/ulfm.sh

build:
	@hpc/setup.sh --quiet
	@. hpc/env.sh && cargo build --release -p umbra-mpi --bin umbra

demo:
	@hpc/demo.sh

test:
	@$(if $(filter mpich,$(MPI)),hpc/mpich.sh,hpc/check.sh)

lint:
	@hpc/check.sh format clippy docs

fuzz:
	@tests/fuzz/run.sh

test-ulfm:
	@hpc/ulfm.sh
	@. hpc/env.sh && cargo build --workspace --bins && cargo test -p umbra-tests --test ulfm -- --ignored

test-aarch64:
	@hpc/aarch64.sh

test-peers:
	@tests/peers/run.sh

.PHONY: test-docs book

test-docs: build
	@tests/blocks/run.py

book:
	@hpc/book.py

cluster-up:
	@hpc/cluster/up.sh $(or $(NODES),4) $(or $(RATE),100mbit) $(or $(LATENCY_US),0)

cluster-down:
	@hpc/cluster/down.sh

slurm-up:
	@hpc/setup.sh --quiet slurm
	@hpc/slurm/up.sh $(or $(NODES),2) $(or $(CPUS),4)

slurm-down:
	@hpc/slurm/down.sh

test-slurm:
	@hpc/slurm/check.sh

install:
	@hpc/install.sh

uninstall:
	@hpc/install.sh --uninstall

vendor:
	@hpc/packaging/vendor.sh

test-packaging:
	@hpc/packaging/check.sh

clean:
	@cargo clean

show-%: hpc/show/%.sh
	@hpc/show/$*.sh
