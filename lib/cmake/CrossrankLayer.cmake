# Makes one CMake target for each layer of the library. A layer can include its own folders and public headers, and those of
# the layers in USES; any other include does not compile. For that, each layer has a folder of links in the build tree as
# its only include directory.

# Layers share one precompiled header. Clang refuses one of another visibility, so it has two.
set(crossrank_precompiled <nlohmann/json.hpp> <algorithm> <functional> <map> <memory> <optional> <span> <string> <vector>)

# crossrank_link_headers(ROOT path...): fills the include directory ROOT with links to files or folders of the source tree,
# given relative to it. Public headers get the path by which they are included.
function(crossrank_link_headers root)
  file(REMOVE_RECURSE ${root})
  foreach(path IN LISTS ARGN)
    string(REGEX REPLACE "^include/" "" link ${root}/${path})
    string(REPLACE "/include/crossrank/" "/crossrank/" link ${link})
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${path} ${link} SYMBOLIC)
  endforeach()
endfunction()

# crossrank_layer(NAME [VISIBLE] [FOLDERS dir...] [HEADERS header...] [USES layer...] [SOURCES source...])
#   VISIBLE  exports its symbols to crossrank_checkpoint, which is a separate library
#   FOLDERS  folders with the layer's headers, relative to the root of the source tree (default: the current one)
#   HEADERS  public headers of the layer, relative to include/crossrank
#   USES     layers whose headers this one may include, also those that these layers use
#   SOURCES  source files, relative to the current folder; a layer may have only headers
function(crossrank_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "VISIBLE" "" "FOLDERS;HEADERS;USES;SOURCES")
  set(root ${PROJECT_BINARY_DIR}/layers/${name})
  if(NOT layer_FOLDERS AND layer_SOURCES)
    file(RELATIVE_PATH layer_FOLDERS ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  list(TRANSFORM layer_HEADERS PREPEND include/crossrank/ OUTPUT_VARIABLE headers)
  crossrank_link_headers(${root} ${layer_FOLDERS} ${headers})

  set(target crossrank_${name}_layer)
  set_property(GLOBAL APPEND PROPERTY crossrank_all_layers ${name})
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
  set(shared crossrank_precompiled_layer)
  if(layer_VISIBLE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    string(APPEND shared _visible)
  endif()
  get_property(first GLOBAL PROPERTY ${shared})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${crossrank_precompiled})
    set_property(GLOBAL PROPERTY ${shared} ${target})
  endif()
endfunction()

# crossrank_layer_objects(VARIABLE layer...): lists the objects of the layers, for the libraries.
function(crossrank_layer_objects variable)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<TARGET_OBJECTS:crossrank_\\1_layer>" OUTPUT_VARIABLE objects)
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()

# crossrank_write_layer_includes(FILE): writes for each layer the include directories with which it is compiled.
function(crossrank_write_layer_includes file)
  get_property(layers GLOBAL PROPERTY crossrank_all_layers)
  set(lines "")
  foreach(layer IN LISTS layers)
    set(target crossrank_${layer}_layer)
    get_target_property(kind ${target} TYPE)
    set(property INCLUDE_DIRECTORIES)
    if(kind STREQUAL INTERFACE_LIBRARY)
      set(property INTERFACE_INCLUDE_DIRECTORIES)
    endif()
    string(APPEND lines "${layer}:$<TARGET_PROPERTY:${target},${property}>\n")
  endforeach()
  file(GENERATE OUTPUT ${file} CONTENT "${lines}")
endfunction()
