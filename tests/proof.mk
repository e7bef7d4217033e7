# SPDX-License-Identifier: Apache-2.0
# Fuzzing, models and mutants. Included by the Makefile after tests/tests.mk.
#
#   make fuzz DURATION=30      each harness of tests/fuzz under libFuzzer (clang 14), so many seconds
#   make model                 the Spin models of tests/model, each with its broken variants
#   make test-valgrind         memcheck over a program that makes every call of libcache.h
#   make mutants               tests/mutants: deliberate faults, and which test finds each (two hours)

# ---- fuzz harnesses ------------------------------------------------------------------------------------------------------
# In `make test` they run their corpus and some mutations under ASan and UBSan, by a main of our own.
fuzz_names := broker client options region restore
fuzz_tests := $(addprefix $(TESTS)/fuzz_,$(fuzz_names))
fuzz_common_obj := $(call objects,$(addprefix tests/fuzz/,image.cc peer.cc server.cc))
fuzz_options_obj := $(call objects,core/server/options.cc $(addprefix capi/admin/,arguments.cc help.cc numbers.cc))
FUZZ_LIBS = -lspdlog -lfmt $(CLIENT_LIBS)

ifeq ($(SAN),address)
tests: $(fuzz_tests)
endif
# A few seconds each.
FUZZ_MUTATIONS ?= 500
$(OBJ)/tests/fuzz/replay.o: override CPPFLAGS += -DFUZZ_MUTATIONS=$(FUZZ_MUTATIONS)
$(fuzz_tests): $(TESTS)/fuzz_%: $(OBJ)/tests/fuzz/%.o $(OBJ)/tests/fuzz/replay.o $(fuzz_common_obj) $(fuzz_options_obj) \
  $(support_obj) $(WHITE_BOX)
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ $(FUZZ_LIBS)

# Everything once more with clang, which marks what the input reaches.
fuzzers := $(addprefix $(BUILD)/fuzzer_,$(fuzz_names))
$(fuzzers): $(BUILD)/fuzzer_%: $(OBJ)/tests/fuzz/%.o $(fuzz_common_obj) $(fuzz_options_obj) $(support_obj) $(WHITE_BOX)
	$(CXX) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(FUZZ_LIBS)

.PHONY: fuzz fuzzers
fuzzers: $(fuzzers)
FUZZ_BUILD := $(BUILD)/fuzz
FUZZ_SECONDS := $(if $(filter command environment,$(origin DURATION)),$(DURATION),30)
fuzz: deps-dev
	@$(MAKE) --no-print-directory -s -j$$(nproc) SAN=fuzzer BUILD=$(FUZZ_BUILD) CXX=clang++-14 CC=clang-14 WARN= fuzzers
	@for name in $(fuzz_names); do tests/fuzz/run $(FUZZ_BUILD)/fuzzer_$$name $(FUZZ_SECONDS) || exit 1; done

-include $(patsubst %.o,%.d,$(fuzz_common_obj) $(OBJ)/tests/fuzz/replay.o $(call objects,$(addsuffix .cc,$(addprefix tests/fuzz/,$(fuzz_names)))))

# ---- memcheck --------------------------------------------------------------------------------------------------------
# Of the library alone, not sanitized; the server beside it runs as it is.
.PHONY: test-valgrind
every_call := $(TESTS)/valgrind/every_call
$(every_call): $(OBJ)/tests/valgrind/every_call.o $(support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lseccomp -Wl,-rpath,'$$ORIGIN/../../lib'
test-valgrind: deps
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(every_call) $(BIN)/cache_server $(TEST_SUPPORT)/check_region
	@tests/valgrind/run $(BUILD)
-include $(OBJ)/tests/valgrind/every_call.d

# ---- models, mutants, what a row costs ---------------------------------------------------------------------------
.PHONY: model mutants
model: deps
	@tests/model/run
mutants: deps
	@tests/mutants

# The short form, for tests/run.py
$(TESTS)/model:
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec tests/model/run --short\n' >$@ && chmod +x $@

ifeq ($(SAN),)
tests: $(TESTS)/model $(BUILD)/perf/row_calls $(BIN)/cache_admin # the last two for tests/cost
endif
