# SPDX-License-Identifier: Apache-2.0
# What measures: cache_perf, which ships, and the benchmarks of perf/bench. Included by the Makefile.
#
#   make bench            runs all of them (BENCH_FILTER=REGEX: some), writes $(BENCH_JSON), prints perf/compare's table
#   make bench-syscalls   counts system calls per row
#   make bench-spill      spilling in SPILL_FOLDER (/var/tmp): transfers by size and depth beside a plain io_uring, then
#                         rows beside fio (SPILL_FLAGS="--cold ..."; --help of perf/spill/beside_fio)

PERF := $(BUILD)/perf
BENCH_JSON ?= $(PERF)/bench.json
BENCH_FILTER ?= .
BENCH_FLAGS ?= --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true --benchmark_min_time=0.2

perf_support_obj := $(call objects,$(wildcard perf/support/*.cc))
cache_perf_obj := $(call objects,$(wildcard perf/cache_perf/*.cc))
bench_obj := $(call objects,$(wildcard perf/bench/*.cc))
bench_spill_obj := $(call objects,$(wildcard perf/spill/*.cc) $(patsubst %,perf/bench/%.cc,cache_store plain_store workload) core/spill/ring.cc)
# What makes the server's pages, for the floor of a first epoch, and parts measured by themselves.
bench_core_obj := $(call objects,core/shm/backing.cc core/shm/region.cc core/store/row.cc core/common/error.cc core/control/socket.cc)

# Figures are read with the flags they were made with.
$(OBJ)/perf/support/machine.o: override CPPFLAGS += -DPERF_BUILD_FLAGS='"$(strip $(OPT) $(SANFLAGS))"'

all: $(BIN)/cache_perf
$(BIN)/cache_perf: $(cache_perf_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF)/bench: $(bench_obj) $(perf_support_obj) $(bench_core_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lbenchmark -llmdb -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF)/bench_spill: $(bench_spill_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lbenchmark -luring -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF)/row_calls: $(OBJ)/perf/syscalls/row_calls.o $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -Wl,-rpath,'$$ORIGIN/../lib'

.PHONY: bench bench-syscalls
bench: deps
	@tests/install_packages $(PACKAGES_BENCH)
	@$(MAKE) --no-print-directory -s all $(PERF)/bench
	@$(PERF)/bench $(BENCH_FLAGS) --benchmark_report_aggregates_only=true --benchmark_filter='$(BENCH_FILTER)' \
	  --benchmark_out=$(BENCH_JSON) --benchmark_out_format=json
	@$(PYTHON) perf/compare $(BENCH_JSON)
bench-syscalls: deps
	@tests/install_packages strace
	@$(MAKE) --no-print-directory -s all $(PERF)/row_calls
	@perf/syscalls/count $(BUILD)

-include $(patsubst %.o,%.d,$(perf_support_obj) $(cache_perf_obj) $(bench_obj) $(bench_spill_obj) $(OBJ)/perf/syscalls/row_calls.o)

.PHONY: bench-spill
SPILL_FOLDER ?= /var/tmp
bench-spill: deps
	@tests/install_packages fio $(PACKAGES_BENCH)
	@$(MAKE) --no-print-directory -s all $(PERF)/bench_spill
	@$(PERF)/bench_spill --benchmark_filter='^S[WR]/' --folder=$(SPILL_FOLDER) $(BENCH_FLAGS) \
	  --benchmark_report_aggregates_only=true --benchmark_out=$(PERF)/bench_spill.json --benchmark_out_format=json
	@$(PYTHON) perf/compare $(PERF)/bench_spill.json
	@perf/spill/beside_fio --folder $(SPILL_FOLDER) --build $(BUILD) $(SPILL_FLAGS)
