# Options of the sanitizers in all tests: an error ends the process, and a leak is an error.
set(crossrank_test_environment)
# Timeout in seconds that only ends a hang: long enough for a machine with a load of fifty.
set(crossrank_test_timeout 1800)
if(CROSSRANK_SANITIZE)
  set(crossrank_test_timeout 3600)
endif()
if(CROSSRANK_SANITIZE MATCHES "address")
  set(crossrank_test_environment ENVIRONMENT ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1)
elseif(CROSSRANK_SANITIZE MATCHES "thread")
  set(crossrank_test_environment ENVIRONMENT TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
endif()

# Options with which all tests are compiled.
function(crossrank_set_test_options target)
  target_link_libraries(${target} PRIVATE crossrank_internal crossrank_warnings crossrank_crash_point_list GTest::gmock GTest::gtest)
  target_compile_definitions(${target} PRIVATE CROSSRANK_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
endfunction()

# One precompiled header for all tests, compiled with their options.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tests/precompiled.cpp CONTENT "")
add_library(crossrank_test_precompiled OBJECT ${PROJECT_BINARY_DIR}/tests/precompiled.cpp)
target_precompile_headers(crossrank_test_precompiled PRIVATE <nlohmann/json.hpp> <gtest/gtest.h> <gmock/gmock.h> <string> <vector>)
crossrank_set_test_options(crossrank_test_precompiled)

# crossrank_add_test_objects(NAME sources...): compiles sources once for several programs.
function(crossrank_add_test_objects name)
  add_library(${name} OBJECT ${ARGN})
  crossrank_set_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM crossrank_test_precompiled)
endfunction()

# crossrank_use_test_objects(TARGET NAMES...): links them. They bring no library along, so that programs with the static and with
# the shared library can use them.
function(crossrank_use_test_objects target)
  foreach(objects IN LISTS ARGN)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# Common settings of all test executables. The properties after PROPERTIES apply to each of its tests.
function(crossrank_add_test_executable name)
  cmake_parse_arguments(test "" "" "PROPERTIES" ${ARGN})
  add_executable(${name} ${test_UNPARSED_ARGUMENTS})
  crossrank_set_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM crossrank_test_precompiled)
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 600 PROPERTIES TIMEOUT ${crossrank_test_timeout} ${crossrank_test_environment} ${test_PROPERTIES})
endfunction()

# crossrank_add_test(NAME sources...): makes an executable of GoogleTest cases; each case is a ctest.
function(crossrank_add_test name)
  crossrank_add_test_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
endfunction()

# crossrank_add_rank_test(NAME sources...): also, for cases whose ranks are processes or threads (process_ranks.hpp and
# thread_ranks.hpp in tests/support).
function(crossrank_add_rank_test name)
  crossrank_add_test_executable(${name} ${ARGN})
  crossrank_use_test_objects(${name} crossrank_test_ranks)
endfunction()

# Makes the emulated driver known to a test, and checks at the end of each of its processes that no object is left on a GPU.
function(crossrank_use_emulated_gpus target)
  crossrank_use_test_objects(${target} gpu_leak_check)
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  target_compile_definitions(${target} PRIVATE CROSSRANK_TEST_CUDA="${CROSSRANK_EMULATED_CUDA}")
  add_dependencies(${target} emulated_cuda)
endfunction()

# crossrank_add_mpi_test(NAME x SOURCES a.cpp RANKS 1 2 4 [FILTER gtest] [OPTIONS ...] [PROGRAM target] [ENVIRONMENT A=b]): makes
# GoogleTest cases that mpirun runs, with one ctest for each number of ranks. PROGRAM names an existing target in place of
# sources. The program links the shared library, because plugins need it.
function(crossrank_add_mpi_test)
  cmake_parse_arguments(mpi "" "NAME;FILTER;PROGRAM" "SOURCES;RANKS;OPTIONS;ENVIRONMENT" ${ARGN})
  if(NOT mpi_PROGRAM)
    set(mpi_PROGRAM ${mpi_NAME})
    add_executable(${mpi_NAME} ${mpi_SOURCES})
    target_include_directories(${mpi_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${mpi_NAME} PRIVATE crossrank crossrank_mpi crossrank_warnings GTest::gmock GTest::gtest GTest::gtest_main)
  endif()
  set(arguments)
  if(mpi_FILTER)
    set(arguments --gtest_filter=${mpi_FILTER})
  endif()
  foreach(ranks IN LISTS mpi_RANKS)
    add_test(NAME ${mpi_NAME}.ranks_${ranks}
             COMMAND bash ${PROJECT_SOURCE_DIR}/tests/collectives/mpi/run_mpi.sh ${mpi_OPTIONS} ${ranks}
                     $<TARGET_FILE:${mpi_PROGRAM}> ${arguments})
    set_tests_properties(${mpi_NAME}.ranks_${ranks} PROPERTIES TIMEOUT ${crossrank_test_timeout} SKIP_RETURN_CODE 77 ENVIRONMENT "${mpi_ENVIRONMENT}"
                         RUN_SERIAL OFF PROCESSORS 2)
  endforeach()
endfunction()
