# The library that users link: all folders' objects in one, exporting the C interface only.
set(parts qturn_templates qturn_generator qturn_cache qturn_runtime)
add_library(quarterturn)
add_library(quarterturn::quarterturn ALIAS quarterturn)
foreach(part ${parts})
  target_sources(quarterturn PRIVATE $<TARGET_OBJECTS:${part}>)
endforeach()
set(headers include/quarterturn/qturn.h include/quarterturn/quarterturn.hpp)
target_sources(quarterturn PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${headers})
target_compile_features(quarterturn PUBLIC cxx_std_17)
set_target_properties(quarterturn PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0.1 LINKER_LANGUAGE CXX
                                             VERIFY_INTERFACE_HEADER_SETS ON)
if(BUILD_SHARED_LIBS)
  set(map "${CMAKE_CURRENT_SOURCE_DIR}/quarterturn.map")
  target_link_libraries(quarterturn PRIVATE fmt::fmt SQLite::SQLite3 qturn_sodium Threads::Threads
                                            ${CMAKE_DL_LIBS})
  target_link_options(quarterturn PRIVATE "LINKER:--version-script=${map}" "LINKER:--exclude-libs,ALL"
                      "LINKER:--no-undefined")
  set_target_properties(quarterturn PROPERTIES LINK_DEPENDS "${map}")
else()
  target_link_libraries(quarterturn PUBLIC fmt::fmt SQLite::SQLite3 Threads::Threads ${CMAKE_DL_LIBS}
                                           $<BUILD_INTERFACE:qturn_sodium> $<INSTALL_INTERFACE:sodium>)
endif()

# Programs that the library starts lie where find_program() looks.
set(helpers quarterturn-worker quarterturn-nvrtc quarterturn-hiprtc)
install(TARGETS ${helpers} RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/quarterturn"
                                   COMPONENT quarterturn)

install(
  TARGETS quarterturn EXPORT quarterturn-targets
  LIBRARY COMPONENT quarterturn NAMELINK_COMPONENT quarterturn
  ARCHIVE COMPONENT quarterturn
  FILE_SET HEADERS COMPONENT quarterturn)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/quarterturn")
install(EXPORT quarterturn-targets NAMESPACE quarterturn:: DESTINATION "${package}"
        COMPONENT quarterturn)
include(CMakePackageConfigHelpers)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/quarterturn-config.cmake.in"
                              "${CMAKE_CURRENT_BINARY_DIR}/quarterturn-config.cmake"
                              INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/quarterturn-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/quarterturn-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/quarterturn-config-version.cmake"
        DESTINATION "${package}" COMPONENT quarterturn)

# pkg-config: relative to the file itself, so that an installed tree may be moved.
set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH QTURN_PC_PREFIX "/prefix/${pc_folder}" "/prefix")
configure_file("${PROJECT_SOURCE_DIR}/cmake/quarterturn.pc.in"
               "${CMAKE_CURRENT_BINARY_DIR}/quarterturn.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/quarterturn.pc" DESTINATION "${pc_folder}"
        COMPONENT quarterturn)
