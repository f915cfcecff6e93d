#include "runtime/cpu/host_compiler.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "generator/digest.hpp"

namespace quarterturn::cpu {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::string read_file(const std::string& path, std::size_t most = SIZE_MAX) {
  std::ifstream in(path, std::ios::binary);
  std::string out;
  char buffer[65536];
  while (out.size() < most && (in.read(buffer, sizeof buffer) || in.gcount() > 0))
    out.append(buffer, static_cast<std::size_t>(in.gcount()));
  return out;
}

// The GNU build id among the notes of an ELF64 file's first bytes; empty when there is none.
std::string build_id(std::string_view file) {
  Elf64_Ehdr header;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    return {};
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto at = header.e_phoff + static_cast<std::size_t>(i) * sizeof segment;
    if (at + sizeof segment > file.size()) return {};
    std::memcpy(&segment, file.data() + at, sizeof segment);
    if (segment.p_type != PT_NOTE) continue;
    auto note_at = segment.p_offset;
    const auto end = std::min<std::uint64_t>(segment.p_offset + segment.p_filesz, file.size());
    while (note_at + sizeof(Elf64_Nhdr) <= end) {
      Elf64_Nhdr note;
      std::memcpy(&note, file.data() + note_at, sizeof note);
      const auto name_at = note_at + sizeof note;
      const auto value_at = name_at + (note.n_namesz + 3ull) / 4 * 4;
      if (value_at + note.n_descsz > end) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(file.data() + name_at, "GNU", 4) == 0)
        return std::string(file.substr(value_at, note.n_descsz));
      note_at = value_at + (note.n_descsz + 3ull) / 4 * 4;
    }
  }
  return {};
}

bool is_shared_object(const std::string& path) {
  const auto start = read_file(path, sizeof(Elf64_Ehdr));
  Elf64_Ehdr header;
  if (start.size() < sizeof header) return false;
  std::memcpy(&header, start.data(), sizeof header);
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_type == ET_DYN;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) {
    const bool plain = word.find_first_of(" \t\"'$\\*?&|;<>()") == std::string::npos;
    out += (out.empty() ? "" : " ") + (plain ? word : fmt::format("'{}'", word));
  }
  return out;
}

// Not the user's where the program has other rights than the user (setuid).
std::string search_path() {
  const char* path = ::secure_getenv("PATH");
  return path ? path : "/usr/local/bin:/usr/bin:/bin";
}

constexpr std::string_view kTrivial =
    "#if defined(__x86_64__)\n#include <immintrin.h>\n#endif\n"
    "extern \"C\" __attribute__((visibility(\"default\"))) int qturn_probe(int x) { return x + 1; "
    "}\n";

}  // namespace

std::string find_in_path(const std::string& command, std::string_view path) {
  const auto executable = [](const std::string& file) {
    std::error_code error;
    return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
  };
  if (command.empty()) return {};
  if (command.find('/') != std::string::npos) return executable(command) ? command : std::string{};
  while (!path.empty()) {
    const auto colon = path.find(':');
    const auto folder = path.substr(0, colon);
    // An empty entry means the current folder: code from there is never run.
    if (!folder.empty() && folder.front() == '/')
      if (auto file = fmt::format("{}/{}", folder, command); executable(file)) return file;
    path = colon == std::string_view::npos ? std::string_view{} : path.substr(colon + 1);
  }
  return {};
}

std::string content_id(const std::string& path) {
  constexpr std::size_t kHead = 1 << 16;
  const auto head = read_file(path, kHead);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (const auto id = build_id(head); !id.empty())
    return fmt::format("{}+{}", hex(sha256(id)), error ? 0 : size);
  return hex(sha256(read_file(path)));
}

std::string beginning_of(const std::string& log, std::size_t lines) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < lines && at != std::string::npos; ++i) at = log.find('\n', at + 1);
  if (at == std::string::npos || at + 1 >= log.size()) return log;
  return log.substr(0, at) + "\n...";
}

HostCompiler::HostCompiler(std::vector<std::string> command, Worker worker, WorkerLimits limits)
    : command_(std::move(command)),
      command_text_(shell_line(command_)),
      worker_(std::move(worker)),
      limits_(limits) {}

Result<HostCompiler> HostCompiler::find(const std::string& wanted, const Worker& worker,
                                        WorkerLimits limits) {
  const std::string path = search_path();
  const char* cxx = ::secure_getenv("CXX");
  std::vector<std::string> candidates;
  if (!wanted.empty()) {
    candidates.push_back(wanted);
  } else {
    if (cxx && *cxx) candidates.emplace_back(cxx);
    for (const auto* name : {"c++", "g++", "clang++"}) candidates.emplace_back(name);
  }
  std::string tried;
  for (const auto& candidate : candidates) {
    auto words = words_of(candidate);
    if (words.empty()) continue;
    const auto file = find_in_path(words[0], path);
    if (file.empty()) {
      tried += fmt::format("\n  {}: not found in PATH", candidate);
      continue;
    }
    words[0] = file;
    HostCompiler compiler(std::move(words), worker, limits);
    if (auto status = compiler.identify(); status.ok())
      return compiler;
    else
      tried += fmt::format("\n  {}: {}", candidate, status.message());
  }
  return Status(
      Code::no_compiler,
      fmt::format("no C++ compiler was found; install one (Debian: apt-get install g++) or "
                  "name it in QTURN_CXX. Tried:{}",
                  tried));
}

