# Writes a C++ file that holds models.json as a raw string literal: -DINPUT=... -DOUTPUT=...
file(READ "${INPUT}" content)
file(WRITE "${OUTPUT}"
     "// Generated from tuner/models.json.\n#include \"tuner/embedded.hpp\"\n\n"
     "namespace quarterturn {\n\nstd::string_view embedded_models() {\n"
     "  return R\"qt_text(${content})qt_text\";\n}\n\n}  // namespace quarterturn\n")
