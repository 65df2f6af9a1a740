# SPDX-License-Identifier: Apache-2.0
# Planted faults: faults/NAME.so is the plugin with one small wrong change, which the suite must catch: those of faults/exact.txt by the area
# exact (tests/conformance/faults.sh), those of faults/ranks.txt, built as faults/ranks/NAME.so, by the area shard (tests/ranks.sh). The change
# is made in a copy when the faulty plugin is built, so no fault is in the engine's own lines, and one that no longer fits fails the build.
# Target zf_faults builds all; of faults/ranks.txt the others build what the short form of tests/ranks.sh looks at.
set(zf_short_faults part_off_by_one groups_norm_of_data)
find_program(ZF_PYTHON3 python3)

# zf_add_fault(a fault's name, the source that it changes, its table, "ranks" or ""): only the changed source is compiled again, the rest
# comes from the libraries of the shipped plugin.
function(zf_add_fault name source table folder)
    set(planter "${CMAKE_CURRENT_SOURCE_DIR}/faults/faults.py")
    set(tree "${PROJECT_BINARY_DIR}/faults/${folder}/${name}")
    add_custom_command(OUTPUT "${tree}/${source}" DEPENDS "${PROJECT_SOURCE_DIR}/${source}" "${table}" "${planter}"
                       COMMAND ${ZF_PYTHON3} "${planter}" "${table}" plant ${name} "${tree}"
                       COMMENT "Planting ${name}" VERBATIM)
    set(target "zf_fault_${folder}_${name}")
    add_library(${target} SHARED "${tree}/${source}")
    get_filename_component(source_dir "${PROJECT_SOURCE_DIR}/${source}" DIRECTORY)
    target_include_directories(${target} BEFORE PRIVATE "${source_dir}")
    zfplugin_settings(${target} PRIVATE) # plugin/CMakeLists.txt: compiled and linked as the shipped library
    target_compile_options(${target} PRIVATE -fno-math-errno)
    target_link_libraries(${target} PRIVATE zfplugin_objects)
    zfplugin_link(${target})
    target_link_options(${target} PRIVATE -Wl,-u,zf_plugin_negotiate) # pulls the rest out of the library
    set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME "${name}"
                                               LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/faults/${folder}")
    if(folder AND NOT name IN_LIST zf_short_faults)
        set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    set(zf_fault_targets ${zf_fault_targets} ${target} PARENT_SCOPE)
endfunction()

# zf_add_faults(a table of faults/, "ranks" or ""): all of it.
function(zf_add_faults table folder)
    set(file "${CMAKE_CURRENT_SOURCE_DIR}/faults/${table}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(STRINGS "${file}" heads REGEX "^== ")
    list(TRANSFORM heads REPLACE "^== ([^ ]+) ([^ ]+).*" "\\1 \\2")
    list(REMOVE_DUPLICATES heads) # of a fault of several changes
    foreach(head IN LISTS heads)
        string(REPLACE " " ";" head "${head}")
        zf_add_fault(${head} "${file}" "${folder}")
    endforeach()
    set(zf_fault_targets ${zf_fault_targets} PARENT_SCOPE)
endfunction()

if(TARGET zfplugin AND NOT ZF_SANITIZE)
    if(NOT ZF_PYTHON3)
        message(FATAL_ERROR "python3 is not installed (Debian package python3): planted faults cannot be built")
    endif()
    zf_add_faults(exact.txt "")
    zf_add_faults(ranks.txt ranks)
    add_custom_target(zf_faults DEPENDS ${zf_fault_targets})
endif()
