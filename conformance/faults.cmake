# SPDX-License-Identifier: Apache-2.0
# Planted faults: faults/NAME.so is the plugin with one small wrong change, which the suite must catch
# (tests/conformance/faults.sh; those in faults/ranks are caught by the area shard, tests/ranks.sh). The change is conformance/faults/NAME.patch, for one source file. It is applied to a copy when
# the faulty plugin is built, so no fault is in the engine's own lines, and a patch that no longer applies fails the build:
# then make the change again in a copy of the file and write the patch anew with `diff -u`. Target zf_faults builds all.
find_program(ZF_PATCH patch)

# zf_add_fault(NAME, of conformance/faults: "exit" or "ranks/part"): only the changed source is compiled again, the rest comes from the libraries of the shipped plugin.
function(zf_add_fault name)
    set(patch "${CMAKE_CURRENT_SOURCE_DIR}/faults/${name}.patch")
    get_filename_component(base "${name}" NAME)
    get_filename_component(folder "${name}" DIRECTORY)
    file(STRINGS "${patch}" target_line REGEX "^--- a/" LIMIT_COUNT 1)
    string(REGEX REPLACE "^--- a/([^ \t]+).*" "\\1" source "${target_line}")
    set(copy "${PROJECT_BINARY_DIR}/faults/${name}/${source}")
    get_filename_component(copy_dir "${copy}" DIRECTORY)
    file(MAKE_DIRECTORY "${copy_dir}")
    add_custom_command(OUTPUT "${copy}" DEPENDS "${PROJECT_SOURCE_DIR}/${source}" "${patch}"
                       COMMAND ${ZF_PATCH} --silent --fuzz=2 --output=${copy} ${PROJECT_SOURCE_DIR}/${source} ${patch}
                       COMMENT "Planting ${name}" VERBATIM)
    string(REPLACE "/" "_" target "zf_fault_${name}")
    add_library(${target} SHARED "${copy}")
    get_filename_component(source_dir "${PROJECT_SOURCE_DIR}/${source}" DIRECTORY)
    target_include_directories(${target} BEFORE PRIVATE "${source_dir}")
    zfplugin_settings(${target} PRIVATE) # plugin/CMakeLists.txt: compiled and linked as the shipped library
    target_compile_options(${target} PRIVATE -fno-math-errno)
    target_link_libraries(${target} PRIVATE zfplugin_objects)
    zfplugin_link(${target})
    target_link_options(${target} PRIVATE -Wl,-u,zf_plugin_negotiate) # pulls the rest out of the library
    set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME "${base}"
                                               LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/faults/${folder}")
    set(zf_fault_targets ${zf_fault_targets} ${target} PARENT_SCOPE)
endfunction()

if(TARGET zfplugin AND NOT ZF_SANITIZE)
    if(NOT ZF_PATCH)
        message(FATAL_ERROR "patch is not installed (Debian package patch): planted faults cannot be built")
    endif()
    file(GLOB zf_fault_patches CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/faults"
         "${CMAKE_CURRENT_SOURCE_DIR}/faults/*.patch" "${CMAKE_CURRENT_SOURCE_DIR}/faults/ranks/*.patch")
    foreach(patch IN LISTS zf_fault_patches)
        string(REGEX REPLACE "[.]patch$" "" name "${patch}")
        zf_add_fault(${name})
    endforeach()
    add_custom_target(zf_faults DEPENDS ${zf_fault_targets})
endif()
