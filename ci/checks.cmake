# Checks of the house itself, and tests of these checks by what they must reject. Label quick.
foreach(script tidy.py tidy_test.py layering_test.py)
  cmake_path(GET script STEM check)
  add_test(NAME ${check} COMMAND ${SHARDPROOF_PYTHON} ${CMAKE_SOURCE_DIR}/ci/${script})
endforeach()
# Over the includes, links, dependency files and symbols of this very build.
add_test(NAME layering COMMAND ${SHARDPROOF_PYTHON} ${CMAKE_SOURCE_DIR}/ci/layering.py
                               --build ${CMAKE_BINARY_DIR})
set_tests_properties(tidy tidy_test layering_test layering PROPERTIES LABELS quick)
