# What the sanitizers are told wherever tests run: findings end the process, leaks are findings.
set(crossrank_test_environment)
if(CROSSRANK_SANITIZE MATCHES "address")
  set(crossrank_test_environment ENVIRONMENT ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1)
elseif(CROSSRANK_SANITIZE MATCHES "thread")
  set(crossrank_test_environment ENVIRONMENT TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
endif()

# What every test executable has in common.
function(crossrank_add_test_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE crossrank_internal crossrank_warnings crossrank_crash_point_list GTest::gmock GTest::gtest)
  # What is tested is optimised; the tests are compiled in two thirds of the time without.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_compile_definitions(${name} PRIVATE CROSSRANK_TEST_DATA="${PROJECT_SOURCE_DIR}/../shared/data")
  target_precompile_headers(${name} PRIVATE <nlohmann/json.hpp> <gtest/gtest.h> <gmock/gmock.h> <string> <vector>)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 300 ${crossrank_test_environment})
endfunction()

# crossrank_add_test(NAME sources...): one executable of GoogleTest cases, each case a ctest of its own.
function(crossrank_add_test name)
  crossrank_add_test_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
endfunction()

# crossrank_add_rank_test(NAME sources...): the same, with cases that start ranks as processes (tests/support/process_ranks.hpp).
function(crossrank_add_rank_test name)
  crossrank_add_test_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE crossrank_process_ranks)
endfunction()
