# SPDX-License-Identifier: Apache-2.0
# libcache. `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
# SAN=address or SAN=thread builds everything with that sanitizer, in a folder of its own.

CXX ?= g++
CC ?= gcc
PYTHON ?= /usr/bin/python3
PREFIX ?= /usr/local
SAN ?=
BUILD ?= build$(if $(SAN),/$(SAN))

san_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# What the compiler expands in place TSan does not see: memcpy of a row's header was such a store.
san_thread := -fsanitize=thread $(addprefix -fno-builtin-,memcpy memmove memset memcmp)
san_fuzzer := $(san_address) -fsanitize=fuzzer-no-link
SANFLAGS := $(san_$(SAN))
WARN := -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-align -Werror
OPT ?= $(if $(SAN),-O1 -g1,-O2 -g) # half the time to compile, and reports still name file and line
override CPPFLAGS += -I. -D_GNU_SOURCE -DBOOST_ALL_NO_LIB -MMD -MP
override CXXFLAGS += -std=c++20 $(OPT) $(WARN) -fPIC -fvisibility=hidden -fno-semantic-interposition -fno-plt -pthread $(SANFLAGS)
override CFLAGS += -std=c11 $(OPT) -Wall -Wextra -Werror -fPIC -pthread $(SANFLAGS)
override LDFLAGS += -pthread -Wl,-z,relro,-z,now $(SANFLAGS)

BIN := $(BUILD)/bin
LIB := $(BUILD)/lib
OBJ := $(BUILD)/obj

