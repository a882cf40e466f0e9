# One CMake target for each layer of the library. A layer sees its own folders and public headers, and those of the layers
# that it names in USES; any other include does not compile. For that, each layer gets a folder of links in the build tree,
# which is its only include directory.

# The precompiled header of the first layer serves all others.
set(crossrank_precompiled <nlohmann/json.hpp> <algorithm> <functional> <map> <memory> <optional> <span> <string> <vector>)

# crossrank_layer(NAME [VISIBLE] [FOLDERS dir...] [HEADERS header...] [USES layer...] [SOURCES source...])
#   VISIBLE  its symbols can be used by crossrank_checkpoint, which is a library beside the one that holds the layer
#   FOLDERS  folders of the source tree, relative to its root, whose headers belong to the layer (default: the current one)
#   HEADERS  public headers of the layer, relative to include/crossrank
#   USES     the layers below, whose headers this one may include; what they use is seen as well
#   SOURCES  relative to the current folder; a layer without sources is made of headers only
function(crossrank_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "VISIBLE" "" "FOLDERS;HEADERS;USES;SOURCES")
  set(root ${PROJECT_BINARY_DIR}/layers/${name})
  file(REMOVE_RECURSE ${root})
  if(NOT layer_FOLDERS AND layer_SOURCES)
    file(RELATIVE_PATH layer_FOLDERS ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  list(TRANSFORM layer_HEADERS PREPEND include/crossrank/ OUTPUT_VARIABLE headers)
  foreach(path IN LISTS layer_FOLDERS headers)
    string(REGEX REPLACE "^include/" "" link ${root}/${path})
    string(REPLACE "/include/crossrank/" "/crossrank/" link ${link})
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${path} ${link} SYMBOLIC)
  endforeach()

  set(target crossrank_${name}_layer)
  list(TRANSFORM layer_USES REPLACE "(.+)" "crossrank_\\1_layer" OUTPUT_VARIABLE uses)
  if(NOT layer_SOURCES)
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${root})
    target_link_libraries(${target} INTERFACE ${uses})
    return()
  endif()
  add_library(${target} OBJECT ${layer_SOURCES})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(layer_VISIBLE)
    set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET default)
  endif()
  target_include_directories(${target} PUBLIC ${root})
  target_link_libraries(${target} PUBLIC ${uses} nlohmann_json::nlohmann_json Threads::Threads
                                  PRIVATE Boost::headers Boost::filesystem crossrank_warnings crossrank_xxhash)
  if(TARGET crossrank_core_layer AND NOT name STREQUAL core)
    target_precompile_headers(${target} REUSE_FROM crossrank_core_layer)
  else()
    target_precompile_headers(${target} PRIVATE ${crossrank_precompiled})
  endif()
endfunction()

# crossrank_layer_objects(VARIABLE layer...): the objects of the layers, for the libraries that are made of them.
function(crossrank_layer_objects variable)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<TARGET_OBJECTS:crossrank_\\1_layer>" OUTPUT_VARIABLE objects)
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
