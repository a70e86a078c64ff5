# MLIR from the distribution's packages: only libMLIR and libLLVM are linked.
list(APPEND CMAKE_PREFIX_PATH /usr/lib/llvm-22)
find_package(MLIR 22.1 REQUIRED CONFIG)
list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)
find_program(LLVM_EXTERNAL_LIT NAMES lit HINTS ${LLVM_TOOLS_BINARY_DIR} NO_DEFAULT_PATH)

# merak_tablegen(TARGET TD gen flag file ...): runs mlir-tblgen on TD for each
# (flag, file) pair and makes TARGET depend on the results.
function(merak_tablegen target td)
  set(outs)
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs flag out)
    string(REPLACE " " ";" flags "${flag}")
    add_custom_command(
      OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${out}
      COMMAND ${LLVM_TOOLS_BINARY_DIR}/mlir-tblgen ${flags}
        -I ${PROJECT_SOURCE_DIR} -I ${MLIR_INCLUDE_DIRS}
        ${CMAKE_CURRENT_SOURCE_DIR}/${td} -o ${CMAKE_CURRENT_BINARY_DIR}/${out}
        --write-if-changed -d ${CMAKE_CURRENT_BINARY_DIR}/${out}.d
      DEPFILE ${CMAKE_CURRENT_BINARY_DIR}/${out}.d
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${td} VERBATIM)
    list(APPEND outs ${CMAKE_CURRENT_BINARY_DIR}/${out})
  endwhile()
  add_custom_target(${target} DEPENDS ${outs})
endfunction()
