# Tests of label peers: DeepSpeed itself loads what shardproof wrote. One a suite of peers/main.py.
foreach(suite plain pipeline tensor story breaks controls tools limits)
  add_test(NAME peers_${suite}
           COMMAND ${SHARDPROOF_PYTHON} ${CMAKE_SOURCE_DIR}/peers/launch.py ${suite}
                   --shardproof $<TARGET_FILE:shardproof> --folder ${CMAKE_BINARY_DIR}/peers/${suite})
  # A suite runs up to 16 ranks: two at a time would only wait for each other.
  set_tests_properties(peers_${suite} PROPERTIES LABELS peers SKIP_RETURN_CODE 77 TIMEOUT 900
                       RUN_SERIAL ON FIXTURES_SETUP peers_suites)
endforeach()

add_test(NAME peers_table
         COMMAND ${SHARDPROOF_PYTHON} ${CMAKE_SOURCE_DIR}/peers/table.py ${CMAKE_BINARY_DIR}/peers)
set_tests_properties(peers_table PROPERTIES LABELS peers SKIP_RETURN_CODE 77
                     FIXTURES_CLEANUP peers_suites)
