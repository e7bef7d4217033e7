# SPDX-License-Identifier: Apache-2.0
# What makes a product of a build. Included by the Makefile.
#
#   make install [PREFIX=/usr/local] [DESTDIR=]   make uninstall, with the same words
#   make deb      Debian packages in $(BUILD)/deb, with dpkg's own tools
#   make wheel    a Python wheel that needs no installed libcache, in $(BUILD)/wheel

PACKAGES_DEB := dpkg-dev
PACKAGES_WHEEL := $(PACKAGES_PYTHON) python3-wheel
# What tests/packaging and tests/abi need besides; a test whose tool is missing is skipped with a word.
PACKAGES_PACKAGING := $(PACKAGES_DEB) pkg-config cmake python3-wheel python3-venv python3-pycparser binutils xz-utils lintian

.PHONY: deps-packaging
deps-packaging:
	@tests/install_packages $(PACKAGES_PACKAGING)

version_of = $(shell sed -n 's/^\#define CACHE_VERSION_$(1) //p' capi/libcache.h)
MAJOR := $(call version_of,MAJOR)
VERSION := $(MAJOR).$(call version_of,MINOR).$(call version_of,PATCH)

DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/libcache
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
UNITDIR ?= $(PREFIX)/lib/systemd/user
CMAKEDIR = $(LIBDIR)/cmake/libcache
# The programs find the library that they came with, also where no ldconfig knows of it; empty: where the system looks.
INSTALL_RPATH ?= $$ORIGIN/$(shell realpath -m --relative-to=$(BINDIR) $(LIBDIR))