objects = $(patsubst %,$(OBJ)/%.o,$(basename $(1)))
# log.cc (spdlog) and backing.cc are the server's
client_src := $(filter-out core/common/log.cc core/shm/backing.cc,$(wildcard core/common/*.cc core/shm/*.cc core/store/*.cc core/spill/*.cc core/control/*.cc core/client/*.cc))
CLIENT_LIBS := -luring -lisal # of whatever client_src is linked into
server_src := $(wildcard core/common/*.cc core/shm/*.cc core/store/*.cc core/control/*.cc core/server/*.cc)
capi_src := $(wildcard capi/*.cc)
admin_src := $(wildcard capi/admin/*.cc)

all: $(BIN)/cache_server $(BIN)/cache_admin $(BIN)/dataset-cache $(LIB)/libcache.so $(BIN)/mnist_demo
.PHONY: all

# ---- what ships --------------------------------------------------------------------------------------------------------
# What reads options or prints need not be fast, nor need tests: optimising their templates would take most of a build's time.
$(OBJ)/capi/admin/% $(OBJ)/core/server/options.o $(addprefix $(OBJ)/perf/,cache_perf/options.o cache_perf/json.o peers/main.o \
  scaling/main.o) $(OBJ)/pause/% $(OBJ)/capi/examples/% $(OBJ)/tests/stress/%: \
  OPT = $(if $(filter address,$(SAN)),-O0,-O1) -g1
$(OBJ)/tests/% $(OBJ)/pause/tests/% $(BUILD)/other_major/%: OPT = -O0 -g1
ifeq ($(SAN),address) # undefined behaviour is looked for in the library and the server; it takes as long again to compile
$(OBJ)/tests/%: SANFLAGS := -fsanitize=address -fno-omit-frame-pointer
endif
# Of the library that is linked, not once more from its headers
$(OBJ)/core/common/log.o: override CPPFLAGS += -DSPDLOG_COMPILED_LIB -DSPDLOG_SHARED_LIB -DSPDLOG_FMT_EXTERNAL
# Standard headers are precompiled, once for each set of flags: a prerequisite is made with the flags of its target. What
# was made with others, or by another compiler, is passed over for the header beside it.
PRECOMPILE ?= $(if $(findstring clang,$(CXX))$(findstring ccache,$(CXX)),,1)
precompiled = $(if $(PRECOMPILE),$(OBJ)/precompiled/$(subst $() ,,$(OPT)$(SANFLAGS))/standard.h.gch)
include_precompiled = $(patsubst %.gch,-include %,$(precompiled))
.PRECIOUS: $(OBJ)/precompiled/%/standard.h.gch
.SECONDEXPANSION:
$(OBJ)/precompiled/%/standard.h.gch: core/precompiled.h
	@mkdir -p $(@D)
	@cp $< $(basename $@)
	$(CXX) -D_GNU_SOURCE $(CXXFLAGS) -x c++-header $< -o $@
$(OBJ)/%.o: %.cc | $$(precompiled)
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) $(include_precompiled) -c $< -o $@
$(OBJ)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# The client side as an archive: the tests link it whole, past the version script of libcache.so.
$(LIB)/libcache_core.a: $(call objects,$(client_src) $(capi_src))
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(LIB)/libcache.so.1: $(call objects,$(client_src) $(capi_src)) capi/libcache.map
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -shared -Wl,-soname,libcache.so.1 -Wl,-Bsymbolic $(if $(SAN),,-Wl,-z,defs) \
	  -Wl,--version-script=capi/libcache.map -Wl,--no-undefined-version -o $@ $(filter %.o,$^) $(CLIENT_LIBS)
$(LIB)/libcache.so: $(LIB)/libcache.so.1
	ln -sf libcache.so.1 $@

$(BIN)/cache_server: $(call objects,$(server_src))
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ -lspdlog -lfmt
$(BIN)/cache_admin: $(call objects,$(admin_src)) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -Wl,-rpath,'$$ORIGIN/../lib'
$(BIN)/dataset-cache: $(BIN)/cache_admin
	ln -sf cache_admin $@
$(BIN)/mnist_demo: $(call objects,$(wildcard capi/examples/mnist_demo*.cc)) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lz -Wl,-rpath,'$$ORIGIN/../lib'

include tests/tests.mk tests/proof.mk perf/perf.mk perf/peers/peers.mk bindings/python/python.mk bindings/cpp/cpp.mk bindings/rust/rust.mk packaging/packaging.mk tests/abi/abi.mk tests/aarch64/aarch64.mk

# ---- what a newcomer calls ---------------------------------------------------------------------------------------------
.PHONY: deps deps-dev demo test lint help clean
PACKAGES := libboost1.81-dev liburing-dev libisal-dev libcriterion-dev libcli11-dev nlohmann-json3-dev libspdlog-dev \
  zlib1g-dev libseccomp-dev spin strace valgrind python3 python3-pytest
PACKAGES_DEV := clang-14 clang-format-14 clang-tidy-14 cppcheck shellcheck mandoc libclang-rt-14-dev
PACKAGES_BENCH := libbenchmark-dev liblmdb-dev
deps:
	@tests/install_packages $(PACKAGES)
deps-dev: deps
	@tests/install_packages $(PACKAGES_DEV)

demo: deps
	@echo 'building some 100 files, a minute or a few'
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@$(BIN)/mnist_demo

test: deps deps-python deps-packaging
	@$(MAKE) --no-print-directory -s -j$$(nproc) all tests python
	@$(MAKE) --no-print-directory -s -j$$(nproc) tests-asan
	@$(MAKE) --no-print-directory -s -j$$(nproc) tests-tsan
	@$(PYTHON) tests/run.py --build $(BUILD) --sanitized $(BUILD)/address --sanitized $(BUILD)/thread

lint_src := $(wildcard core/*/*.cc capi/*.cc capi/admin/*.cc capi/examples/*.cc)
lint_format := $(lint_src) $(wildcard core/*/*.h capi/*/*.[ch] bindings/cpp/*.hpp bindings/cpp/*/*.cc bindings/python/src/*.[ch] \
  packaging/*.[ch] perf/*/*.cc perf/*/*.h tests/*/*.cc tests/*/*.[ch])
lint_sh := .ci/run tests/install_packages tests/fuzz/run tests/model/run tests/valgrind/run tests/aarch64/make_sysroot \
  tests/abi/keep_first tests/abi/compare_binaries perf/syscalls/count packaging/make_deb packaging/completion.bash \
  $(wildcard bindings/python/examples/*.sh)
lint: deps-dev
	@clang-format-14 --dry-run -Werror $(lint_format)
	@shellcheck $(lint_sh)
	@cppcheck --quiet --std=c++20 --language=c++ --enable=warning,portability --inline-suppr --error-exitcode=1 \
	  --suppressions-list=.cppcheck -I. -D_GNU_SOURCE -DCPPCHECK core capi/libcache.cc capi/admin
	@printf '%s\n' $(lint_src) | xargs -P $$(nproc) -n 4 sh -c 'clang-tidy-14 --quiet "$$@" -- -std=c++20 -I. -D_GNU_SOURCE \
	  2>/dev/null' sh
	@echo lint: clean

help:
	@echo 'make          builds the server, cache_admin, libcache.so, cache_perf and the demo'
	@echo 'make demo     MNIST through the cache, every byte checked; installs what is missing'
	@echo 'make test     builds and runs every test; installs what is missing'
	@echo 'make python   the Python package in $(BUILD)/python'
	@echo 'make test-mindspore: libcache.mindspore with MindSpore itself, in a virtual environment (1 GB)'
	@echo 'make cpp, make rust: the examples of these bindings in $(BUILD)/examples; make deps-rust installs cargo'
	@echo 'make bench    benchmarks beside their floors and LMDB; make bench-syscalls: system calls per row'
	@echo 'make bench-results: perf/RESULTS.md: targets, libcache beside LMDB, Redis, ..., more and more of everything;'
	@echo '              bench-peers, bench-scaling: parts of it; RESULTS_FLAGS=--plan tells how long it takes'
	@echo 'make bench-python: the Python package and PyTorch, with and without a cache'
	@echo 'make crash    kills everybody at random for DURATION (60) seconds; make soak: an hour of work, nothing may grow'
	@echo 'make lint     clang-format, clang-tidy, cppcheck, shellcheck'
	@echo 'make test-asan, make test-tsan: the tests under one sanitizer; SAN=address or SAN=thread builds anything so'
	@echo 'make test-valgrind: memcheck over every call of the library'
	@echo 'make test-aarch64: the test programs for aarch64, in qemu-user; make test-large-pages: with pages of 64 KiB'
	@echo 'make fuzz, make model, make mutants: the proofs of tests/proof.mk'
	@echo 'make deps, deps-dev, deps-python, deps-torch: install packages'
	@echo 'make install, uninstall: PREFIX=/usr/local, DESTDIR=; make deb: Debian packages; make wheel: a Python wheel'
	@echo 'make check-abi: the C interface against the reference of tests/abi'
	@echo 'make clean'

clean:
	rm -rf $(BUILD)

# What each object was made from
-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
