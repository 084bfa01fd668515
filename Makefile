# Daily commands, thin over CMake and Ninja. `make test` and `make demo` are ./bootstrap test and ./bootstrap demo.
PREFIX ?= /usr/local
BUILD := build/release
C_FILES = $(shell find include src apps tests examples -name '*.[ch]')

.PHONY: build demo test accuracy format format-check lint bench install clean

build:
	@cmake -S . -B $(BUILD) -G Ninja -DTIGON_DEVELOPER=ON
	@ninja -C $(BUILD)

demo:
	@./bootstrap demo

test:
	@./bootstrap test

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
