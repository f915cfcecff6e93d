# The command's installation with its manual pages, and a Debian package of everything:
# `cmake --build BUILD --target package` writes quarterturn_<version>_<architecture>.deb.
if(TARGET qturn)
  install(TARGETS qturn RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT quarterturn)
  install(TARGETS quarterturn-trial RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/quarterturn"
                                            COMPONENT quarterturn)
  # From what the command says of itself; without help2man there are none.
  find_program(HELP2MAN help2man)
  if(HELP2MAN AND NOT CMAKE_CROSSCOMPILING)
    set(pages)
    foreach(command "" ${QTURN_COMMANDS})
      string(JOIN " " name qturn ${command})
      string(REPLACE " " "-" name "${name}")
      set(page "${PROJECT_BINARY_DIR}/man/${name}.1")
      add_custom_command(
        OUTPUT "${page}"
        COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:qturn>" "-DCOMMAND=${command}" "-DVERSION=${PROJECT_VERSION}"
                "-DHELP2MAN=${HELP2MAN}" "-DPAGE=${page}" -P "${PROJECT_SOURCE_DIR}/cmake/ManualPage.cmake"
        DEPENDS qturn "${PROJECT_SOURCE_DIR}/cmake/ManualPage.cmake" VERBATIM)
      list(APPEND pages "${page}")
    endforeach()
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/man")
    add_custom_target(man ALL DEPENDS ${pages})
    install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT quarterturn)
  endif()
endif()
install(FILES README.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT quarterturn)

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL quarterturn)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_NAME quarterturn)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Quarterturn authors")
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# CPU kernels are compiled on the machine that runs them; without a compiler slower ones serve.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++ | clang")
include(CPack)
