# SPDX-License-Identifier: Apache-2.0
# Installation: the plugin, its headers, the loader, documents and examples, a pkg-config file and the CMake package
# "zfplugin":
#   find_package(zfplugin)
#   target_link_libraries(trainer PRIVATE zfplugin::loader)   # zf_loader.h, zf/*.h, libzf_loader.a
# zfplugin::zfplugin is the module itself: for $<TARGET_FILE:zfplugin::zfplugin>, to be opened and not linked.
# Documents and examples lie under CMAKE_INSTALL_DOCDIR as they lie in the source, so that the links between them hold.

include(CMakePackageConfigHelpers)

install(DIRECTORY abi/include/zf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS zf_abi EXPORT zfplugin)
set_target_properties(zf_abi PROPERTIES EXPORT_NAME abi)
if(TARGET zfplugin)
    install(TARGETS zfplugin EXPORT zfplugin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET zf_loader)
    install(FILES bindings/c/zf_loader.h bindings/c/zf_trainer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(TARGETS zf_loader EXPORT zfplugin ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(zf_loader PROPERTIES EXPORT_NAME loader)
endif()

if(TARGET zf_mpi)
    install(FILES bindings/mpi/zf_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
    install(TARGETS zf_mpi EXPORT zfplugin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    set_target_properties(zf_mpi PROPERTIES EXPORT_NAME mpi)
endif()

# Documents keep their places, so that links from one to another work.
foreach(zf_folder IN ITEMS . abi plugin bindings/c bindings/mpi)
    file(GLOB zf_pages "${PROJECT_SOURCE_DIR}/${zf_folder}/*.md")
    install(FILES ${zf_pages} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${zf_folder})
endforeach()
install(DIRECTORY bindings/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/bindings
        FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.ini")

set(zf_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zfplugin)
install(EXPORT zfplugin NAMESPACE zfplugin:: FILE zfpluginTargets.cmake DESTINATION ${zf_package_dir})
configure_package_config_file(cmake/zfpluginConfig.cmake.in "${PROJECT_BINARY_DIR}/zfpluginConfig.cmake"
                              INSTALL_DESTINATION ${zf_package_dir})
# Major 0: a minor may break, so only the same minor is compatible.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/zfpluginConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/zfpluginConfig.cmake" "${PROJECT_BINARY_DIR}/zfpluginConfigVersion.cmake"
        DESTINATION ${zf_package_dir})

# Paths relative to the file itself, so that an unpacked or moved tree works. (An absolute libdir stays absolute.)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(zf_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
    file(RELATIVE_PATH zf_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" zf_pc_up "${zf_pc_up}")
    set(zf_pc_prefix "\${pcfiledir}/${zf_pc_up}")
endif()
configure_file(cmake/zfplugin.pc.in "${PROJECT_BINARY_DIR}/zfplugin.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/zfplugin.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES README.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES abi/README.md abi/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/abi)
install(FILES plugin/README.md plugin/SCHEDULE.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/plugin)
install(FILES kernels/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/kernels)
install(DIRECTORY bindings/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/bindings
        FILES_MATCHING PATTERN "*.c" PATTERN "*.h" PATTERN "*.ini")
