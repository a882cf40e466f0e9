# The protocol that network backends share, over packets between threads.
crossrank_add_rank_test(collectives_message_test
  composite/composite_exchange_test.cpp
  composite/composite_failure_test.cpp
  composite/composite_memory_test.cpp
  composite/composite_split_test.cpp
  conformance/composite_conformance_test.cpp
  conformance/message_conformance_test.cpp
  conformance/operation_table.cpp
  conformance/operation_table_test.cpp
  message/failure_detector_test.cpp
  message/mailboxes_test.cpp
  message/message_progress_test.cpp
  message/node_progress_test.cpp
  message/open_world_test.cpp
  message/payload_flow_test.cpp
  message/rounds_test.cpp)
crossrank_use_test_objects(collectives_message_test conformance_suite)
set_source_files_properties(conformance/operation_table.cpp PROPERTIES COMPILE_DEFINITIONS CROSSRANK_BACKENDS_DOCUMENT="${PROJECT_SOURCE_DIR}/docs/BACKENDS.md")

# The operations that are built on collectives, run again with the ranks on two hosts. Tests of a mesh that depends on the
# ranks of a node, and tests that name their backends, are left out.
set(of_one_node MeshCollective.puts_tensor_parallelism_fastest MeshCollective.gives_partitions_the_local_ranks_of_their_node
                *GroupOn*)
list(JOIN of_one_node ":" of_one_node)
foreach(program collectives_objects_test collectives_group_test)
  gtest_discover_tests(${program} NO_PRETTY_VALUES TEST_PREFIX on_two_hosts. TEST_FILTER "-*processes*:${of_one_node}" DISCOVERY_TIMEOUT 600
                       PROPERTIES TIMEOUT ${crossrank_test_timeout} ${crossrank_test_environment}
                       ENVIRONMENT_MODIFICATION CROSSRANK_TEST_RANKS=set:hosts)
endforeach()

