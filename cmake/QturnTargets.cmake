# qturn_library(name SOURCES... DEPENDS...): one folder, one object library, with our warnings.

function(qturn_warnings target)
  # -Wrestrict: false alarms inside std::string of GCC 12 at -O3 (GCC bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wconversion
                                           -Wno-sign-conversion
                                           $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(QTURN_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# For files that give their own local helpers the same names: each is compiled alone, also where a
# preset joins the files of a target (CMAKE_UNITY_BUILD).
function(qturn_compile_alone target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
endfunction()

function(qturn_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS})
  qturn_warnings(${name})
endfunction()

# qturn_test(name SOURCES... DEPENDS... [LABELS...] [TIMEOUT s]): a doctest program; ctest counts each
# TEST_CASE. A case that prints "SKIPPED: reason" is counted as skipped, never as passed.
function(qturn_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} qturn_test_main)
  qturn_warnings(${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  doctest_discover_tests(
    ${name} TEST_PREFIX "${name}: " ADD_LABELS 0
    PROPERTIES TIMEOUT ${arg_TIMEOUT} SKIP_REGULAR_EXPRESSION "SKIPPED: " LABELS "${arg_LABELS}")
endfunction()
