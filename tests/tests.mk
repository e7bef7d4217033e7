# SPDX-License-Identifier: Apache-2.0
# The test programs: $(BUILD)/tests/NAME from tests/{unit,capi,stress,crash}/NAME.{cc,c}. Included by the Makefile.
#
#   unit    Criterion, linked with the archive: what is behind the version script
#   capi    Criterion, linked with libcache.so: what a user can call
#   stress  plain programs [threads [seconds [seed]]], linked with the archive; those of tsan_tests under TSan as well
#   crash   plain programs, linked with an archive that has the pause points of core/common/pause.h compiled in

TESTS := $(BUILD)/tests
TEST_SUPPORT := $(TESTS)/support

# Objects that every test program is to hold besides (tests/aarch64)
TEST_OBJECTS ?=
support_obj := $(call objects,$(filter-out %/check_region.cc,$(wildcard tests/support/*.cc))) $(TEST_OBJECTS)
unit_tests := $(patsubst tests/unit/%.cc,$(TESTS)/%,$(wildcard tests/unit/*.cc))
capi_c_tests := $(patsubst tests/capi/%.c,$(TESTS)/%,$(filter-out %/installed.c,$(wildcard tests/capi/*.c)))
capi_cc_tests := $(patsubst tests/capi/%.cc,$(TESTS)/%,$(wildcard tests/capi/*.cc))
installed_tests := $(TESTS)/installed_c11 $(TESTS)/installed_cxx17
stress_tests := $(patsubst tests/stress/%.cc,$(TESTS)/%,$(wildcard tests/stress/*.cc))
crash_tests := $(patsubst tests/crash/%.cc,$(TESTS)/%,$(wildcard tests/crash/*.cc))
# Stress programs whose threads meet in one mapping, which is all that TSan can see.
tsan_tests := $(addprefix $(TESTS)/,index_exactly_once lending spilling seal_order label_orders)

.PHONY: tests tests-asan tests-tsan test-asan test-tsan
ifeq ($(SAN),thread)
tests: $(tsan_tests) # Criterion does not start under TSan
else ifeq ($(SAN),address)
# Of the C ABI's tests those that are mostly about the server's rules: make test-asan has them, make test has no time.
asan_left_out := $(if $(ALL),,$(addprefix $(TESTS)/,sessions surroundings unwatched isolation faults))
tests: $(unit_tests) $(capi_c_tests) $(filter-out $(asan_left_out),$(capi_cc_tests)) $(installed_tests) $(TESTS)/hostile \
  $(BIN)/cache_server $(TEST_SUPPORT)/check_region
else
tests: $(unit_tests) $(capi_c_tests) $(capi_cc_tests) $(installed_tests) $(stress_tests) $(crash_tests) \
  $(BIN)/cache_server $(TEST_SUPPORT)/check_region $(TEST_SUPPORT)/pause_server
endif

# Sanitized builds live in folders of their own, so one make can have all three.
SAN_BUILD = $(MAKE) --no-print-directory SAN=$(1) BUILD=$(BUILD)/$(1) tests
tests-asan:
	+@$(call SAN_BUILD,address)
tests-tsan:
	+@$(call SAN_BUILD,thread)
test-asan:
	+@$(call SAN_BUILD,address) ALL=1
	@$(PYTHON) tests/run.py --build $(BUILD)/address --no-pytest
test-tsan: tests-tsan
	@$(PYTHON) tests/run.py --build $(BUILD)/thread --no-pytest

$(addprefix $(TESTS)/,short_memory spill_refused spill_ring surroundings): TEST_LIBS := -lseccomp

# ---- linking -----------------------------------------------------------------------------------------------------------
RPATH_LIB := -Wl,-rpath,'$$ORIGIN/../lib'

# The broker's parts that need no process of their own, for white-box tests.
$(TEST_SUPPORT)/server.a: $(call objects,$(filter-out %/main.cc $(client_src),$(server_src)))
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^
WHITE_BOX := $(TEST_SUPPORT)/server.a $(LIB)/libcache_core.a

$(unit_tests): $(TESTS)/%: $(OBJ)/tests/unit/%.o $(support_obj) $(WHITE_BOX)
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ -lcriterion -lspdlog -lfmt $(CLIENT_LIBS) $(TEST_LIBS)
$(capi_c_tests) $(capi_cc_tests): $(TESTS)/%: $(OBJ)/tests/capi/%.o $(support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lcriterion $(TEST_LIBS) $(RPATH_LIB)
$(stress_tests): $(TESTS)/%: $(OBJ)/tests/stress/%.o $(support_obj) $(WHITE_BOX)
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ -lspdlog -lfmt $(CLIENT_LIBS)
$(TEST_SUPPORT)/check_region: $(OBJ)/tests/support/check_region.o $(LIB)/libcache_core.a
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ $(CLIENT_LIBS)

# ---- a program that knows only what is installed: the header in C11 and C++17, and the library ---------------------------
INSTALLED := $(TESTS)/installed
$(INSTALLED)/include/libcache.h: capi/libcache.h
	@mkdir -p $(@D)
	cp $< $@
$(TESTS)/installed_c11: tests/capi/installed.c $(INSTALLED)/include/libcache.h $(LIB)/libcache.so $(support_obj)
	$(CC) -std=c11 -pedantic-errors -Wall -Wextra -Werror $(SANFLAGS) -I$(INSTALLED)/include -Itests/support \
	  -c $< -o $@.o
	$(CXX) $(LDFLAGS) -o $@ $@.o $(support_obj) -L$(LIB) -lcache $(RPATH_LIB)
	@rm -f $@.o
$(TESTS)/installed_cxx17: tests/capi/installed.c $(INSTALLED)/include/libcache.h $(LIB)/libcache.so $(support_obj)
	$(CXX) -std=c++17 -x c++ -pedantic-errors -Wall -Wextra -Werror $(SANFLAGS) -I$(INSTALLED)/include \
	  -Itests/support -c $< -o $@.o
	$(CXX) $(LDFLAGS) -o $@ $@.o $(support_obj) -L$(LIB) -lcache $(RPATH_LIB)
	@rm -f $@.o

# ---- crash programs: client and server with pause points -----------------------------------------------------------------
# Every point is passed and died at: the lists are made from the sources, so that none is forgotten.
# Only what has a point is compiled again; the rest, and therefore every header, is the same without one.
pause_src := $(shell grep -l LIBCACHE_PAUSE $(sort $(client_src) $(capi_src) $(server_src)))
$(if $(filter-out core/common/pause.h,$(shell grep -l LIBCACHE_PAUSE $(wildcard core/*/*.h))),$(error a header has a pause point))
pause_objects = $(patsubst %,$(OBJ)/pause/%.o,$(basename $(1)))
with_points = $(call pause_objects,$(filter $(pause_src),$(1))) $(call objects,$(filter-out $(pause_src),$(1)))
pause_obj := $(call with_points,$(client_src) $(capi_src))
pause_server_obj := $(call with_points,$(server_src))
pause_objects_crash := $(call pause_objects,$(wildcard tests/crash/*.cc))
$(pause_objects_crash): override CPPFLAGS += -I$(TESTS)/include
$(OBJ)/pause/%.o: %.cc | $$(precompiled)
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) -DLIBCACHE_PAUSE_POINTS $(CXXFLAGS) $(include_precompiled) -c $< -o $@
pause_points = sed -n 's/.*LIBCACHE_PAUSE(\("[^"]*"\)).*/\1,/p' $^ >$@
$(TESTS)/include/pause_points.inc: $(filter core/store/% core/client/%,$(client_src))
	@mkdir -p $(@D)
	$(pause_points)
$(TESTS)/include/spill_points.inc: $(filter core/spill/%,$(client_src))
	@mkdir -p $(@D)
	$(pause_points)
$(TESTS)/include/broker_points.inc: $(filter-out %/main.cc %/keeper.cc,$(filter core/server/%,$(server_src)))
	@mkdir -p $(@D)
	$(pause_points)
$(TESTS)/include/keeper_points.inc: core/server/keeper.cc
	@mkdir -p $(@D)
	$(pause_points)
$(pause_objects_crash): $(addprefix $(TESTS)/include/,pause_points.inc spill_points.inc broker_points.inc keeper_points.inc)
# With the server that they start, which must have the points of the lists: an older one never comes to a newer point.
$(crash_tests): $(TESTS)/%: $(OBJ)/pause/tests/crash/%.o $(support_obj) $(pause_obj) | $(TEST_SUPPORT)/pause_server \
  $(TEST_SUPPORT)/check_region
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ $(CLIENT_LIBS)
PAUSE_SERVER := $(TEST_SUPPORT)/pause_server
$(PAUSE_SERVER): $(pause_server_obj)
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $^ -lspdlog -lfmt

# The long run: DURATION=3600 make crash. SEED repeats what a former run did, as far as the scheduler allows.
.PHONY: crash
DURATION ?= 60
SEED ?=
SCALE ?= 2
crash: deps
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(TESTS)/campaign $(PAUSE_SERVER) $(TEST_SUPPORT)/check_region
	@LIBCACHE_BUILD=$(abspath $(BUILD)) $(TESTS)/campaign $(DURATION) $(or $(SEED),$$(date +%s)) $(SCALE)

# An hour of sessions made and destroyed, and 10,000 processes killed while they attach.
.PHONY: soak
soak: deps
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(TESTS)/soak $(TESTS)/attach $(BIN)/cache_server $(TEST_SUPPORT)/check_region
	@LIBCACHE_BUILD=$(abspath $(BUILD)) $(TESTS)/attach 10000
	@LIBCACHE_BUILD=$(abspath $(BUILD)) $(TESTS)/soak $(if $(filter command environment,$(firstword $(origin DURATION))),$(DURATION),3600)

-include $(patsubst %.o,%.d,$(support_obj) $(pause_obj) $(pause_server_obj) $(OBJ)/tests/support/check_region.o \
  $(call objects,$(wildcard tests/unit/*.cc tests/capi/*.c tests/capi/*.cc tests/stress/*.cc)) \
  $(call pause_objects,$(wildcard tests/crash/*.cc)))
