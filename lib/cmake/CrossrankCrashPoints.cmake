# Generates the names of all crash points in the product, for the tests that kill a rank at each of them. The target reads
# the sources on every build and rewrites the header only when the list has changed.
set(crossrank_crash_points_dir ${PROJECT_BINARY_DIR}/generated/crash_points)
add_custom_target(crossrank_crash_points
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
          -DOUTPUT=${crossrank_crash_points_dir}/crash_points.generated.hpp
          -P ${PROJECT_SOURCE_DIR}/lib/cmake/list_crash_points.cmake
  BYPRODUCTS ${crossrank_crash_points_dir}/crash_points.generated.hpp
  COMMENT "Listing crash points"
  VERBATIM)

add_library(crossrank_crash_point_list INTERFACE)
target_include_directories(crossrank_crash_point_list INTERFACE ${crossrank_crash_points_dir})
add_dependencies(crossrank_crash_point_list crossrank_crash_points)