INSTALL_HEADERS := capi/libcache.h $(wildcard bindings/cpp/libcache.hpp)
INSTALL_PAGES := $(notdir $(wildcard man/*.[1-8]))
INSTALL_DOCS := LICENSE CHANGELOG.md $(wildcard capi/examples/*.c bindings/cpp/examples/*.cc)
INSTALL_COMPLETED := cache_admin cache_perf cache_server dataset-cache

# ---- install -----------------------------------------------------------------------------------------------------------
under_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
# $(call fill,TEMPLATE,TARGET)
fill = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' \
  -e 's|@LIBDIR@|$(call under_prefix,$(LIBDIR))|g' -e 's|@INCLUDEDIR@|$(call under_prefix,$(INCLUDEDIR))|g' \
  -e 's|@INCLUDE_FROM_LIB@|$(shell realpath -m --relative-to=$(LIBDIR) $(INCLUDEDIR))|g' packaging/$(1) >'$(DESTDIR)$(2)' \
  && chmod 644 '$(DESTDIR)$(2)'
# $(call link_installed,PROGRAM,OBJECTS): once more, to look for the library where it is installed
link_installed = $(CXX) $(LDFLAGS) -o '$(DESTDIR)$(BINDIR)/$(1)' $(2) -L$(LIB) -lcache \
  $(if $(INSTALL_RPATH),-Wl$(comma)-rpath$(comma)'$(INSTALL_RPATH)') && chmod 755 '$(DESTDIR)$(BINDIR)/$(1)'
comma := ,

.PHONY: install uninstall
install: all
	@install -d $(addprefix '$(DESTDIR)',$(BINDIR) $(LIBDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR) $(CMAKEDIR) $(COMPLETIONDIR) \
	  $(UNITDIR) $(DOCDIR))
	@install -m 755 $(BIN)/cache_server '$(DESTDIR)$(BINDIR)/cache_server'
	@$(call link_installed,cache_admin,$(call objects,$(admin_src)))
	@$(call link_installed,cache_perf,$(cache_perf_obj) $(perf_support_obj))
	@ln -sf cache_admin '$(DESTDIR)$(BINDIR)/dataset-cache'
	@install -m 644 $(LIB)/libcache.so.$(MAJOR) '$(DESTDIR)$(LIBDIR)/libcache.so.$(VERSION)'
	@ln -sf libcache.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libcache.so.$(MAJOR)'
	@ln -sf libcache.so.$(MAJOR) '$(DESTDIR)$(LIBDIR)/libcache.so'
	@install -m 644 $(INSTALL_HEADERS) '$(DESTDIR)$(INCLUDEDIR)'
	@$(call fill,libcache.pc.in,$(LIBDIR)/pkgconfig/libcache.pc)
	@$(call fill,libcache-config.cmake.in,$(CMAKEDIR)/libcache-config.cmake)
	@$(call fill,libcache-config-version.cmake.in,$(CMAKEDIR)/libcache-config-version.cmake)
	@$(call fill,cache_server.service.in,$(UNITDIR)/cache_server.service)
	@set -e; for page in $(INSTALL_PAGES); do \
	  install -D -m 644 man/$$page '$(DESTDIR)$(MANDIR)'/man$${page##*.}/$$page; done
	@install -m 644 packaging/completion.bash '$(DESTDIR)$(COMPLETIONDIR)/cache_admin'
	@set -e; for name in $(filter-out cache_admin,$(INSTALL_COMPLETED)); do \
	  ln -sf cache_admin '$(DESTDIR)$(COMPLETIONDIR)'/$$name; done
	@install -m 644 $(INSTALL_DOCS) '$(DESTDIR)$(DOCDIR)'
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || ldconfig

uninstall:
	@rm -f $(addprefix '$(DESTDIR)$(BINDIR)'/,cache_server cache_admin cache_perf dataset-cache)
	@rm -f $(addprefix '$(DESTDIR)$(LIBDIR)'/libcache.so,.$(VERSION) .$(MAJOR)) '$(DESTDIR)$(LIBDIR)/libcache.so'
	@rm -f $(addprefix '$(DESTDIR)$(INCLUDEDIR)'/,$(notdir $(INSTALL_HEADERS)))
	@rm -f '$(DESTDIR)$(LIBDIR)/pkgconfig/libcache.pc' '$(DESTDIR)$(UNITDIR)/cache_server.service'
	@rm -f $(addprefix '$(DESTDIR)$(COMPLETIONDIR)'/,$(INSTALL_COMPLETED))
	@set -e; for page in $(INSTALL_PAGES); do rm -f '$(DESTDIR)$(MANDIR)'/man$${page##*.}/$$page; done
	@rm -rf '$(DESTDIR)$(CMAKEDIR)' '$(DESTDIR)$(DOCDIR)'
	@[ -n '$(DESTDIR)' ] || [ "$$(id -u)" -ne 0 ] || ldconfig

# ---- Debian packages ---------------------------------------------------------------------------------------------------
.PHONY: deb
DEB := $(abspath $(BUILD))/deb
deb: all
	@tests/install_packages $(PACKAGES_DEB)
	@rm -rf $(DEB)
	@multiarch=$$(dpkg-architecture -qDEB_HOST_MULTIARCH) && $(MAKE) --no-print-directory -s -o all install DESTDIR=$(DEB)/stage \
	  PREFIX=/usr LIBDIR=/usr/lib/$$multiarch INSTALL_RPATH= && packaging/make_deb $(DEB)/stage $(DEB) $(VERSION) $$multiarch
	@rm -rf $(DEB)/stage

# ---- Python wheel ------------------------------------------------------------------------------------------------------
# The programs and the library once more, with what they need beyond glibc and libgcc_s inside, so that the wheel needs
# nothing else; older_glibc.o lets them run on a glibc older than this machine's (README.md here).
.PHONY: wheel
WHEEL := $(abspath $(BUILD))/wheel
# libpthread by its file's name: the functions that older_glibc.o binds were in there
WHEEL_OLDER := $(WHEEL)/stage/older_glibc.o -Wl,--no-as-needed -l:libpthread.so.0 -Wl,--as-needed
WHEEL_LDFLAGS := $(LDFLAGS) -static-libstdc++ -s $(WHEEL_OLDER)
WHEEL_PROGRAM = $(CXX) $(WHEEL_LDFLAGS) $(WHEEL)/stage/older_glibc_start.o -o $(WHEEL)/stage/bin/$(1)
WHEEL_RPATH := -Wl,-rpath,'$$ORIGIN/../lib'
wheel: all
	@tests/install_packages $(PACKAGES_WHEEL)
	@rm -rf $(WHEEL)
	@mkdir -p $(WHEEL)/stage/bin $(WHEEL)/stage/lib
	@set -e; for name in older_glibc older_glibc_start; do \
	  $(CC) $(CPPFLAGS) $(CFLAGS) -fvisibility=hidden -c packaging/$$name.c -o $(WHEEL)/stage/$$name.o; done
	@$(CXX) $(WHEEL_LDFLAGS) -shared -Wl,-soname,libcache.so.$(MAJOR) -Wl,-Bsymbolic -Wl,-z,defs \
	  -Wl,--version-script=capi/libcache.map -o $(WHEEL)/stage/lib/libcache.so.$(MAJOR) $(call objects,$(client_src) $(capi_src)) \
	  $(CLIENT_LIBS) -Wl,-rpath,'$$ORIGIN'
	@ln -s libcache.so.$(MAJOR) $(WHEEL)/stage/lib/libcache.so
	@$(CXX) $(CPPFLAGS) -DFMT_HEADER_ONLY $(CXXFLAGS) -c core/common/log.cc -o $(WHEEL)/stage/log.o
	@$(call WHEEL_PROGRAM,cache_server) $(WHEEL)/stage/log.o $(filter-out %/core/common/log.o,$(call objects,$(server_src)))
	@$(call WHEEL_PROGRAM,cache_admin) $(call objects,$(admin_src)) -L$(WHEEL)/stage/lib -lcache $(WHEEL_RPATH)
	@$(call WHEEL_PROGRAM,cache_perf) $(cache_perf_obj) $(perf_support_obj) -L$(WHEEL)/stage/lib -lcache $(WHEEL_RPATH)
	@LDFLAGS='$(WHEEL_OLDER)' $(PYTHON) packaging/make_wheel.py $(WHEEL)/stage $(WHEEL)
	@rm -rf $(WHEEL)/stage
