set(conformance_suite
  conformance.cpp
  conformance_data.cpp
  conformance_disagreement.cpp
  conformance_groups.cpp
  conformance_lifetime.cpp
  conformance_messages.cpp
  conformance_reductions.cpp
  conformance_requests.cpp
  conformance_verbs.cpp)

# The protocol that backends over a network share, over packets between threads.
crossrank_add_rank_test(collectives_message_test
  ../support/thread_ranks.cpp
  ${conformance_suite}
  composite_conformance_test.cpp
  message_conformance_test.cpp)

if(CROSSRANK_HAVE_MPI AND NOT CROSSRANK_SANITIZE)
  crossrank_add_mpi_test(NAME mpi_conformance RANKS 1 2 4 8 SOURCES
    ${conformance_suite}
    ${PROJECT_SOURCE_DIR}/lib/core/small_float.cpp  # inside the shared library nobody else sees it
    mpi_conformance_test.cpp)
  crossrank_add_mpi_test(NAME composite_conformance PROGRAM mpi_conformance RANKS 2 4 OPTIONS --nodes declared
                         ENVIRONMENT CROSSRANK_TEST_BACKEND=composite)
  crossrank_add_mpi_test(NAME mpi_job SOURCES mpi_job_test.cpp RANKS 4 OPTIONS --nodes declared FILTER MpiJob.*)
  crossrank_add_mpi_test(NAME mpi_hosts PROGRAM mpi_job RANKS 4 OPTIONS --nodes real FILTER MpiJob.*)
  crossrank_add_mpi_test(NAME mpi_owner PROGRAM mpi_job RANKS 1 3 FILTER MpiOwner.*)
  foreach(where declared real)
    crossrank_add_mpi_test(NAME mpi_death_${where} PROGRAM mpi_job RANKS 4 OPTIONS --nodes ${where} --survivors
                           FILTER MpiDeath.of_a_rank_on_the_other_host_is_told_to_all)
    crossrank_add_mpi_test(NAME mpi_death_in_range_${where} PROGRAM mpi_job RANKS 4 OPTIONS --nodes ${where} --survivors
                           FILTER MpiDeath.of_a_rank_in_an_open_range_is_told_to_all)
  endforeach()
endif()
