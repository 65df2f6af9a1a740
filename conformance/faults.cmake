# Planted faults: faults/NAME.so is the plugin built apart from the same sources with one -DZFI_FAULT_NAME. The suite must
# fail on every one (tests/conformance/faults.sh). No fault code is in the shipped library. Target zf_faults builds all.
set(zf_fault_names
    RESET_MOMENTS_AT_RESELECT LEAVING_KEEPS_STALE ENTERING_MISSES_REPLAY HOLE_COUNTED_IN_N SLOTS_SWAPPED
    LAST_LR_FOR_ALL SKIPPED_REPLAYED WRONG_BIAS_CORRECTION DRAIN_FLUSHES PUBLISH_LOST_ON_DRAIN DEFERRED_DROPPED
    STALE_BY_TEN DEVICE_MOMENTS_UNROUNDED FLUSH_PREDICTS KEPT_SET_COUNTS_ON PUBLISH_LOST_ON_SAVE
    SUMS_NOT_RESTARTED)

# Only sources that hold a fault are compiled again; the rest comes from the library of the shipped one.
if(TARGET zfplugin AND NOT ZF_SANITIZE)
    get_target_property(zf_fault_sources zfplugin_objects SOURCES)
    get_target_property(zf_fault_dir zfplugin_objects SOURCE_DIR)
    set(zf_fault_paths "")
    foreach(source IN LISTS zf_fault_sources)
        get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${zf_fault_dir}")
        file(STRINGS "${source}" zf_fault_lines REGEX "ZFI_FAULT_")
        if(zf_fault_lines)
            list(APPEND zf_fault_paths "${source}")
        endif()
    endforeach()
    list(APPEND zf_fault_paths "${zf_fault_dir}/entry.c") # the symbol that pulls in the rest
    foreach(name IN LISTS zf_fault_names)
        string(TOLOWER "${name}" file)
        set(target "zf_fault_${file}")
        add_library(${target} SHARED ${zf_fault_paths})
        zfplugin_settings(${target} PRIVATE) # plugin/CMakeLists.txt: compiled and linked as the shipped library
        target_link_libraries(${target} PRIVATE zfplugin_objects)
        zfplugin_link(${target})
        target_compile_definitions(${target} PRIVATE ZFI_FAULT_${name})
        set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME "${file}"
                                                   LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/faults")
        list(APPEND zf_fault_targets ${target})
    endforeach()
    add_custom_target(zf_faults DEPENDS ${zf_fault_targets})
endif()