if(CROSSRANK_HAVE_MPI AND NOT CROSSRANK_SANITIZE)
  crossrank_add_mpi_test(NAME mpi_conformance RANKS 1 2 4 8 SOURCES
    ${PROJECT_SOURCE_DIR}/lib/tensor/small_float.cpp  # the shared library does not export it
    mpi/mpi_conformance_test.cpp
    conformance/operation_table.cpp)
  crossrank_use_test_objects(mpi_conformance conformance_suite group_suite)
  crossrank_add_mpi_test(NAME composite_conformance PROGRAM mpi_conformance RANKS 2 4 8 OPTIONS --nodes declared
                         ENVIRONMENT CROSSRANK_TEST_BACKEND=composite)
  crossrank_add_mpi_test(NAME composite_hosts_conformance PROGRAM mpi_conformance RANKS 4 OPTIONS --nodes real
                         ENVIRONMENT CROSSRANK_TEST_BACKEND=composite)
  # Each rank has an emulated GPU of its own.
  crossrank_add_mpi_test(NAME mpi_device RANKS 3 ENVIRONMENT CROSSRANK_TEST_BACKEND=mpi CROSSRANK_TEST_DEVICE_BACKEND=staged SOURCES
    ${PROJECT_SOURCE_DIR}/lib/tensor/small_float.cpp
    device/device_cases.cpp
    device/gpu_tensors.cpp
    mpi/mpi_device_test.cpp)
  crossrank_use_test_objects(mpi_device conformance_suite group_suite)
  target_compile_definitions(mpi_device PRIVATE CROSSRANK_TEST_CUDA="$<TARGET_FILE:emulated_cuda>"
                                                CROSSRANK_TEST_NCCL="$<TARGET_FILE:emulated_nccl>")
  add_dependencies(mpi_device emulated_cuda emulated_nccl)
  crossrank_add_mpi_test(NAME mpi_device_nccl PROGRAM mpi_device RANKS 3
                         ENVIRONMENT CROSSRANK_TEST_BACKEND=mpi CROSSRANK_TEST_DEVICE_BACKEND=nccl)
  foreach(device_backend staged nccl)
    crossrank_add_mpi_test(NAME composite_device_${device_backend} PROGRAM mpi_device RANKS 4 OPTIONS --nodes declared
                           ENVIRONMENT CROSSRANK_TEST_BACKEND=composite CROSSRANK_TEST_DEVICE_BACKEND=${device_backend})
    crossrank_add_mpi_test(NAME composite_hosts_device_${device_backend} PROGRAM mpi_device RANKS 4 OPTIONS --nodes real
                           ENVIRONMENT CROSSRANK_TEST_BACKEND=composite CROSSRANK_TEST_DEVICE_BACKEND=${device_backend})
  endforeach()
  crossrank_add_mpi_test(NAME mpi_job RANKS 4 OPTIONS --nodes declared FILTER MpiJob.* SOURCES
    ${PROJECT_SOURCE_DIR}/lib/tensor/small_float.cpp
    stress/long_tensors.cpp
    mpi/mpi_connect_test.cpp
    mpi/mpi_death_test.cpp
    mpi/mpi_job_test.cpp
    mpi/mpi_long_tensors_test.cpp
    mpi/mpi_reconnect_test.cpp
    mpi/mpi_start_test.cpp)
  crossrank_add_mpi_test(NAME mpi_hosts PROGRAM mpi_job RANKS 4 OPTIONS --nodes real FILTER MpiJob.*)
  crossrank_add_mpi_test(NAME mpi_owner PROGRAM mpi_job RANKS 1 3 FILTER MpiOwner.*)
  crossrank_add_mpi_test(NAME mpi_reconnect PROGRAM mpi_job RANKS 1 3 FILTER MpiReconnect.*)
  crossrank_add_mpi_test(NAME mpi_same_bits PROGRAM mpi_job RANKS 2 4 FILTER MpiConnect.gives_the_same_bits_on_every_backend)
  crossrank_add_mpi_test(NAME mpi_same_bits_hosts PROGRAM mpi_job RANKS 2 4 OPTIONS --nodes declared
                         FILTER MpiConnect.gives_the_same_bits_on_every_backend)
  crossrank_add_mpi_test(NAME mpi_long_tensors PROGRAM mpi_job RANKS 2 FILTER MpiLongTensors.* OPTIONS --spin yes)
  set_tests_properties(mpi_long_tensors.ranks_2 PROPERTIES RESOURCE_LOCK long_tensors)

  # The program names no backend, whichever launcher started the ranks.
  foreach(launcher slurm torchrun pmix)
    crossrank_add_mpi_test(NAME mpi_connect_hosts_${launcher} PROGRAM mpi_job RANKS 4 OPTIONS --nodes real --as ${launcher}
                           FILTER MpiConnect.picks* ENVIRONMENT CROSSRANK_TEST_EXPECTED=composite)
  endforeach()
  crossrank_add_mpi_test(NAME mpi_connect_hosts PROGRAM mpi_job RANKS 4 OPTIONS --nodes real FILTER MpiConnect.picks*
                         ENVIRONMENT CROSSRANK_TEST_EXPECTED=composite)
  crossrank_add_mpi_test(NAME mpi_connect PROGRAM mpi_job RANKS 4 FILTER MpiConnect.picks*
                         ENVIRONMENT CROSSRANK_TEST_EXPECTED=shm)
  # Ranks of one host that declare two hosts, and ranks that all declare the same one, which need no network.
  crossrank_add_mpi_test(NAME mpi_connect_declared PROGRAM mpi_job RANKS 4 OPTIONS --nodes declared FILTER MpiConnect.picks*
                         ENVIRONMENT CROSSRANK_TEST_EXPECTED=composite)
  crossrank_add_mpi_test(NAME mpi_connect_declared_one PROGRAM mpi_job RANKS 4 FILTER MpiConnect.picks*
                         ENVIRONMENT CROSSRANK_TEST_EXPECTED=shm CROSSRANK_HOST_ID=all)
  # Only PMIx announces several ranks. They must not become several jobs of one rank.
  crossrank_add_mpi_test(NAME mpi_best_collective_pmix PROGRAM mpi_job RANKS 4 OPTIONS --as pmix FILTER MpiConnect.builds*)
  crossrank_add_mpi_test(NAME mpi_connect_slurm PROGRAM mpi_job RANKS 4 OPTIONS --as slurm FILTER MpiConnect.picks*
                         ENVIRONMENT CROSSRANK_TEST_EXPECTED=shm)
  add_test(NAME mpi_connect_without_mpirun COMMAND mpi_job --gtest_filter=MpiConnect.refuses_a_job_that_no_backend_can_serve)
  set_tests_properties(mpi_connect_without_mpirun PROPERTIES TIMEOUT ${crossrank_test_timeout} ENVIRONMENT
    "RANK=1;WORLD_SIZE=4;LOCAL_RANK=1;LOCAL_WORLD_SIZE=2;MASTER_ADDR=127.0.0.1;MASTER_PORT=29533")
  # A rank with number 1 in PMIx that is the only rank of its job in MPI has lost the others.
  add_test(NAME mpi_connect_without_pmix COMMAND mpi_job --gtest_filter=MpiConnect.refuses_a_job_that_no_backend_can_serve)
  set_tests_properties(mpi_connect_without_pmix PROPERTIES TIMEOUT ${crossrank_test_timeout} ENVIRONMENT "PMIX_RANK=1;PMIX_NAMESPACE=gone")

  foreach(where init the_communicator)
    crossrank_add_mpi_test(NAME mpi_start_${where} PROGRAM mpi_job RANKS 3 OPTIONS --dead 1
                           FILTER MpiStart.ends_in_time_when_a_rank_does_not_come_to_${where})
  endforeach()
  # Without recovery, mpirun ends a job in which a rank has died.
  crossrank_add_mpi_test(NAME mpi_death_ends_the_job PROGRAM mpi_job RANKS 4 OPTIONS --ends yes
                         FILTER Work/MpiDeath.is_reported_to_all/barrier)

  foreach(backend composite mpi)
    crossrank_add_mpi_test(NAME mpi_exit_beside_a_stopped_rank_${backend} PROGRAM mpi_job RANKS 4
                           OPTIONS --nodes declared --ends yes FILTER MpiExit.does_not_wait_for_a_stopped_rank
                           ENVIRONMENT CROSSRANK_BACKEND=${backend})
  endforeach()

  # A rank can die only once per job, so each operation has its own ctest, in shared memory and between hosts.
  foreach(work barrier broadcast broadcast_from_the_dead all_reduce reduce all_gather gather scatter reduce_scatter
          all_to_all recv send object split close tensors configs poll_recv poll_all_reduce)
    crossrank_add_mpi_test(NAME mpi_death_${work} PROGRAM mpi_job RANKS 4 OPTIONS --nodes declared --dead 1
                           FILTER Work/MpiDeath.is_reported_to_all/${work})
  endforeach()
  foreach(work all_reduce recv tensors)
    crossrank_add_mpi_test(NAME mpi_death_without_node_memory_${work} PROGRAM mpi_job RANKS 3 OPTIONS --dead 1
                           FILTER Work/MpiDeath.is_reported_to_all/${work} ENVIRONMENT CROSSRANK_TEST_BACKEND=mpi)
    crossrank_add_mpi_test(NAME mpi_death_of_a_host_${work} PROGRAM mpi_job RANKS 4 OPTIONS --nodes real --dead 2
                           FILTER Work/MpiDeath.is_reported_to_all/${work})
  endforeach()
  foreach(where declared real)
    crossrank_add_mpi_test(NAME mpi_death_in_range_${where} PROGRAM mpi_job RANKS 4 OPTIONS --nodes ${where} --dead 1
                           FILTER MpiDeathInRange.is_reported_to_all)
    crossrank_add_mpi_test(NAME mpi_death_in_file_range_${where} PROGRAM mpi_job RANKS 4 OPTIONS --nodes ${where} --dead 1
                           FILTER MpiDeathInFileRange.is_reported_to_all)
    crossrank_add_mpi_test(NAME mpi_death_in_queue_${where} PROGRAM mpi_job RANKS 4 OPTIONS --nodes ${where} --dead 1
                           FILTER MpiDeathInQueue.is_reported_to_all)
  endforeach()
endif()