Status HostCompiler::identify() {
  // One process for the three questions: most of the time is in starting it.
  WorkerCommand ask;
  ask.arguments = {"/bin/sh", "-c",
                   "\"$@\" --version && echo @ && \"$@\" -dumpmachine && echo @ && "
                   "\"$@\" -print-prog-name=cc1plus",
                   "sh"};
  ask.arguments.insert(ask.arguments.end(), command_.begin(), command_.end());
  ask.limits = limits_;
  ask.limits.wall_seconds = std::min<std::int64_t>(limits_.wall_seconds, 20);
  auto answer = worker_.run(ask);
  if (!answer.ok()) return answer.status();
  if (!answer->succeeded())
    return Status(Code::no_compiler,
                  fmt::format("does not say its version: {}\n{}", answer->ending(ask.limits),
                              beginning_of(answer->output, 3)));
  const auto first_line = [](std::string_view text) {
    while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
    return std::string(text.substr(0, text.find('\n')));
  };
  const std::string& text = answer->output;
  const auto first = text.find("@\n");
  const auto second = first == std::string::npos ? first : text.find("@\n", first + 1);
  if (second == std::string::npos)
    return Status(Code::no_compiler,
                  fmt::format("is not a compiler that we know: {}", beginning_of(text, 3)));
  const auto worker_program = first_line(std::string_view(text).substr(second + 2));
  std::error_code error;
  std::string binaries = content_id(command_[0]);
  for (std::size_t i = 1; i < command_.size(); ++i) {
    const auto file = find_in_path(command_[i], search_path());
    binaries += " " + (file.empty() ? command_[i] : content_id(file));
  }
  if (std::filesystem::is_regular_file(worker_program, error))
    binaries += " " + content_id(worker_program);
  identity_ = fmt::format("{} {} {}", first_line(text),
                          first_line(std::string_view(text).substr(first + 2)),
                          hex(sha256(text.substr(0, second) + binaries)).substr(0, 16));
  return {};
}

std::vector<std::string> HostCompiler::flags_for(const Target& target) {
  std::vector<std::string> out = {
      "-std=c++17",          "-O3",   "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions",
      "-fvisibility=hidden", "-fPIC", "-shared",           "-Wl,--as-needed"};
  std::string march = "-march=" + target.arch;
  if (target.arch == "aarch64") {
    march = target.features.empty() ? "-march=armv8-a" : "-march=armv8.2-a";
    for (const auto& feature : target.features) march += "+" + feature;
    out.push_back(march);
    return out;
  }
  out.push_back(march);
  for (const auto& feature : target.features) {
    // "avx512_vnni" is -mavx512vnni, "avx_vnni" is -mavxvnni.
    std::string flag = "-m";
    for (const char c : feature)
      if (c != '_') flag += c;
    out.push_back(flag);
  }
  return out;
}

Status HostCompiler::build(std::string_view text, const Target& target,
                           const std::vector<std::string>& extra_flags,
                           const std::string& directory, Compilation& done) const {
  const auto source = fmt::format("{}/{}", directory, kSourceName);
  const auto object = fmt::format("{}/{}", directory, kObjectName);
  {
    std::ofstream out(source, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out)
      return Status(Code::io_error,
                    fmt::format("cannot write {}: {}", source, std::strerror(errno)));
  }
  WorkerCommand command;
  command.arguments = command_;
  for (auto& flag : flags_for(target)) command.arguments.push_back(std::move(flag));
  command.arguments.insert(command.arguments.end(), extra_flags.begin(), extra_flags.end());
  for (const auto name : {std::string_view("-o"), kObjectName, kSourceName})
    command.arguments.emplace_back(name);
  command.directory = directory;
  command.limits = limits_;
  done.command = shell_line(command.arguments);
  const auto start = std::chrono::steady_clock::now();
  auto report = worker_.run(command);
  done.milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - start)
                          .count();
  if (!report.ok()) return report.status();
  done.log = report->output;
  const auto ending = report->ending(limits_);
  if (report->end == WorkerReport::End::timed_out)
    return Status(Code::compile_timeout,
                  fmt::format("the compiler {} was {} (raise QTURN_COMPILE_SECONDS if this machine "
                              "is only slow)",
                              command_text_, ending));
  if (report->end == WorkerReport::End::not_started)
    return Status(Code::no_compiler, fmt::format("{} {}", command_text_, ending));
  if (!report->succeeded())
    return Status(report->failure(),
                  fmt::format("{}: {}\n{}", command_text_, ending, beginning_of(done.log, 20)));
  if (!is_shared_object(object))
    return Status(Code::compile_failed,
                  fmt::format("{} reported success but made no shared object\n{}", command_text_,
                              beginning_of(done.log, 20)));
  return {};
}

Status HostCompiler::check(const Target& target, const std::string& directory) const {
  Compilation done;
  auto status = build(kTrivial, target, {}, directory, done);
  // What no compiler could help.
  for (const Code code : {Code::ok, Code::io_error, Code::disk_full, Code::interrupted})
    if (status.code() == code) return status;
  return Status(
      Code::no_compiler,
      fmt::format("the C++ compiler cannot build a shared object here: its headers, its "
                  "assembler or its linker may be missing (Debian: apt-get install g++), or "
                  "it does not know {}. {}",
                  target.key(), status.message()));
}

Status HostCompiler::compile(std::string_view text, const Target& target,
                             const std::vector<std::string>& extra_flags,
                             const std::string& directory, Compilation& done) const {
  auto status = build(text, target, extra_flags, directory, done);
  if (status.code() != Code::compile_failed) return status;
  // Is it this kernel, or does the compiler build nothing at all?
  const auto probe_directory = directory + "/probe";
  std::error_code error;
  if (!std::filesystem::create_directory(probe_directory, error)) return status;
  if (auto probe = check(target, probe_directory); probe.code() == Code::no_compiler) return probe;
  return status;
}

}  // namespace quarterturn::cpu
