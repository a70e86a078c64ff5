# MLIR's headers are most of what a file with passes takes to compile: they are read
# once for all. OFF: each file by itself, so that one that forgets an include does not
# compile.
option(MERAK_PRECOMPILE "Read the headers of MLIR and of the dialects once" ON)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cpp CONTENT "")
# Unoptimized code takes longest to parse what it includes: builds for sanitizers read
# the headers of all libraries once. With optimization that brings nothing.
if(MERAK_SANITIZER)
  add_library(MerakPrecompiled STATIC ${CMAKE_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(MerakPrecompiled PUBLIC fmt::fmt
    nlohmann_json::nlohmann_json protobuf::libprotobuf)
  target_precompile_headers(MerakPrecompiled PRIVATE
    <algorithm> <array> <atomic> <chrono> <cstring> <filesystem> <fstream>
    <functional> <map> <memory> <mutex> <optional> <set> <sstream> <string>
    <thread> <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>
    <google/protobuf/message.h> <google/protobuf/map_field.h>)
endif()
function(merak_precompile name)
  if(MERAK_SANITIZER)
    target_precompile_headers(${name} REUSE_FROM MerakPrecompiled)
  endif()
endfunction()

# merak_library(NAME [SOURCES ...] [DEPS ...]): a static library of this folder.
# Without SOURCES it takes the folder's *.cpp (subfolders have their own target).
function(merak_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC
    ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  merak_precompile(${name})
endfunction()

# merak_mlir_library(NAME ...): the same for code that includes LLVM or MLIR:
# no exceptions, MLIR's warnings off, linked to the two shared libraries.
function(merak_mlir_library name)
  merak_library(${name} ${ARGN})
  merak_use_mlir(${name})
endfunction()
function(merak_use_mlir name)
  target_include_directories(${name} SYSTEM PUBLIC ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
  target_link_libraries(${name} PUBLIC MLIR LLVM)
  merak_mlir_options(${name})
  if(TARGET MerakPrecompiledDialects)
    target_precompile_headers(${name} REUSE_FROM MerakPrecompiledDialects)
    get_target_property(type ${name} TYPE)
    if(type STREQUAL "EXECUTABLE")
      merak_compile_like_library(${name})
    endif()
  else()
    set_target_properties(${name} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
# Precompiled headers were read as those of a library.
function(merak_compile_like_library name)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()
function(merak_mlir_options name)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions>)
  if(TARGET MerakPrecompiledDialects AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # What the compiler cache looks at names precompiled headers, not their text.
    target_compile_options(${name} PRIVATE -fpch-preprocess)
  endif()
  if(MERAK_ASAN)
    # LLVM's headers would poison what its allocators hold back; its libraries, which
    # share these allocators, are built without and would hand it out poisoned.
    target_compile_options(${name} PRIVATE -U__SANITIZE_ADDRESS__)
  endif()
endfunction()

# The dialects' headers, which are most of what a pass takes to compile, read once for
# all targets that are defined after this.
function(merak_precompile_dialects)
  if(MERAK_PRECOMPILE)
    add_library(MerakPrecompiledDialects STATIC ${CMAKE_BINARY_DIR}/precompiled.cpp)
    target_link_libraries(MerakPrecompiledDialects
      PRIVATE MerakTrain MerakDist MerakPipe MerakPlanIR)
    merak_mlir_options(MerakPrecompiledDialects)
    target_precompile_headers(MerakPrecompiledDialects PRIVATE
      <map> <memory> <optional> <set> <string> <vector>
      <mlir/Dialect/Func/IR/FuncOps.h> <mlir/IR/BuiltinOps.h>
      <mlir/IR/PatternMatch.h> <mlir/Pass/PassManager.h>
      <dialects/Train/TrainDialect.h> <dialects/Dist/DistDialect.h>
      <dialects/Pipe/PipeDialect.h> <dialects/Plan/PlanDialect.h>)
  endif()
endfunction()

# merak_tool(NAME [SOURCES ...] [DEPS ...]): an executable in bin/.
function(merak_tool name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  merak_precompile(${name})
  if(MERAK_SANITIZER)
    merak_compile_like_library(${name})
  endif()
endfunction()

# merak_unittest(NAME [SOURCES ...] [DEPS ...]): a gtest binary run by ctest. Its own
# files are half of a build; without the last optimizations they take a third less.
function(merak_unittest name)
  merak_tool(${name} ${ARGN})
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  find_package(GTest REQUIRED)
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

# merak_all_devices(TARGET [WITHOUT ...]): links every backend and communicator
# that is built, each announced by a definition MERAK_HAS_....
function(merak_all_devices name)
  cmake_parse_arguments(ARG "" "" "WITHOUT" ${ARGN})
  target_link_libraries(${name} PRIVATE MerakCpuBackend)
  foreach(part CUDA:MerakCudaBackend NCCL:MerakNccl MPI:MerakMpi)
    string(REPLACE ":" ";" part ${part})
    list(GET part 0 what)
    list(GET part 1 library)
    if(TARGET ${library} AND NOT what IN_LIST ARG_WITHOUT)
      target_link_libraries(${name} PRIVATE ${library})
      target_compile_definitions(${name} PRIVATE MERAK_HAS_${what}=1)
    endif()
  endforeach()
endfunction()
