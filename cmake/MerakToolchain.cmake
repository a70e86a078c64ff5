# Language level, warnings, compiler cache and linker for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(MERAK_CCACHE ccache)
if(MERAK_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # It hits wherever the repository was cloned and however the build was begun, and
  # behind precompiled headers too where it may trust them.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${MERAK_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# A linker faster than ld, where the machine has one.
find_program(MERAK_MOLD mold)
find_program(MERAK_LLD NAMES ld.lld lld)
if(MERAK_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(MERAK_LLD)
  add_link_options(-fuse-ld=lld)
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-comment -Wno-array-bounds -Wno-stringop-overflow)
endif()
# The results must not depend on how the compiler contracts expressions.
add_compile_options(-ffp-contract=off)

# MERAK_ASSERT checks in our own code; LLVM's packages have assertions off.
option(MERAK_ASSERTIONS "Check our own invariants at run time" OFF)
if(MERAK_ASSERTIONS)
  add_compile_definitions(MERAK_ASSERTIONS=1)
  string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
  string(REPLACE "-DNDEBUG" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
endif()
option(MERAK_ASAN "Address and undefined-behaviour sanitizers" OFF)
option(MERAK_TSAN "Thread sanitizer" OFF)
# A finding ends the program; lines are all that it shows. Checks that
# AddressSanitizer repeats (a null pointer ends the program by itself) would cost
# half of the time to compile.
set(MERAK_SANITIZER "")
if(MERAK_ASAN)
  set(MERAK_SANITIZER address,undefined)
elseif(MERAK_TSAN)
  set(MERAK_SANITIZER thread)
endif()
if(MERAK_SANITIZER)
  # What -O1 costs to compile, the tests get back.
  add_compile_options(-fsanitize=${MERAK_SANITIZER} -fno-sanitize-recover=all
    -fno-omit-frame-pointer $<$<COMPILE_LANGUAGE:C,CXX>:-O1> -g1)
  if(MERAK_ASAN)
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
  add_link_options(-fsanitize=${MERAK_SANITIZER})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(CLI11 REQUIRED)
