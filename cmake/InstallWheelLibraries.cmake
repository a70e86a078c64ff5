# Run when a wheel is installed: `executables`, `linker` and `linkerLauncher` are
# set. Copies the libraries that they need, under the names they are asked for
# (a wheel has no links), without those of the C library, which belong to the
# machine.
set(inputs ${executables})
if(linker)
  file(REAL_PATH ${linker} linkerFile)
  list(APPEND inputs ${linkerFile})
endif()
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${inputs}
  RESOLVED_DEPENDENCIES_VAR found
  UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES
    "^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv))\\.so")
if(missing)
  message(FATAL_ERROR "these libraries were not found: ${missing}")
endif()
set(folder "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(MAKE_DIRECTORY ${folder}/lib)
foreach(library ${found})
  get_filename_component(name ${library} NAME)
  if(name MATCHES "^ld-linux")
    continue()
  endif()
  file(REAL_PATH ${library} real)
  file(COPY_FILE ${real} ${folder}/lib/${name} ONLY_IF_DIFFERENT)
  message(STATUS "Installing: ${folder}/lib/${name}")
endforeach()
if(linker)
  get_filename_component(name ${linker} NAME)
  file(MAKE_DIRECTORY ${folder}/libexec)
  file(COPY_FILE ${linkerFile} ${folder}/libexec/linker)
  file(COPY_FILE ${linkerLauncher} ${folder}/bin/${name})
else()
  message(STATUS "no mold or ld.lld here: the wheel brings no linker")
endif()
