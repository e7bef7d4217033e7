# SPDX-License-Identifier: Apache-2.0
# The C++ binding: one header, so there is nothing to build but its tests and examples. Included by the Makefile.
#
#   make cpp    the examples, in $(BUILD)/examples

CPP_EXAMPLES := $(patsubst bindings/cpp/examples/%.cc,$(BUILD)/examples/cpp_%,$(wildcard bindings/cpp/examples/*.cc))
cpp_tests := $(TESTS)/cpp_binding $(TESTS)/cpp_no_exceptions

.PHONY: cpp
cpp: $(CPP_EXAMPLES)

# As a user builds them, who has the header installed beside libcache.h.
$(CPP_EXAMPLES): $(BUILD)/examples/cpp_%: bindings/cpp/examples/%.cc bindings/cpp/libcache.hpp capi/libcache.h $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) -std=c++20 $(OPT) $(WARN) $(SANFLAGS) -Ibindings/cpp -Icapi -o $@ $< -L$(LIB) -lcache -pthread $(RPATH_LIB)

ifneq ($(SAN),thread) # Criterion does not start under TSan
tests: $(cpp_tests) $(CPP_EXAMPLES) $(TEST_SUPPORT)/exchange_c $(TEST_SUPPORT)/exchange_cpp
endif
$(OBJ)/bindings/cpp/tests/%.o: override CPPFLAGS += -Icapi
$(TESTS)/cpp_binding: $(OBJ)/bindings/cpp/tests/binding.o $(support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache -lcriterion $(RPATH_LIB)
# A caller without exceptions and run-time types.
$(OBJ)/bindings/cpp/tests/no_exceptions.o: override CXXFLAGS += -fno-exceptions -fno-rtti
$(TESTS)/cpp_no_exceptions: $(OBJ)/bindings/cpp/tests/no_exceptions.o $(support_obj) $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$(LIB) -lcache $(RPATH_LIB)

# The C and the C++ side of tests/exchange.
$(TEST_SUPPORT)/exchange_c: tests/exchange/exchange.c capi/libcache.h $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CC) -std=c11 $(OPT) -Wall -Wextra -pedantic -Werror $(SANFLAGS) -Icapi -o $@ $< -L$(LIB) -lcache \
	  -Wl,-rpath,'$$ORIGIN/../../lib'
$(TEST_SUPPORT)/exchange_cpp: tests/exchange/exchange.cc bindings/cpp/libcache.hpp capi/libcache.h $(LIB)/libcache.so
	@mkdir -p $(@D)
	$(CXX) -std=c++20 $(OPT) $(WARN) $(SANFLAGS) -Ibindings/cpp -Icapi -o $@ $< -L$(LIB) -lcache \
	  -Wl,-rpath,'$$ORIGIN/../../lib'

-include $(patsubst %.cc,$(OBJ)/%.d,$(wildcard bindings/cpp/tests/*.cc))
