# SPDX-License-Identifier: Apache-2.0
# The guard of the interface. Included by the Makefile.
#
#   make check-abi       what libcache.h and libcache.so are, against tests/abi/reference.txt
#   make abi-reference   stores what is there as the reference; refuses what would break programs
#   make abi-first       keeps the client, library and server that later ones are tested with, once, at the first release

PACKAGES_ABI := python3-pycparser binutils xz-utils
CHECK_ABI = $(PYTHON) tests/abi/check_abi.py --header capi/libcache.h --library $(LIB)/libcache.so.1 \
  --reference tests/abi/reference.txt

.PHONY: check-abi abi-reference abi-first
check-abi: $(LIB)/libcache.so
	@tests/install_packages $(PACKAGES_ABI)
	@$(CHECK_ABI)
	@! command -v abidiff >/dev/null || tests/abi/compare_binaries $(LIB)/libcache.so.1
abi-reference: $(LIB)/libcache.so
	@tests/install_packages $(PACKAGES_ABI)
	@$(CHECK_ABI) --write
abi-first: $(LIB)/libcache.so $(BIN)/cache_server
	@tests/install_packages $(PACKAGES_ABI)
	@tests/abi/keep_first $(BUILD) $(VERSION)

# A library and a server of major version 9: the files that know the version, compiled with a header that says 9.
OTHER_MAJOR := $(BUILD)/other_major
other_major_objects = $(foreach source,$(1),$(if $(filter $(source),$(other_major_src)),$(OTHER_MAJOR),$(OBJ))/$(basename $(source)).o)
other_major_src := $(shell grep -l CACHE_VERSION_ $(client_src) $(server_src) $(capi_src))

tests: $(if $(SAN),,$(OTHER_MAJOR)/libcache.so.1 $(OTHER_MAJOR)/cache_server)
$(OTHER_MAJOR)/include/capi/libcache.h: capi/libcache.h
	@mkdir -p $(@D)
	sed 's/^#define CACHE_VERSION_MAJOR .*/#define CACHE_VERSION_MAJOR 9/' $< >$@
$(OTHER_MAJOR)/%.o: %.cc $(OTHER_MAJOR)/include/capi/libcache.h
	@mkdir -p $(@D)
	$(CXX) -I$(OTHER_MAJOR)/include $(CPPFLAGS) $(CXXFLAGS) -c $< -o $@
$(OTHER_MAJOR)/libcache.so.1: $(call other_major_objects,$(client_src) $(capi_src))
	$(CXX) $(LDFLAGS) -shared -Wl,-soname,libcache.so.1 -Wl,--version-script=capi/libcache.map -o $@ $^ $(CLIENT_LIBS)
$(OTHER_MAJOR)/cache_server: $(call other_major_objects,$(server_src))
	$(CXX) $(LDFLAGS) -o $@ $^ -lspdlog -lfmt

-include $(patsubst %.cc,$(OTHER_MAJOR)/%.d,$(other_major_src))
