# Installs headers, libraries, and the files of find_package(crossrank) and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(crossrank_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/crossrank)
install(TARGETS crossrank crossrank_checkpoint EXPORT crossrank_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(crossrank_absent_headers)
if(NOT CROSSRANK_HAVE_MPI)
  list(APPEND crossrank_absent_headers PATTERN mpi.hpp EXCLUDE)
endif()
install(DIRECTORY include/crossrank DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" ${crossrank_absent_headers})
install(FILES ${crossrank_generated_include}/crossrank/spi/interface.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/crossrank/spi)
install(EXPORT crossrank_targets NAMESPACE crossrank:: FILE crossrank-targets.cmake DESTINATION ${crossrank_package_dir})
# Lets the tests of the Python package use the libraries of this build folder.
export(EXPORT crossrank_targets NAMESPACE crossrank:: FILE ${PROJECT_BINARY_DIR}/crossrank-targets.cmake)

if(CROSSRANK_HAVE_MPI)
  # A separate component, so that other programs do not need MPI.
  install(TARGETS crossrank_mpi EXPORT crossrank_mpi_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT crossrank_mpi_targets NAMESPACE crossrank:: FILE crossrank-mpi-targets.cmake DESTINATION ${crossrank_package_dir})
endif()

configure_package_config_file(lib/cmake/crossrank-config.cmake.in ${PROJECT_BINARY_DIR}/crossrank-config.cmake
                              INSTALL_DESTINATION ${crossrank_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/crossrank-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/crossrank-config.cmake ${PROJECT_BINARY_DIR}/crossrank-config-version.cmake lib/cmake/crossrank-torch.cmake
        DESTINATION ${crossrank_package_dir})

# Relative to the files of pkg-config, whether the folders are inside the prefix or not.
file(RELATIVE_PATH crossrank_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(folder LIBDIR INCLUDEDIR)
  file(RELATIVE_PATH crossrank_pc_to_${folder} ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_${folder}})
endforeach()
foreach(name crossrank crossrank-checkpoint)
  configure_file(lib/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/crossrank.pc ${PROJECT_BINARY_DIR}/crossrank-checkpoint.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# Installs the documents and the examples in the folders of the source tree, so that their links work in an installed copy.
# Inside another project the folder of documents is that project's.
if(PROJECT_IS_TOP_LEVEL)
  install(FILES LICENSE README.md THIRD_PARTY_LICENSES DESTINATION ${CMAKE_INSTALL_DOCDIR})
  foreach(crossrank_document lib/codec/FORMAT.md workspace/checkpoint/RULES.md python/README.md)
    cmake_path(GET crossrank_document PARENT_PATH crossrank_folder)
    install(FILES ${crossrank_document} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${crossrank_folder})
  endforeach()
  install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.json")
  install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN run EXCLUDE PATTERN build EXCLUDE PATTERN __pycache__ EXCLUDE)
  install(FILES CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
if(CROSSRANK_BUILD_TOOLS)
  install(TARGETS crossrank_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${crossrank_man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES tools/completion/crossrank.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME crossrank)
  install(FILES tools/completion/_crossrank DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
