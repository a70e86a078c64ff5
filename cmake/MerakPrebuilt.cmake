# A wheel of tools that are built already: installs them from there.
add_custom_target(wheel)
install(CODE "
  execute_process(
    COMMAND \"${CMAKE_COMMAND}\" --install \"${MERAK_PREBUILT}\" --strip
      --component python --prefix \"\${CMAKE_INSTALL_PREFIX}\"
    COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT python)
