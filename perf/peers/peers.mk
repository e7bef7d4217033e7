# SPDX-License-Identifier: Apache-2.0
# libcache beside its peers, how it scales, and the page of figures. Included by the Makefile.
#
#   make bench-results    measures everything, part by part, and writes perf/RESULTS.md; goes on where it was interrupted
#   make bench-peers      the peers only; make bench-scaling: rows, processes, caches, sessions
#   make results          the page again, from perf/results/figures.json
#   RESULTS_FLAGS         options of perf/results/measure: --plan, --again, --only PATTERN, --rows 10000000; --scale 0.01 is a
#                         try: its page is written to $(BUILD)/perf/try

PACKAGES_PEERS := liblmdb-dev libhiredis-dev libmemcached-dev redis-server memcached python3-matplotlib
RESULTS_FLAGS ?=
FIGURES := $(PERF)/figures
results_try := $(findstring --scale,$(RESULTS_FLAGS))
MEASURE = $(PYTHON) perf/results/measure --build $(BUILD) --figures $(FIGURES)$(if $(results_try),-try) $(RESULTS_FLAGS)

floors_obj := $(call objects,perf/bench/workload.cc perf/bench/cache_store.cc perf/bench/region_floor.cc) $(bench_core_obj)
peers_obj := $(call objects,$(wildcard perf/peers/*.cc)) $(floors_obj)
scaling_obj := $(call objects,$(wildcard perf/scaling/*.cc)) $(floors_obj)
$(PERF)/peers: $(peers_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -llmdb -lhiredis -lmemcached -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF)/scaling: $(scaling_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -Wl,-rpath,'$$ORIGIN/../lib'

# Tested where there is what they need: nobody must install Redis for `make test`.
ifeq ($(SAN),)
tests: $(PERF)/scaling $(if $(and $(wildcard /usr/include/hiredis/hiredis.h),$(wildcard /usr/include/libmemcached/memcached.h),\
  $(wildcard /usr/include/lmdb.h)),$(PERF)/peers)
endif

.PHONY: deps-peers bench-peers bench-scaling bench-results results page
deps-peers:
	@tests/install_packages $(PACKAGES_PEERS)
bench-peers: deps deps-python deps-peers
	@$(MAKE) --no-print-directory -s all python $(PERF)/peers
	@$(MEASURE) --only 'peers/*'
	@$(MAKE) --no-print-directory -s page
bench-scaling: deps deps-peers
	@$(MAKE) --no-print-directory -s all $(PERF)/scaling
	@$(MEASURE) --only 'scaling/*'
	@$(MAKE) --no-print-directory -s page
bench-results: deps deps-python deps-peers
	@tests/install_packages $(PACKAGES_BENCH) fio
	@$(MAKE) --no-print-directory -s all python $(PERF)/peers $(PERF)/scaling $(PERF)/bench $(PERF)/bench_spill
	@$(MEASURE)
	@$(MAKE) --no-print-directory -s page
# Of all figures that are there: whole ones are published.
page: deps-peers
	@$(PYTHON) perf/results/report --figures $(FIGURES)$(if $(results_try),-try --to $(PERF)/try, --whole --to perf)
results: deps-peers
	@$(PYTHON) perf/results/report --figures perf/results/figures.json --whole --to perf

-include $(peers_obj:.o=.d) $(scaling_obj:.o=.d)
