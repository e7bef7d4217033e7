# SPDX-License-Identifier: Apache-2.0
# libcache beside its peers, and how it scales. Included by the Makefile.
#
#   make bench-peers      runs it, writes perf/RESULTS.md and perf/results.svg (PEERS_SCALE=0.01: a try, which writes both
#                         to $(BUILD)/perf instead)
#   make bench-scaling    more rows, processes, caches, sessions: writes its part of the same page (SCALING_ROWS=50000000:
#                         the most rows)

PACKAGES_PEERS := liblmdb-dev libhiredis-dev libmemcached-dev redis-server memcached python3-matplotlib
PEERS_SCALE ?= 1
PEERS_JSON := $(PERF)/peers$(if $(filter-out 1,$(PEERS_SCALE)),-try).json
SCALING_ROWS ?= 50000000
SCALING_JSON := $(PERF)/scaling$(if $(filter-out 50000000,$(SCALING_ROWS)),-try).json
# A page that is published comes from whole runs only.
RESULTS := $(if $(filter-out 1,$(PEERS_SCALE))$(filter-out 50000000,$(SCALING_ROWS)),$(PERF),perf)

peers_obj := $(call objects,$(wildcard perf/peers/*.cc) perf/bench/workload.cc)
scaling_obj := $(call objects,$(wildcard perf/scaling/*.cc) perf/bench/workload.cc)
$(PERF)/peers: $(peers_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -llmdb -lhiredis -lmemcached -Wl,-rpath,'$$ORIGIN/../lib'
$(PERF)/scaling: $(scaling_obj) $(perf_support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -Wl,-rpath,'$$ORIGIN/../lib'

.PHONY: bench-peers bench-scaling results
bench-peers: deps deps-python
	@tests/install_packages $(PACKAGES_PEERS)
	@$(MAKE) --no-print-directory -s all python $(PERF)/peers
	@$(PERF)/peers --scale $(PEERS_SCALE) $(PEERS_JSON)
	@PYTHONPATH=$(BUILD)/python $(BIN)/cache_admin --run -- $(PYTHON) perf/peers/from_python.py --scale $(PEERS_SCALE) \
	  $(PEERS_JSON)
	@$(MAKE) --no-print-directory -s results
bench-scaling: deps
	@tests/install_packages python3-matplotlib
	@$(MAKE) --no-print-directory -s all $(PERF)/scaling
	@$(PERF)/scaling --rows $(SCALING_ROWS) $(SCALING_JSON)
	@$(MAKE) --no-print-directory -s results
# The page and the picture from the figures that are there.
results:
	@tests/install_packages python3-matplotlib
	@$(PYTHON) perf/peers/report --peers $(PEERS_JSON) --scaling $(SCALING_JSON) --to $(RESULTS)

-include $(peers_obj:.o=.d) $(scaling_obj:.o=.d)
