# Finds the sources of xgrammar, and sets RUNAHEAD_STRUCTURE_FOUND. RUNAHEAD_STRUCTURE: ON (refuses to configure without),
# OFF, or AUTO (builds without, and says why: answers of a given form are refused then).
set(RUNAHEAD_STRUCTURE AUTO CACHE STRING "Answers of a given form: ON, OFF, or AUTO (where xgrammar's sources are found)")
set_property(CACHE RUNAHEAD_STRUCTURE PROPERTY STRINGS AUTO ON OFF)
if(NOT RUNAHEAD_STRUCTURE MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "RUNAHEAD_STRUCTURE is '${RUNAHEAD_STRUCTURE}', not AUTO, ON or OFF")
endif()
set(RUNAHEAD_XGRAMMAR "" CACHE STRING "The folder of xgrammar's sources (empty: deploy/xgrammar fetches them)")

set(RUNAHEAD_STRUCTURE_FOUND OFF)
if(NOT RUNAHEAD_STRUCTURE STREQUAL OFF)
  set(missing "")
  set(sources "${RUNAHEAD_XGRAMMAR}")
  if(NOT sources)
    # What could not be fetched is not tried again each time, which takes a quarter of a minute.
    set(how "")
    if(RUNAHEAD_XGRAMMAR_TRIED AND RUNAHEAD_STRUCTURE STREQUAL AUTO)
      set(how --cached)
    endif()
    set(RUNAHEAD_XGRAMMAR_TRIED ON CACHE INTERNAL "deploy/xgrammar was asked to fetch the sources")
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/deploy/xgrammar ${how}
      OUTPUT_VARIABLE sources OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_VARIABLE reason ERROR_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE failed)
    if(failed)
      string(REGEX REPLACE ".*\n" "" reason "${reason}")
      set(missing "xgrammar's sources are not there: ${reason}")
    endif()
  endif()
  if(missing STREQUAL "" AND NOT EXISTS ${sources}/include/xgrammar/xgrammar.h)
    set(missing "there is no include/xgrammar/xgrammar.h in RUNAHEAD_XGRAMMAR (${sources})")
  endif()
  if(missing STREQUAL "")
    set(RUNAHEAD_STRUCTURE_FOUND ON)
    set(RUNAHEAD_XGRAMMAR_SOURCES ${sources})
    message(STATUS "Structured output: with xgrammar from ${sources}")
  elseif(RUNAHEAD_STRUCTURE STREQUAL ON)
    message(FATAL_ERROR "RUNAHEAD_STRUCTURE=ON: ${missing}")
  else()
    message(STATUS "Structured output: not built, for ${missing}")
  endif()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/xgrammar_mends.cmake)
