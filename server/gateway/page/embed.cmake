# Writes OUTPUT, a source with the files of FOLDER as constants. CMake calls it when one of them has changed.
set(text "#include \"server/gateway/page/page_files.h\"\n\nnamespace runahead {\n\n")
foreach(name html css js)
  file(READ ${FOLDER}/page.${name} content)
  string(APPEND text "const char kPage_${name}[] = R\"page-file(${content})page-file\";\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\n}  // namespace runahead\n")
