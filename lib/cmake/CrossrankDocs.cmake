# Documents that a build makes: the man pages of the command, and the target `docs` if doxygen is found.

# Makes the man pages from docs/man/NAME.1.in, the version and the parts that several pages share.
set(crossrank_man_source ${PROJECT_SOURCE_DIR}/docs/man)
set(crossrank_man_pages)

# crossrank_man_part(OUT NAME [PREFIX]): reads a shared part and replaces @prefix@ by PREFIX.
function(crossrank_man_part out name)
  set(prefix "${ARGN}")
  file(READ ${crossrank_man_source}/${name}.part text)
  string(CONFIGURE "${text}" text @ONLY)
  string(STRIP "${text}" text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

crossrank_man_part(INPUT_OPTIONS input_options)
crossrank_man_part(FROM_INPUT_OPTIONS input_options from\\-)
foreach(part output_options file_size_options session_options exit_codes written_json)
  string(TOUPPER ${part} variable)
  crossrank_man_part(${variable} ${part})
endforeach()
file(GLOB crossrank_man_sources CONFIGURE_DEPENDS ${crossrank_man_source}/*.in)
file(GLOB crossrank_man_parts CONFIGURE_DEPENDS ${crossrank_man_source}/*.part)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${crossrank_man_parts})
foreach(source IN LISTS crossrank_man_sources)
  cmake_path(GET source STEM LAST_ONLY page)
  configure_file(${source} ${PROJECT_BINARY_DIR}/man/${page} @ONLY)
  list(APPEND crossrank_man_pages ${PROJECT_BINARY_DIR}/man/${page})
endforeach()

# Makes the reference of the public headers, build/PRESET/docs/html/index.html. A doxygen warning fails the target.
find_program(CROSSRANK_DOXYGEN doxygen)
mark_as_advanced(CROSSRANK_DOXYGEN)
if(CROSSRANK_DOXYGEN AND PROJECT_IS_TOP_LEVEL)
  configure_file(docs/Doxyfile.in ${PROJECT_BINARY_DIR}/docs/Doxyfile @ONLY)
  add_custom_target(docs COMMAND ${CROSSRANK_DOXYGEN} ${PROJECT_BINARY_DIR}/docs/Doxyfile
                    COMMENT "Writing the reference to ${PROJECT_BINARY_DIR}/docs/html" VERBATIM)
endif()
