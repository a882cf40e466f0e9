# The number of the backend interface. Plugins carry it in their build stamp, and the library refuses a plugin with another
# one. It is computed from the contents of the headers in crossrank/spi and of all public headers that these include, so it
# changes with each of them.

# crossrank_interface_files(VARIABLE INCLUDE_DIR): paths of these headers, relative to INCLUDE_DIR, sorted.
function(crossrank_interface_files variable include_dir)
  file(GLOB pending CONFIGURE_DEPENDS RELATIVE ${include_dir} ${include_dir}/crossrank/spi/*.hpp)
  set(files)
  while(pending)
    list(POP_FRONT pending file)
    if(file IN_LIST files OR NOT EXISTS ${include_dir}/${file})  # the generated header is not there
      continue()
    endif()
    list(APPEND files ${file})
    file(STRINGS ${include_dir}/${file} includes REGEX "^#include <crossrank/[^>]+>")
    list(TRANSFORM includes REPLACE "^#include <([^>]+)>.*" "\\1")
    list(APPEND pending ${includes})
  endwhile()
  list(SORT files)
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# crossrank_interface_number(VARIABLE INCLUDE_DIR): 16 hexadecimal digits.
function(crossrank_interface_number variable include_dir)
  crossrank_interface_files(files ${include_dir})
  set(digests)
  foreach(file IN LISTS files)
    file(SHA256 ${include_dir}/${file} digest)
    string(APPEND digests "${file} ${digest}\n")
  endforeach()
  string(SHA256 number "${digests}")
  string(SUBSTRING ${number} 0 16 number)
  set(${variable} ${number} PARENT_SCOPE)
endfunction()

# crossrank_write_interface_number(INCLUDE_DIR OUTPUT): writes the header that plugin.hpp includes. The build writes it anew
# after each change of a header that counts.
function(crossrank_write_interface_number include_dir output)
  crossrank_interface_number(number ${include_dir})
  crossrank_interface_files(files ${include_dir})
  list(TRANSFORM files PREPEND ${include_dir}/)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT "#pragma once
/// Identifies the contents of the headers of the backend interface. Written by the build.
#define CROSSRANK_SPI_INTERFACE \"@number@\"
")
endfunction()
