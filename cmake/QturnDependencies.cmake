# Finds what we build on; every failure names the Debian package that mends it.

macro(qturn_need name package)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "Quarterturn needs ${name}. On Debian and Ubuntu: apt-get install ${package}")
  endif()
endmacro()

find_package(Threads REQUIRED)
qturn_need(fmt libfmt-dev)
qturn_need(SQLite3 libsqlite3-dev 3.37)
qturn_need(nlohmann_json nlohmann-json3-dev)

# libsodium gives SHA-256 for keys and code, and Ed25519 for signed snapshots. It is linked statically
# where the archive is there, so that the library adds no run-time dependency of its own.
find_path(SODIUM_INCLUDE_DIR sodium.h)
find_library(SODIUM_LIBRARY NAMES libsodium.a sodium)
if(NOT SODIUM_INCLUDE_DIR OR NOT SODIUM_LIBRARY)
  message(FATAL_ERROR "Quarterturn needs libsodium. On Debian and Ubuntu: apt-get install libsodium-dev")
endif()
add_library(qturn_sodium INTERFACE)
target_include_directories(qturn_sodium SYSTEM INTERFACE "${SODIUM_INCLUDE_DIR}")
target_link_libraries(qturn_sodium INTERFACE "${SODIUM_LIBRARY}")

if(QTURN_TOOLS)
  qturn_need(CLI11 libcli11-dev)
  qturn_need(ZLIB zlib1g-dev)
endif()
if(QTURN_TESTS)
  qturn_need(doctest doctest-dev)
  include("${doctest_DIR}/doctest.cmake")
endif()

find_program(CCACHE ccache)
if(CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CCACHE}")
endif()
