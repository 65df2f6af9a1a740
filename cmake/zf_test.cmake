# SPDX-License-Identifier: Apache-2.0
# zf_add_test(NAME <name> [SOURCES ...] [LIBS ...] [COMMAND ...] [ARGS ...] [LABELS ...] [ENV VAR=value ...] [TIMEOUT s]
#             [COST n])
#
# One ctest test. With SOURCES: a program <name> is built from them, linked with Check and LIBS, and run with ARGS.
# With COMMAND instead: that command is run. Rules of every test:
#   exit status 77 = skipped; the reason is the last line that the test prints
#   label "slow": more than a few seconds, not run under sanitizers; label "nosan": cannot run under sanitizers. Programs that
#   a sanitized build does not run (tests/run.sh) are not part of its target `all`;
#   label "long": a row of .ci/matrix runs it, tests/run.sh does not
#   label "serial": starts no thread, so the thread sanitizer has nothing to look at (tests/setup/structure.py holds it to that)
#   tests of a higher COST begin first, so that no long one is left alone at the end; slow ones have 100, others 0 unless given
#   ZFPLUGIN_PATH names the plugin just built (when it is part of this build), so zf_loader_open(NULL, ...) finds it
#   runs in its own folder of the build tree; writes nowhere else
function(zf_add_test)
    cmake_parse_arguments(arg "" "NAME;TIMEOUT;COST" "SOURCES;LIBS;COMMAND;ARGS;LABELS;ENV" ${ARGN})
    if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME)
        message(FATAL_ERROR "zf_add_test(${arg_NAME}): unexpected \"${arg_UNPARSED_ARGUMENTS}\"")
    endif()
    if(arg_SOURCES)
        add_executable(${arg_NAME} ${arg_SOURCES})
        target_link_libraries(${arg_NAME} PRIVATE ${arg_LIBS} zf_suite PkgConfig::CHECK Threads::Threads)
        set(arg_COMMAND $<TARGET_FILE:${arg_NAME}>)
        if(ZF_SANITIZE AND arg_LABELS MATCHES "slow|nosan" OR ZF_SANITIZE STREQUAL "thread" AND serial IN_LIST arg_LABELS)
            set_target_properties(${arg_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
        endif()
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND} ${arg_ARGS})
    set(env ${arg_ENV})
    list(APPEND env "$<$<TARGET_EXISTS:zfplugin>:ZFPLUGIN_PATH=$<TARGET_FILE:zfplugin>>")
    set_tests_properties(${arg_NAME} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT}
                                                LABELS "${arg_LABELS}" ENVIRONMENT "${env}")
    if(NOT arg_COST AND slow IN_LIST arg_LABELS)
        set(arg_COST 100)
    endif()
    if(arg_COST)
        set_tests_properties(${arg_NAME} PROPERTIES COST ${arg_COST})
    endif()
endfunction()
