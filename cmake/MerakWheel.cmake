# What a Python wheel carries (pyproject.toml): the tools in bin/, and in lib/ the
# shared libraries that they need and a machine may not have, found by
# $ORIGIN/../lib. Nothing of it is found by the tools of the build folder.
set(wheelTools merak-plan)
foreach(tool merakc merak-run-local merak-run)
  if(TARGET ${tool})
    list(APPEND wheelTools ${tool})
  endif()
endforeach()
add_custom_target(wheel DEPENDS ${wheelTools})
# RPATH rather than RUNPATH: it is also searched for what libraries need. They
# come from the distribution and have none of their own, or one that leads to
# the same folder (libMLIR).
set_target_properties(${wheelTools} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
foreach(tool ${wheelTools})
  target_link_options(${tool} PRIVATE LINKER:--disable-new-dtags)
endforeach()
install(TARGETS ${wheelTools} RUNTIME DESTINATION bin COMPONENT python)

# merak-run, for ranks as processes, takes MPI from the machine: it must be that
# of the launcher. merak-run-local does without.
set(wheelClosed ${wheelTools})
if(TARGET merak-run-local)
  list(REMOVE_ITEM wheelClosed merak-run)
endif()
list(TRANSFORM wheelClosed REPLACE "(.+)" "$<TARGET_FILE:\\1>")
# Generated kernels are linked when compiling; a machine may have no linker.
find_program(MERAK_WHEEL_LINKER NAMES mold ld.lld)
install(CODE "
  set(executables ${wheelClosed})
  set(linker ${MERAK_WHEEL_LINKER})
  set(linkerLauncher ${PROJECT_SOURCE_DIR}/cmake/bundled-linker.sh)"
  COMPONENT python)
install(SCRIPT cmake/InstallWheelLibraries.cmake COMPONENT python)
