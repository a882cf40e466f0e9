# The product's objects, linked statically: tests reach what stays inside.
add_library(crossrank_internal STATIC $<TARGET_OBJECTS:crossrank_objects>)
target_include_directories(crossrank_internal PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
target_compile_definitions(crossrank_internal PUBLIC CROSSRANK_TEST_DATA="${PROJECT_SOURCE_DIR}/../shared/data")
target_link_libraries(crossrank_internal PUBLIC nlohmann_json::nlohmann_json Threads::Threads Boost::headers Boost::filesystem
                      crossrank_xxhash)

# crossrank_add_test(NAME sources...): one executable of GoogleTest cases, each case a ctest of its own.
function(crossrank_add_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE crossrank_internal crossrank_warnings GTest::gmock GTest::gtest GTest::gtest_main)
  target_precompile_headers(${name} PRIVATE <nlohmann/json.hpp> <gtest/gtest.h> <gmock/gmock.h> <string> <vector>)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 300)
endfunction()
