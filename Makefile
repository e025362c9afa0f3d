# Entry points; the work is in cargo and xtask/. `make help` lists them.

CARGO ?= cargo

.PHONY: help run test soak bench check linker

help:
	@echo 'make run     build, and show nvlane at work: a target, verified load, a report'
	@echo 'make test    install what is missing (as root, with apt-get) and run every test'
	@echo 'make soak    judges that take hours: planted bugs, fuzzers, 106,000 simulated seeds, long torture'
	@echo 'make bench   what measures time'
	@echo 'make check   format, citations, lints, quick tests, documentation'

run: linker
	$(CARGO) run --release --package nvlane -- quickstart

# In a new clone it builds everything once: a fifth quicker without the data that builds after a change would use.
test: linker
	@if [ -d target/debug/incremental ]; then $(CARGO) xtask ci; else CARGO_INCREMENTAL=0 $(CARGO) xtask ci; fi

soak: linker
	$(CARGO) xtask soak

bench: linker
	$(CARGO) xtask bench

check: linker
	$(CARGO) xtask check

# What cargo needs before it can build anything, xtask included.
linker:
	@command -v cc >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev; }
