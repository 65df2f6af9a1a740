# SPDX-License-Identifier: Apache-2.0
# Installation: the plugin, its headers, the loader, the programs, documents and examples, a pkg-config file and the CMake
# package "zfplugin":
#   find_package(zfplugin)
#   target_link_libraries(trainer PRIVATE zfplugin::loader)   # zf_loader.h, zf/*.h, libzf_loader.a
# zfplugin::zfplugin is the module itself: for $<TARGET_FILE:zfplugin::zfplugin>, to be opened and not linked.
# Documents and examples lie under CMAKE_INSTALL_DOCDIR as they lie in the source, so that the links between them hold.
#
#   component    what                                                    Debian package (cmake/debian)
#   runtime      libzfplugin.so.0                                        libzfplugin0
#   dev          headers, loader, CMake and pkg-config files, documents  libzfplugin-dev
#   mpi          libzf_mpi.so and its header, where MPI was found        libzf-mpi
#   tools        zf, its manual page and completion                      zfplugin-tools
#   conformance  zf-conform and zf-host, where they are built, Python    zfplugin-conformance
#                of the areas glue and ablation

include(CMakePackageConfigHelpers)

set(zf_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zfplugin)

install(DIRECTORY abi/include/zf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")
install(DIRECTORY abi/layout abi/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/abi COMPONENT dev) # offsets of every struct
install(TARGETS zf_abi EXPORT zfplugin)
set_target_properties(zf_abi PROPERTIES EXPORT_NAME abi)
install(TARGETS zfplugin EXPORT zfplugin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
install(FILES bindings/c/zf_loader.h bindings/c/zf_trainer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(TARGETS zf_loader EXPORT zfplugin ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
set_target_properties(zf_loader PROPERTIES EXPORT_NAME loader)

# An export of its own: find_package() would fail where the files of a target are not installed.
if(TARGET zf_mpi)
    install(FILES bindings/mpi/zf_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT mpi)
    install(TARGETS zf_mpi EXPORT zfplugin_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mpi)
    set_target_properties(zf_mpi PROPERTIES EXPORT_NAME mpi)
    install(EXPORT zfplugin_mpi NAMESPACE zfplugin:: FILE zfpluginMpiTargets.cmake DESTINATION ${zf_package_dir} COMPONENT mpi)
endif()

# The programs. zf opens the plugin of the tree that it lies in: outside of the linker's own folders it needs the way there.
install(TARGETS zf DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    file(RELATIVE_PATH zf_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
    set_target_properties(zf PROPERTIES INSTALL_RPATH "$ORIGIN/${zf_bin_to_lib}")
endif()

# zf-conform looks for zf-host and Python's packages (python/) beside itself (/proc/self/exe, so a link
# may lead to it).
if(TARGET zf-conform)
    set(zf_conform_dir ${CMAKE_INSTALL_LIBEXECDIR}/zfplugin)
    install(TARGETS zf-conform zf-host RUNTIME DESTINATION ${zf_conform_dir} COMPONENT conformance)
    foreach(from_to IN ITEMS "bindings/python/zfplugin:zfplugin" "conformance/accuracy:zfplugin/accuracy")
        string(REGEX MATCH "(.*):(.*)" _ ${from_to})
        install(DIRECTORY ${CMAKE_MATCH_1}/ DESTINATION ${zf_conform_dir}/python/${CMAKE_MATCH_2} COMPONENT conformance
                FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
    endforeach()
    install(FILES abi/layout/v0.16.txt DESTINATION ${zf_conform_dir}/python/zfplugin RENAME abi.txt COMPONENT conformance)
    file(RELATIVE_PATH zf_bin_to_conform "/${CMAKE_INSTALL_BINDIR}" "/${zf_conform_dir}")
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/links")
    foreach(name zf-conform zf-host)
        file(CREATE_LINK "${zf_bin_to_conform}/${name}" "${PROJECT_BINARY_DIR}/links/${name}" SYMBOLIC)
        install(FILES "${PROJECT_BINARY_DIR}/links/${name}" DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT conformance)
    endforeach()
endif()

# Manual pages: of the hooks from the headers (abi/man.py), of the programs from their --help, which runs on this machine only.
find_program(ZF_PYTHON3 python3)
if(ZF_PYTHON3 AND NOT ZF_SANITIZE)
    execute_process(COMMAND git -C "${PROJECT_SOURCE_DIR}" log -1 --format=%cs OUTPUT_VARIABLE zf_page_date OUTPUT_STRIP_TRAILING_WHITESPACE
                    ERROR_QUIET)
    if(NOT zf_page_date)
        string(TIMESTAMP zf_page_date "%Y-%m-%d" UTC)
    endif()
    set(zf_man ${ZF_PYTHON3} "${PROJECT_SOURCE_DIR}/abi/man.py")
    set(zf_page_version "${PROJECT_VERSION} ${zf_page_date}")
    file(GLOB_RECURSE zf_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/abi/include/zf/*.h")
    add_custom_command(OUTPUT man/man3/zf_step.3 DEPENDS ${zf_headers} "${PROJECT_SOURCE_DIR}/abi/man.py" VERBATIM
                       COMMAND ${zf_man} hooks "${zf_page_version}" man/man3 "${PROJECT_SOURCE_DIR}/abi/include")
    add_custom_target(zf_hook_pages ALL DEPENDS man/man3/zf_step.3)
    install(DIRECTORY "${PROJECT_BINARY_DIR}/man/man3" DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT dev)
    if(TARGET zf-conform AND NOT CMAKE_CROSSCOMPILING)
        add_custom_command(OUTPUT man/man1/zf-conform.1 man/man1/zf-host.1 DEPENDS zf-conform zf-host "${PROJECT_SOURCE_DIR}/abi/man.py" VERBATIM
            COMMAND ${zf_man} program "${zf_page_version}" man/man1 $<TARGET_FILE:zf-conform>
                    "the conformance suite of libzfplugin" abi exact shard glue ablation
            COMMAND ${zf_man} program "${zf_page_version}" man/man1 $<TARGET_FILE:zf-host>
                    "the reference trainer of libzfplugin's conformance suite")
        add_custom_target(zf_conform_pages ALL DEPENDS man/man1/zf-conform.1)
        install(DIRECTORY "${PROJECT_BINARY_DIR}/man/man1" DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT conformance OPTIONAL)
    endif()
endif()

install(EXPORT zfplugin NAMESPACE zfplugin:: FILE zfpluginTargets.cmake DESTINATION ${zf_package_dir} COMPONENT dev)
configure_package_config_file(cmake/zfpluginConfig.cmake.in "${PROJECT_BINARY_DIR}/zfpluginConfig.cmake"
                              INSTALL_DESTINATION ${zf_package_dir})
# Major 0: a minor may break, so only the same minor is compatible.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/zfpluginConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/zfpluginConfig.cmake" "${PROJECT_BINARY_DIR}/zfpluginConfigVersion.cmake"
        DESTINATION ${zf_package_dir} COMPONENT dev)

# Paths relative to the file itself, so that an unpacked or moved tree works. (An absolute libdir stays absolute.)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(zf_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
    file(RELATIVE_PATH zf_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" zf_pc_up "${zf_pc_up}")
    set(zf_pc_prefix "\${pcfiledir}/${zf_pc_up}")
endif()
configure_file(cmake/zfplugin.pc.in "${PROJECT_BINARY_DIR}/zfplugin.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/zfplugin.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# Documents keep their places, so that links from one to another work.
foreach(zf_folder IN ITEMS . abi plugin kernels docs bindings/c bindings/mpi bindings/python)
    file(GLOB zf_pages "${PROJECT_SOURCE_DIR}/${zf_folder}/*.md")
    install(FILES ${zf_pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${zf_folder} COMPONENT dev)
endforeach()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(DIRECTORY bindings/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/bindings COMPONENT dev
        FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.cpp" PATTERN "*.ini")

