# SPDX-License-Identifier: Apache-2.0
# Packages, all found by pkg-config, none copied into the tree. Targets:
#   PkgConfig::INIH      configuration             PkgConfig::JANSSON  the command line
#                        (these two are all that the product itself needs)
#   PkgConfig::OPENBLAS  reference host            PkgConfig::FFI  conformance area "abi"
#   PkgConfig::JANSSON   reference host: JSON of pretrained encoders
#   PkgConfig::CHECK     tests                     Threads::Threads
# Everything missing is named at once, with the Debian packages and the command that installs them.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

set(zf_missing_text "")
set(zf_missing_packages "")
if(NOT PKG_CONFIG_FOUND)
    string(APPEND zf_missing_text "  pkg-config: Debian package pkg-config\n")
    list(APPEND zf_missing_packages pkg-config)
endif()

# zf_find_package(PREFIX MODULE PACKAGE): PkgConfig::PREFIX from pkg-config's MODULE, in Debian's PACKAGE.
macro(zf_find_package prefix module package)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL ${module})
    endif()
    if(NOT ${prefix}_FOUND)
        string(APPEND zf_missing_text "  ${module}: Debian package ${package}\n")
        list(APPEND zf_missing_packages ${package})
    endif()
endmacro()

zf_find_package(INIH inih libinih-dev)
zf_find_package(JANSSON jansson libjansson-dev)
if(ZF_TESTS OR ZF_CONFORMANCE)
    zf_find_package(OPENBLAS openblas libopenblas-dev)
    zf_find_package(FFI libffi libffi-dev)
endif()
if(ZF_TESTS)
    zf_find_package(CHECK check check)
endif()

if(zf_missing_packages)
    list(JOIN zf_missing_packages " " zf_missing_packages)
    set(zf_missing_hint "")
    if(ZF_TESTS)
        set(zf_missing_hint "\nor configure with -DZF_TESTS=OFF: libzfplugin and zf need only libinih-dev and libjansson-dev.")
    endif()
    message(FATAL_ERROR "Not found:\n${zf_missing_text}Install with\n"
                        "  sudo apt-get install ${zf_missing_packages}\n"
                        "or run conformance/deps.sh${zf_missing_hint}")
endif()
