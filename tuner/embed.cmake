# Writes a C++ file that defines embedded_NAME() as the text of a file of this folder:
# -DINPUT=... -DOUTPUT=... -DNAME=models
file(READ "${INPUT}" content)
string(FIND "${content}" ")qt_text\"" clash)
if(NOT clash EQUAL -1)
  message(FATAL_ERROR "${INPUT} contains the raw string delimiter")
endif()
get_filename_component(file "${INPUT}" NAME)
file(WRITE "${OUTPUT}"
     "// Generated from tuner/${file}.\n#include \"tuner/embedded.hpp\"\n\n"
     "namespace quarterturn {\n\nstd::string_view embedded_${NAME}() {\n"
     "  return R\"qt_text(${content})qt_text\";\n}\n\n}  // namespace quarterturn\n")
