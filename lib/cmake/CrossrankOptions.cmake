option(CROSSRANK_BUILD_TOOLS "Build the crossrank command" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_TESTS "Build the tests (and the command, which they run)" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_BENCH "Build the benchmarks" OFF)
if(CROSSRANK_BUILD_TESTS)
  set(CROSSRANK_BUILD_TOOLS ON)
endif()
option(CROSSRANK_WERROR "Treat warnings as errors" OFF)
set(CROSSRANK_SANITIZE "" CACHE STRING "Sanitizers for everything that is built: address,undefined or thread")

# AUTO looks and goes on without, ON stops when it is missing, OFF does not look.
foreach(feature MPI CUDA NCCL TORCH)
  set(CROSSRANK_WITH_${feature} AUTO CACHE STRING "Look for ${feature}: AUTO, ON or OFF")
  set_property(CACHE CROSSRANK_WITH_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT CROSSRANK_WITH_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "CROSSRANK_WITH_${feature} is \"${CROSSRANK_WITH_${feature}}\": it takes AUTO, ON or OFF")
  endif()
endforeach()

add_library(crossrank_warnings INTERFACE)
target_compile_options(crossrank_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
                       $<$<BOOL:${CROSSRANK_WERROR}>:-Werror>)
# GCC 12, optimising, takes `"text" + std::to_string(n)` for an overlapping or endless copy (its bug 105651): four warnings
# from one cause. Clang and the debug build still look.
target_compile_options(crossrank_warnings INTERFACE
                       "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-array-bounds>")

if(CROSSRANK_SANITIZE)
  # For all targets, so that no object without instrumentation hides a finding.
  add_compile_options(-fsanitize=${CROSSRANK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${CROSSRANK_SANITIZE})
endif()
