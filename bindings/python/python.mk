# SPDX-License-Identifier: Apache-2.0
# The Python package, built in the tree: PYTHONPATH=$(BUILD)/python makes `import libcache` work. Included by the
# Makefile. What `make test` needs for the tests without torch is in PACKAGES_PYTHON; torch is large and comes with
# deps-torch only.
PACKAGES_PYTHON := python3-cffi python3-numpy python3-dev python3-setuptools python3-pytest python3-hypothesis \
  python3-pil python3-protobuf python3-crc32c
PACKAGES_TORCH := $(PACKAGES_PYTHON) python3-torch python3-torchvision

PYTHON_BUILD := $(BUILD)/python
PYTHON_STAMP := $(PYTHON_BUILD)/.built

.PHONY: python deps-python deps-torch
python: $(PYTHON_STAMP)
deps-python:
	@tests/install_packages $(PACKAGES_PYTHON)
deps-torch:
	@tests/install_packages $(PACKAGES_TORCH)

python_sources := $(wildcard $(addprefix bindings/python/,*.py pyproject.toml libcache/*.py libcache/*.pyi \
  libcache/*/*.py libcache/*/*/*.py src/*.c src/*.h))

# setuptools copies and compiles what is newer; the log is shown when it fails.
$(PYTHON_STAMP): $(python_sources) capi/libcache.h capi/libcache.map $(LIB)/libcache.so | deps-python
	@mkdir -p $(PYTHON_BUILD)
	@cd bindings/python && { LIBCACHE_BUILD=$(abspath $(BUILD)) LIBCACHE_RPATH='$$ORIGIN/../../lib' \
	  LIBCACHE_BUILD_TEMP=$(abspath $(OBJ))/python $(PYTHON) setup.py -q \
	  egg_info --egg-base $(abspath $(PYTHON_BUILD)) \
	  build --build-base $(abspath $(OBJ))/python --build-lib $(abspath $(PYTHON_BUILD)) \
	  >$(abspath $(PYTHON_BUILD))/build.log 2>&1 || { cat $(abspath $(PYTHON_BUILD))/build.log >&2; exit 1; }; }
	@touch $@

# P1 to P5, on a quiet machine: some 12 minutes; prints Markdown.
.PHONY: bench-python
run_python = PYTHONPATH=$(abspath $(PYTHON_BUILD)) $(BIN)/cache_admin --run -- $(PYTHON) bindings/python/perf
bench-python: deps deps-torch
	@$(MAKE) --no-print-directory -s all python
	@$(run_python)/rows.py
	@$(run_python)/loading.py

# With MindSpore itself, which is 1 GB and wants a NumPy of its own: in a virtual environment that is made once per user.
.PHONY: test-mindspore
MINDSPORE_VENV ?= $(HOME)/.cache/libcache/mindspore
MINDSPORE_BUILD := $(abspath $(BUILD))/python-mindspore
mindspore_list := bindings/python/tests/requirements-mindspore.txt

$(MINDSPORE_VENV)/.installed: $(mindspore_list)
	@tests/install_packages python3-venv python3-dev
	@$(PYTHON) -m venv $(MINDSPORE_VENV)
	@$(MINDSPORE_VENV)/bin/pip install -q -r $(mindspore_list)
	@touch $@

test-mindspore: all $(MINDSPORE_VENV)/.installed
	@mkdir -p $(MINDSPORE_BUILD)
	@cd bindings/python && { LIBCACHE_BUILD=$(abspath $(BUILD)) LIBCACHE_RPATH='$$ORIGIN/../../lib' \
	  LIBCACHE_BUILD_TEMP=$(MINDSPORE_BUILD)-obj $(MINDSPORE_VENV)/bin/python setup.py -q \
	  egg_info --egg-base $(MINDSPORE_BUILD) build --build-base $(MINDSPORE_BUILD)-obj --build-lib $(MINDSPORE_BUILD) \
	  >$(MINDSPORE_BUILD)/build.log 2>&1 || { cat $(MINDSPORE_BUILD)/build.log >&2; exit 1; }; }
	@LIBCACHE_PYTHON_INSTALLED=1 PYTHONPATH=$(MINDSPORE_BUILD) LIBCACHE_BUILD=$(abspath $(BUILD)) \
	  $(MINDSPORE_VENV)/bin/python -m pytest -q -p no:cacheprovider bindings/python/tests/test_mindspore.py
