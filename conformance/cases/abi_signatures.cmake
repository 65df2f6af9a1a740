# SPDX-License-Identifier: Apache-2.0
# abi_signatures.def, made from the golden layout (abi/layout/) and from abi_roles.txt: every type, struct, member, slot, constant and macro
# of the public headers, once, as macros that abi_table.c reads. Sets zf_signatures_dir, where it lies.
#
#   ZF_HEADER(file)                 ZF_CONST(NAME)  a number            ZF_STRING(NAME)  an identifier in text form
#   ZF_MACRO(NAME, (a, b))          a macro with parameters
#   ZF_TYPEDEF(T)  a scalar         ZF_OPAQUE(T)    a struct without members
#   ZF_FUNCTION(T, return type, (parameter types))  a pointer to a function
#   ZF_STRUCT(S, kind)  kind: input, output, table, record (zf_error_t), boot, value (no struct_size)
#   ZF_MEMBER(S, type, m)  ZF_ARRAY(S, type, n, m)  ZF_SLOT(S, return type, m, (parameter types), "roles")
#
# Who includes it defines those macros that it reads, which end with the file.
set(zf_layout "${PROJECT_SOURCE_DIR}/abi/layout/v0.16.txt")
set(zf_roles "${CMAKE_CURRENT_LIST_DIR}/abi_roles.txt")
set(zf_signatures_dir "${PROJECT_BINARY_DIR}/conformance/signatures")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${zf_layout}" "${zf_roles}")

# The roles of a slot; none for the tables that the host gives.
function(zf_roles_of owner slot out)
    file(STRINGS "${zf_roles}" line REGEX "^${owner}(\\.${slot})?( |$)")
    if(NOT line)
        message(FATAL_ERROR "${zf_roles}: no line for ${owner}.${slot}")
    endif()
    string(REGEX REPLACE "^[^ ]+" "" roles "${line}")
    string(STRIP "${roles}" roles)
    set(${out} "${roles}" PARENT_SCOPE)
endfunction()

file(STRINGS "${zf_layout}" zf_layout_lines REGEX "^[^#]")
set(zf_kinds HEADER CONST STRING MACRO TYPEDEF OPAQUE FUNCTION STRUCT MEMBER ARRAY SLOT)
set(zf_made "")
foreach(kind IN LISTS zf_kinds)
    string(APPEND zf_made "#ifndef ZF_${kind}\n#define ZF_${kind}(...)\n#endif\n")
endforeach()
foreach(line IN LISTS zf_layout_lines)
    if(line MATCHES "^(header|const|string|typedef|opaque) ([^ ]+)")
        string(TOUPPER "${CMAKE_MATCH_1}" kind)
        string(APPEND zf_made "ZF_${kind}(${CMAKE_MATCH_2})\n")
    elseif(line MATCHES "^macro ([A-Z_]+)(\\([a-z, ]*\\))")
        string(APPEND zf_made "ZF_MACRO(${CMAKE_MATCH_1}, ${CMAKE_MATCH_2})\n")
    elseif(line MATCHES "^function ([a-z_]+) ([^(]+) (\\(.*\\))$")
        string(APPEND zf_made "ZF_FUNCTION(${CMAKE_MATCH_1}, ${CMAKE_MATCH_2}, ${CMAKE_MATCH_3})\n")
    elseif(line MATCHES "^struct ([a-z0-9_]+) ([a-z]+) ")
        set(zf_owner "${CMAKE_MATCH_1}")
        string(APPEND zf_made "ZF_STRUCT(${zf_owner}, ${CMAKE_MATCH_2})\n")
    elseif(line MATCHES "^  [0-9]+ [0-9]+ (.+) \\(\\*([a-z0-9_]+)\\)(\\(.*\\))$")
        set(slot "${zf_owner}, ${CMAKE_MATCH_1}, ${CMAKE_MATCH_2}, ${CMAKE_MATCH_3}")
        zf_roles_of(${zf_owner} ${CMAKE_MATCH_2} roles)
        string(APPEND zf_made "ZF_SLOT(${slot}, \"${roles}\")\n")
    elseif(line MATCHES "^  [0-9]+ [0-9]+ ([a-z]+)\\[([0-9]+)\\] ([a-z0-9_]+)$")
        string(APPEND zf_made "ZF_ARRAY(${zf_owner}, ${CMAKE_MATCH_1}, ${CMAKE_MATCH_2}, ${CMAKE_MATCH_3})\n")
    elseif(line MATCHES "^  [0-9]+ [0-9]+ (.+) ([a-z0-9_]+)$")
        string(APPEND zf_made "ZF_MEMBER(${zf_owner}, ${CMAKE_MATCH_1}, ${CMAKE_MATCH_2})\n")
    elseif(NOT line MATCHES "^symbol ")
        message(FATAL_ERROR "${zf_layout}: \"${line}\" is no fact of a layout")
    endif()
endforeach()
foreach(kind IN LISTS zf_kinds)
    string(APPEND zf_made "#undef ZF_${kind}\n")
endforeach()
file(CONFIGURE OUTPUT "${zf_signatures_dir}/abi_signatures.def" CONTENT "${zf_made}" @ONLY)
