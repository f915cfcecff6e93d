#include "tests/kernels/any_mode.hpp"

#include "tests/kernels/jit.hpp"

namespace quarterturn::kernels {
namespace {

AnyMode portable_any_mode() {
  return {"portable", &qt::cpu::quantize<QuantizeConfig>, &qt::cpu::pack<PackConfig>,
          &qt::cpu::dequantize<DequantizeConfig>, &qt::cpu::hadamard<HadamardConfig>};
}

AnyMode compile_any_mode(const Target& target, const std::string& lanes,
                         const std::string& lanes_text) {
  Source source;
  source.text = "#include \"args.h\"\n#include \"" + lanes_text + "\"\n";
  const std::vector<std::pair<std::string, std::string>> kernels = {
      {"quantize", "QuantizeConfig"},
      {"pack", "PackConfig"},
      {"dequantize", "DequantizeConfig"},
      {"hadamard", "HadamardConfig"}};
  for (const auto& [name, config] : kernels) source.text += "#include \"cpu/" + name + ".h\"\n";
  for (const auto& [name, config] : kernels) {
    const auto type = "qt::cpu::" + config + "<qt::cpu::" + lanes + ">";
    source.text += "extern \"C\" __attribute__((visibility(\"default\"))) void any_" + name +
                   "(const " + type + "& config, const qt_args* args, long long part) {\n" +
                   "  qt::cpu::" + name + "(config, args, part);\n}\n";
  }
  const auto flat = flatten(source);
  REQUIRE_MESSAGE(flat.ok(), flat.status().message());
  const std::string output = jit::compiled(*flat, jit::flags_of(target) + " -O2");
  void* library = dlopen(output.c_str(), RTLD_NOW | RTLD_LOCAL);  // kept to the program's end
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  AnyMode out;
  out.name = target.key();
  const auto find = [library](auto& entry, const char* name) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
    const bool found = entry != nullptr;
    REQUIRE_MESSAGE(found, name);
  };
  find(out.quantize, "any_quantize");
  find(out.pack, "any_pack");
  find(out.dequantize, "any_dequantize");
  find(out.hadamard, "any_hadamard");
  return out;
}

}  // namespace

const std::vector<AnyMode>& any_modes() {
  static const auto all = [] {
    std::vector<AnyMode> out{portable_any_mode()};
    bool avx512 = false, avx2 = false;
    for (const auto& target : jit::targets()) {
      if (!avx512 && target.arch == "x86-64-v4")
        out.push_back(compile_any_mode(target, "Avx512Lanes", "cpu/primitives_lanes_avx512.h"));
      if (!avx2 && target.arch == "x86-64-v3")
        out.push_back(compile_any_mode(target, "Avx2Lanes", "cpu/primitives_lanes_avx2.h"));
      avx512 = avx512 || target.arch == "x86-64-v4";
      avx2 = avx2 || target.arch == "x86-64-v3";
    }
    return out;
  }();
  return all;
}

}  // namespace quarterturn::kernels
