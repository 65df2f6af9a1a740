# SPDX-License-Identifier: Apache-2.0
# Debian packages, one per component of zf_install.cmake: `sh cmake/debian.sh` configures as Debian installs and runs cpack.
# zf_debian.cmake adds to each what its policy asks for.
if(CMAKE_VERSION VERSION_LESS 3.19)
    return() # has no scripts between installing and packing
endif()
set(ZF_MAINTAINER "libzfplugin authors <authors@libzfplugin.invalid>" CACHE STRING "Maintainer of the Debian packages: Name <address>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zfplugin)
set(CPACK_PACKAGE_CONTACT "${ZF_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake") # the default: any other would stand above each package's own
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/zf_debian.cmake")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL runtime dev tools)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SOURCE zfplugin)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(zf_same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")

# zf_package(COMPONENT NAME SECTION DEPENDS LINE...): DEPENDS is what dpkg-shlibdeps cannot see; the first line is the synopsis.
macro(zf_package component name section depends)
    string(TOUPPER ${component} zf_upper)
    set(CPACK_DEBIAN_${zf_upper}_PACKAGE_NAME ${name})
    set(CPACK_DEBIAN_${zf_upper}_PACKAGE_SECTION ${section})
    set(CPACK_DEBIAN_${zf_upper}_PACKAGE_DEPENDS "${depends}")
    string(JOIN "\n" CPACK_COMPONENT_${zf_upper}_DESCRIPTION ${ARGN})
endmacro()

# libzfplugin.so.0 is opened by its name and never linked, so what opens it has to name its package.
zf_package(runtime libzfplugin0 libs ""
           "optimizer offload with selective updates, plugin library"
           "libzfplugin.so.0 keeps the optimizer state of a training run in host memory"
           "and updates it beside the run: the few channels that carry most of the"
           "gradient at every step, the others in windows. A trainer opens it through a"
           "versioned C ABI.")
zf_package(dev libzfplugin-dev libdevel "libzfplugin0 ${zf_same_version}"
           "optimizer offload with selective updates, for trainers in C"
           "Headers, the static loader with which a C trainer opens libzfplugin.so.0,"
           "files for CMake and pkg-config, documents and examples.")
zf_package(tools zfplugin-tools utils "libzfplugin0 ${zf_same_version}, python3"
           "optimizer offload with selective updates, command line"
           "The program zf: what this machine gives the plugin, what a model will need,"
           "which settings fit, where a step went; checkpoints inspected and verified.")
if(TARGET zf_mpi)
    list(APPEND CPACK_COMPONENTS_ALL mpi)
    zf_package(mpi libzf-mpi libs "libzfplugin-dev ${zf_same_version}"
               "optimizer offload with selective updates, ranks over MPI"
               "libzf_mpi.so carries the collectives of libzfplugin over MPI, for trainers"
               "in C that run as several ranks.")
endif()
if(TARGET zf-conform)
    list(APPEND CPACK_COMPONENTS_ALL conformance)
    zf_package(conformance zfplugin-conformance utils "libzfplugin0 ${zf_same_version}"
               "optimizer offload with selective updates, conformance suite"
               "zf-conform judges a libzfplugin.so.0 before it is deployed: its ABI, its"
               "arithmetic to the bit, its bytes, its accuracy. zf-host is the reference"
               "trainer that it runs.")
    # of the areas glue and ablation; the others need no Python
    set(CPACK_DEBIAN_CONFORMANCE_PACKAGE_RECOMMENDS "python3, python3-scipy, python3-matplotlib")
    set(CPACK_DEBIAN_CONFORMANCE_PACKAGE_SUGGESTS "gcc, libzfplugin-dev, libzf-mpi")
endif()

# The dynamic linker's cache is renewed where a library comes or goes.
file(WRITE "${PROJECT_BINARY_DIR}/debian/triggers" "activate-noawait ldconfig\n")
file(WRITE "${PROJECT_BINARY_DIR}/debian/shlibs" "libzfplugin 0 libzfplugin0 (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/debian/triggers" "${PROJECT_BINARY_DIR}/debian/shlibs")
set(CPACK_DEBIAN_MPI_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/debian/triggers")

# Of the commit that is packed: the date of the changelog is the same whenever it is built.
execute_process(COMMAND git -C "${PROJECT_SOURCE_DIR}" log -1 --format=%cD OUTPUT_VARIABLE CPACK_ZF_DATE OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET)
set(CPACK_ZF_SOURCE_DIR "${PROJECT_SOURCE_DIR}")
include(CPack)
