# Lets a program's sources use the precompiled torch header, which is compiled with -fPIC: programs
# must be too (CMake would give them -fPIE, and the compiler would then refuse the header).
function(autopart_torch_program target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM autopart_torch_pch)
endfunction()

# autopart_library(NAME module PUBLIC_HEADERS ... SOURCES ... DEPS ... [TORCH])
# A module: target autopart_<name>, alias autopart::<name>. DEPS are the include rule of
# docs/architecture.md; tests/testing/check_includes.py holds the sources to it.
# TORCH: uses the precompiled torch header.
function(autopart_library)
  cmake_parse_arguments(A "TORCH" "NAME" "PUBLIC_HEADERS;SOURCES;DEPS" ${ARGN})
  add_library(autopart_${A_NAME} STATIC ${A_SOURCES})
  add_library(autopart::${A_NAME} ALIAS autopart_${A_NAME})
  set_target_properties(autopart_${A_NAME} PROPERTIES EXPORT_NAME ${A_NAME})
  target_sources(autopart_${A_NAME} PUBLIC
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${A_PUBLIC_HEADERS})
  target_include_directories(autopart_${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_features(autopart_${A_NAME} PUBLIC cxx_std_20)
  target_link_libraries(autopart_${A_NAME} PUBLIC ${A_DEPS} PRIVATE autopart_warnings)
  if(A_TORCH)
    target_precompile_headers(autopart_${A_NAME} REUSE_FROM autopart_torch_pch)
  endif()
  install(TARGETS autopart_${A_NAME} EXPORT autopartTargets
    ARCHIVE DESTINATION lib COMPONENT cpp FILE_SET HEADERS DESTINATION include/autopart COMPONENT cpp)
endfunction()

# autopart_test(NAME name SOURCES ... DEPS ... [LABELS ...] [TORCH] [TIMEOUT s])
# A GoogleTest program, one ctest entry per program. Every test has a time limit.
function(autopart_test)
  cmake_parse_arguments(A "TORCH" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(AUTOPART_SANITIZE)
    math(EXPR A_TIMEOUT "5 * ${A_TIMEOUT}")  # what instrumented code takes longer
  endif()
  add_executable(${A_NAME} ${A_SOURCES})
  target_include_directories(${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} autopart_warnings GTest::gmock GTest::gtest_main)
  target_compile_definitions(${A_NAME} PRIVATE
    AUTOPART_SOURCE_DIR="${PROJECT_SOURCE_DIR}" AUTOPART_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(A_TORCH)
    autopart_torch_program(${A_NAME})
    list(APPEND A_LABELS torch)
  else()
    list(APPEND A_LABELS fast)
  endif()
  add_test(NAME ${A_NAME} COMMAND ${A_NAME})
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT})
endfunction()
