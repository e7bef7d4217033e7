# SPDX-License-Identifier: Apache-2.0
# The C parts for aarch64 on a machine of another kind: cross-compiled, and their tests run by qemu-user. Included by the
# Makefile; tests/aarch64/README.md tells more.
#
#   make aarch64            server, programs, library and tests in $(BUILD)/aarch64
#   make test-aarch64       runs these tests; ONLY='pattern ...' for some of them
#   make test-large-pages   runs the test programs of this machine as on a kernel with pages of 64 KiB; ONLY as well
#
# What the first two need is not part of `make deps`: the cross compiler and qemu are installed, the libraries come as
# arm64 packages into $(BUILD)/aarch64/sysroot.

PACKAGES_AARCH64 := g++-aarch64-linux-gnu qemu-user-static
SYSROOT_PACKAGES = $(filter lib% zlib% nlohmann%,$(PACKAGES))
AARCH64 := $(abspath $(BUILD))/aarch64
SYSROOT := $(AARCH64)/sysroot
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_CXX ?= aarch64-linux-gnu-g++
AARCH64_MAKE = $(MAKE) --no-print-directory -s BUILD=$(AARCH64) CC='$(AARCH64_CC) --sysroot=$(SYSROOT)' \
  CXX='$(AARCH64_CXX) --sysroot=$(SYSROOT)' AR=aarch64-linux-gnu-ar TEST_OBJECTS=$(AARCH64)/obj/tests/aarch64/exec.o
# -L: where the dynamic linker and the libraries of the programs lie
EMULATOR := /usr/bin/qemu-aarch64-static -L $(SYSROOT)
ONLY ?=
RUN_PROGRAMS = $(PYTHON) tests/run.py --no-pytest $(addprefix --only ,$(ONLY))

.PHONY: deps-aarch64 aarch64 test-aarch64 tests-portable test-large-pages
deps-aarch64:
	@tests/install_packages $(PACKAGES_AARCH64)
	@tests/aarch64/make_sysroot $(SYSROOT) $(SYSROOT_PACKAGES)

aarch64: deps-aarch64
	+@$(AARCH64_MAKE) all tests-portable
test-aarch64: aarch64
	@LIBCACHE_TEST_EMULATOR='$(EMULATOR)' $(RUN_PROGRAMS) --build $(AARCH64) --watchdog 3600

# All but the crash programs: what they look at, the order of steps and not of memory accesses, is no other there.
tests-portable: $(unit_tests) $(capi_c_tests) $(capi_cc_tests) $(installed_tests) $(stress_tests) $(BIN)/cache_server \
  $(TEST_SUPPORT)/check_region

LARGE_PAGES := $(TEST_SUPPORT)/large_pages.so
$(LARGE_PAGES): tests/aarch64/large_pages.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -shared -o $@ $<
test-large-pages: deps
	+@$(MAKE) --no-print-directory -s tests-portable $(LARGE_PAGES)
	@LD_PRELOAD=$(abspath $(LARGE_PAGES)) $(RUN_PROGRAMS) --build $(BUILD)
