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

# In `list`, a variable, a mended copy of `name` takes the file's place. It stops where the file is another one.
function(runahead_mend_xgrammar_file list name)
  set(file ${RUNAHEAD_XGRAMMAR_SOURCES}/cpp/${name})
  file(READ ${file} text)
  while(ARGN)
    list(POP_FRONT ARGN wrong right)
    string(REPLACE "${${wrong}}" "${${right}}" mended "${text}")
    if(mended STREQUAL text)
      message(FATAL_ERROR "${file} is not the one that is mended here")
    endif()
    set(text "${mended}")
  endwhile()
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/mended/${name})
  file(GENERATE OUTPUT ${copy} CONTENT "${text}")
  set(files ${${list}})
  list(REMOVE_ITEM files ${file})
  set(${list} ${files} ${copy} PARENT_SCOPE)
endfunction()

function(runahead_mend_xgrammar list)
  # In 0.2.8 what is optional leads from its begin to its end: where that goes on, as behind "/" [0-9]+, what goes on
  # there is taken without what must come before it, and `a(/[0-9]+)?` has "a7".
  set(optional [[
  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);
]])
  set(optional_mended [[
  const auto begin = fsm.AddState();
  fsm.AddEpsilonEdge(begin, start_);
  auto ends = ends_;
  ends.push_back(begin);
  return FSMWithStartEnd(fsm, begin, ends);
]])
  # Its work has no bound (grammar_work.h).
  set(include [[
#include "earley_parser.h"
]])
  set(include_mended [[
#include "earley_parser.h"

#include "server/grammar/grammar_work.h"
]])
  set(look [[
bool RepeatDetector::IsVisited(const ParserState& state) const {
]])
  set(look_mended [[
bool RepeatDetector::IsVisited(const ParserState& state) const {
  ::runahead::SpendGrammarWork();
]])
  set(scan [[
    Scan(state, ch);
]])
  set(scan_mended [[
    ::runahead::SpendGrammarWork();
    Scan(state, ch);
]])
  set(files ${${list}})
  runahead_mend_xgrammar_file(files fsm.cc optional optional_mended)
  runahead_mend_xgrammar_file(files earley_parser.cc include include_mended look look_mended scan scan_mended)
  set(${list} ${files} PARENT_SCOPE)
endfunction()
