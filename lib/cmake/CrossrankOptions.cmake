option(CROSSRANK_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CROSSRANK_BUILD_BENCH "Build the benchmarks" OFF)
option(CROSSRANK_WERROR "Treat warnings as errors" OFF)

add_library(crossrank_warnings INTERFACE)
target_compile_options(crossrank_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
                       $<$<BOOL:${CROSSRANK_WERROR}>:-Werror>)
