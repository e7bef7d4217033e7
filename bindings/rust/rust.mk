# SPDX-License-Identifier: Apache-2.0
# The Rust crate, built by cargo without the network: it has no dependencies. Included by the Makefile. Where cargo is
# missing this says so and does nothing, and its tests are skipped.
#
#   make rust    the crate, its tests and its examples, in $(BUILD)/examples

PACKAGES_RUST := cargo rustc
CARGO ?= cargo
RUST_TARGET := $(abspath $(OBJ))/rust
RUST_ENVIRONMENT := LIBCACHE_LIB_DIR=$(abspath $(LIB)) CARGO_TARGET_DIR=$(RUST_TARGET)

.PHONY: rust deps-rust
deps-rust:
	@tests/install_packages $(PACKAGES_RUST)
rust: $(LIB)/libcache.so
	@mkdir -p $(BUILD)/examples $(TESTS)/support
	@if ! command -v $(CARGO) >/dev/null; then echo 'rust: skipped, cargo is not installed (make deps-rust)'; else \
	  cd bindings/rust && $(RUST_ENVIRONMENT) $(CARGO) build --quiet --offline --locked --lib --examples --tests && \
	  cp $(RUST_TARGET)/debug/examples/fill_and_train $(abspath $(BUILD))/examples/rust_fill_and_train && \
	  cp $(RUST_TARGET)/debug/examples/exchange $(abspath $(TESTS))/support/exchange_rust; fi

ifeq ($(SAN),) # a sanitized library wants a sanitized program
tests: rust
endif
