# Writes OUTPUT, a source with the files of FOLDER as constants. CMake calls it when one of them has changed.
set(text "#include \"server/gateway/page/page_files.h\"\n\nnamespace runahead {\n\n")
foreach(name page.html page.css page.js openapi.json)
  file(READ ${FOLDER}/${name} content)
  string(REPLACE . _ constant ${name})
  string(APPEND text "const char kFile_${constant}[] = R\"page-file(${content})page-file\";\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\n}  // namespace runahead\n")
