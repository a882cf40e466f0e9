option(CROSSRANK_BUILD_TOOLS "Build the crossrank command" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_TESTS "Build the tests (and the command, which they run)" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_BENCH "Build the benchmarks" OFF)
option(CROSSRANK_BUILD_PYTHON "Build the Python package's module; pip does so" OFF)
if(CROSSRANK_BUILD_TESTS OR CROSSRANK_BUILD_PYTHON)
  set(CROSSRANK_BUILD_TOOLS ON)
endif()
option(CROSSRANK_WERROR "Treat warnings as errors" OFF)
set(CROSSRANK_SANITIZE "" CACHE STRING "Sanitizers for everything that is built: address,undefined or thread")

# AUTO searches and continues without the package, ON stops if it is missing, OFF does not search.
foreach(feature MPI TORCH)
  set(CROSSRANK_WITH_${feature} AUTO CACHE STRING "Look for ${feature}: AUTO, ON or OFF")
  set_property(CACHE CROSSRANK_WITH_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT CROSSRANK_WITH_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "CROSSRANK_WITH_${feature} is \"${CROSSRANK_WITH_${feature}}\": expected AUTO, ON or OFF")
  endif()
endforeach()

add_library(crossrank_warnings INTERFACE)
target_compile_options(crossrank_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
                       $<$<BOOL:${CROSSRANK_WERROR}>:-Werror>)
# With optimization, GCC 12 warns that `"text" + std::to_string(n)` is an overlapping or unbounded copy (its bug 105651):
# four warnings with one cause. Clang and the debug build still check.
target_compile_options(crossrank_warnings INTERFACE
                       "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-array-bounds>")

if(CROSSRANK_SANITIZE)
  # For all targets, because an object without instrumentation could hide an error.
  add_compile_options(-fsanitize=${CROSSRANK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${CROSSRANK_SANITIZE})
endif()

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC collects its garbage once it has 128 MiB, so several times for a large unit. At 512 MiB a unit compiles in about 90 %
  # of the time, and the largest one needs 1.3 GiB instead of 1.2 GiB.
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()
