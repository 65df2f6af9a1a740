# SPDX-License-Identifier: Apache-2.0
# Language, warnings and sanitizers of every target. Nothing here names an instruction set: one library runs on every CPU
# of its architecture, and folders that need more flags (kernels/) say so themselves.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON) # static libraries end up in shared ones, ours and those of hosts
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

get_property(zf_is_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT zf_is_multi_config AND NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, RelWithDebInfo (-O2), Release (-O3)" FORCE)
endif()

# Bits are part of the contract: no contraction of a*b+c behind the source's back.
add_compile_options(-ffp-contract=off)

add_compile_options(-Wall -Wextra -Wshadow -Wvla -Wconversion
                    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
if(ZF_WERROR)
    add_compile_options(-Werror)
endif()

# Sanitized builds keep assert(): configure them with CMAKE_BUILD_TYPE=Debug. -O1 keeps them usable; folders may raise it. Reports need
# lines, no variables (-g1).
#
# zf_costly_checks: half of the time of compiling and running; the address sanitizer sees most of what they would. clang's are in use, but
# not for kernels (`.ci/row fuzz`).
set(zf_costly_checks -fno-sanitize=alignment,null,object-size,pointer-overflow)
if(ZF_SANITIZE STREQUAL "address")
    set(zf_sanitizers -fsanitize=address,undefined)
    if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
        list(APPEND zf_sanitizers ${zf_costly_checks})
    endif()
elseif(ZF_SANITIZE STREQUAL "thread")
    set(zf_sanitizers -fsanitize=thread)
elseif(NOT ZF_SANITIZE STREQUAL "")
    message(FATAL_ERROR "ZF_SANITIZE is \"${ZF_SANITIZE}\": address, thread or empty")
endif()

# Fuzzers (tests/fuzz/): everything with libFuzzer's instrumentation and both address and undefined-behaviour sanitizers.
if(ZF_FUZZ)
    include(CheckCSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer,address,undefined)
    check_c_source_compiles("int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);
                             int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n ? 0 : 0; }"
                            ZF_HAVE_LIBFUZZER)
    unset(CMAKE_REQUIRED_FLAGS)
    if(NOT ZF_HAVE_LIBFUZZER)
        message(FATAL_ERROR "ZF_FUZZ needs clang with libFuzzer: -DCMAKE_C_COMPILER=clang and Debian's package libclang-rt-14-dev")
    endif()
    set(ZF_SANITIZE address)
    set(zf_sanitizers -fsanitize=fuzzer-no-link,address,undefined)
endif()
if(ZF_SANITIZE)
    add_compile_options(-O1 -g1 -fno-omit-frame-pointer ${zf_sanitizers} -fno-sanitize-recover=all)
    add_link_options(${zf_sanitizers})
    if(ZF_SANITIZE STREQUAL "address" AND CMAKE_C_COMPILER_ID MATCHES "Clang") # gcc defines it
        add_compile_definitions(__SANITIZE_ADDRESS__=1)
    endif()
endif()
