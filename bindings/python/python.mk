# SPDX-License-Identifier: Apache-2.0
# The Python package, built in the tree: PYTHONPATH=$(BUILD)/python makes `import libcache` work. Included by the
# Makefile. What `make test` needs for the tests without torch is in PACKAGES_PYTHON; torch is large and comes with
# deps-torch only.
PACKAGES_PYTHON := python3-cffi python3-numpy python3-dev python3-setuptools python3-pytest python3-hypothesis
PACKAGES_TORCH := $(PACKAGES_PYTHON) python3-pil python3-torch python3-torchvision

PYTHON_BUILD := $(BUILD)/python
PYTHON_STAMP := $(PYTHON_BUILD)/.built

.PHONY: python deps-python deps-torch
python: $(PYTHON_STAMP)
deps-python:
	@tests/install_packages $(PACKAGES_PYTHON)
deps-torch:
	@tests/install_packages $(PACKAGES_TORCH)

python_sources := $(wildcard $(addprefix bindings/python/,*.py pyproject.toml libcache/*.py libcache/*.pyi \
  libcache/torch/*.py src/*.c src/*.h))

# setuptools copies and compiles what is newer; the log is shown when it fails.
$(PYTHON_STAMP): $(python_sources) capi/libcache.h $(LIB)/libcache.so | deps-python
	@mkdir -p $(PYTHON_BUILD)
	@cd bindings/python && { LIBCACHE_BUILD=$(abspath $(BUILD)) LIBCACHE_RPATH='$$ORIGIN/../../lib' \
	  LIBCACHE_BUILD_TEMP=$(abspath $(OBJ))/python $(PYTHON) setup.py -q \
	  egg_info --egg-base $(abspath $(PYTHON_BUILD)) \
	  build --build-base $(abspath $(OBJ))/python --build-lib $(abspath $(PYTHON_BUILD)) \
	  >$(abspath $(PYTHON_BUILD))/build.log 2>&1 || { cat $(abspath $(PYTHON_BUILD))/build.log >&2; exit 1; }; }
	@touch $@
