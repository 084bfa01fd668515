# Daily commands, thin over CMake and Ninja. `make test` and `make demo` are ./bootstrap test and ./bootstrap demo.
PREFIX ?= /usr/local
BUILD := build/release
# Executions of each fuzz target in `make fuzz`.
RUNS ?= 1000000
C_FILES = $(shell find include src apps tests examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')

.PHONY: build demo test gpu-test gpu-bench fuzz accuracy format format-check lint bench install clean

build:
	@cmake -S . -B $(BUILD) -G Ninja -DTIGON_DEVELOPER=ON
	@ninja -C $(BUILD)

demo:
	@./bootstrap demo

test:
	@./bootstrap test

# On a machine with a CUDA device (the programs in build/release/tests also run where there is only a driver): what needs a
# device, and the benches, whose receipts go to bench/results. The benches need PyTorch, apache-tvm-ffi, and peers to compare.
gpu-test: build
	@TIGON_REQUIRE_GPU=1 ctest --test-dir $(BUILD) -L gpu --output-on-failure

gpu-bench: build
	@set -e; for family in rms_norm moe moe_kernels; do \
		PYTHONPATH=python TIGON_FFI_LIBRARY=$(BUILD)/libtigon_ffi.so \
			python3 bench/gpu_$$family.py bench/results/gpu_$$family.jsonl; done

# Needs clang. New inputs are kept in build/fuzz/corpus; a finding ends it and is written to the current folder.
fuzz:
	@cmake -S . -B build/fuzz -G Ninja -DTIGON_FUZZ=ON -DTIGON_TESTS=OFF -DCMAKE_C_COMPILER=clang
	@ninja -C build/fuzz
	@set -e; for source in tests/fuzz/fuzz_*.c; do \
		name=$$(basename $$source .c); corpus=corpus/$${name#fuzz_}; echo "== $$name"; \
		build/fuzz/$$name -runs=$(RUNS) -max_len=512 -timeout=20 -print_final_stats=1 build/fuzz/$$corpus tests/fuzz/$$corpus; \
	done

# The table of errors and case counts, from the last `make test`.
accuracy:
	@python3 tests/support/accuracy.py $(BUILD)/Testing/Temporary/LastTest.log > docs/accuracy.md

format:
	@clang-format -i $(C_FILES)

format-check:
	@clang-format -n --Werror $(C_FILES)
	@echo "format: $(words $(C_FILES)) files are formatted"

lint:
	@sh cmake/lint.sh

bench: build
	@$(BUILD)/tigon bench

install:
	@cmake -S . -B $(BUILD) -G Ninja
	@ninja -C $(BUILD)
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf build
