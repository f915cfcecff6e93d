#include "runtime/weight.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "generator/digest.hpp"
#include "runtime/arguments.hpp"
#include "runtime/slots.hpp"

namespace quarterturn {
namespace {

constexpr std::string_view kMagic = "QTWEIGHT";
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kPrefix = 16;  // magic, format, length of the JSON text; little-endian
constexpr std::int64_t kAlignment = 256;

// Each group has a weight of its own, as each batch entry has.
Extent entries_extent(const Problem& p) {
  return p.grouping == Grouping::none ? p.batch : p.groups;
}

// What of a plan's problem says what its B is; the rest is at its default, so that weights of many
// plans share the kernels that pack them.
Problem weight_problem(const Problem& p, Layout layout) {
  Problem out;
  out.op = Op::gemm;
  out.n = p.n;
  out.k = p.k;
  out.batch = entries_extent(p);
  out.b_type = DType::mxfp4;
  out.b_major = p.b_major;
  out.b_layout = layout;
  out.rotation = p.rotation;
  out.signs = p.signs;
  out.scale_rule = p.scale_rule;
  out.scale_block = p.scale_block;
  out.b_rounding = p.b_rounding;
  out.biased = p.biased;
  return out;
}

OperandBytes entry_bytes(const Problem& p) {
  return operand_bytes(p.b_layout, p.n.lo, p.k.lo, padding_unit(p));
}

std::int64_t storage_needed(const OperandBytes& bytes) {
  return round_up(bytes.codes, kAlignment) + round_up(bytes.scales, kAlignment);
}

void put_u32(std::string& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> 8 * i & 255u);
}

std::uint32_t get_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
  return value;
}

Status damaged(std::string_view what) {
  return Status(Code::damaged, fmt::format("the weight image is damaged: {}", what));
}

template <class E>
bool read_enum(const nlohmann::json& json, const char* name, E& out) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return false;
  const auto value = parse_enum<E>(found->get<std::string>());
  if (value) out = *value;
  return value.has_value();
}

bool read_size(const nlohmann::json& json, const char* name, std::int64_t most, std::int64_t& out) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer()) return false;
  out = found->get<std::int64_t>();
  return out >= 0 && out <= most;
}

// The text of header(); empty when it says nothing that we understand.
bool read_header(std::string_view text, Problem& p, qturn_operand& operand) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  std::int64_t n = 0, k = 0, batch = 0, rotation = 0;
  constexpr std::int64_t most = std::int64_t{1} << 40;
  p.op = Op::gemm;
  p.b_type = DType::mxfp4;
  if (!json.is_object() || !read_size(json, "n", most, n) || !read_size(json, "k", most, k) ||
      !read_size(json, "batch", most, batch) || !read_size(json, "rotation", 256, rotation) ||
      !read_enum(json, "major", p.b_major) || !read_enum(json, "layout", p.b_layout) ||
      !read_enum(json, "signs", p.signs) || !read_enum(json, "scale_rule", p.scale_rule) ||
      !read_enum(json, "scale_block", p.scale_block) ||
      !read_enum(json, "rounding", p.b_rounding) || !read_enum(json, "biased", p.biased) ||
      p.b_layout == Layout::chosen || n == 0 || k == 0 || batch == 0 || n > most / k / batch)
    return false;
  p.n = Extent::exactly(n);
  p.k = Extent::exactly(k);
  p.batch = Extent::exactly(batch);
  p.rotation = static_cast<std::int32_t>(rotation);
  const auto seed = json.find("sign_seed");
  const auto mask = json.find("sign_mask");
  if (seed == json.end() || !seed->is_number_unsigned() || mask == json.end() ||
      !mask->is_array() || mask->size() != 8)
    return false;
  operand.sign_seed = seed->get<std::uint64_t>();
  for (std::size_t i = 0; i < 8; ++i) {
    if (!(*mask)[i].is_number_unsigned()) return false;
    operand.sign_mask[i] = (*mask)[i].get<std::uint32_t>();
  }
  return true;
}

}  // namespace

Weight::Weight(std::shared_ptr<Context> context, const Problem& problem)
    : context_(std::move(context)), problem_(problem), bytes_(entry_bytes(problem)) {
  bytes_.codes *= problem.batch.lo;
  bytes_.scales *= problem.batch.lo;
  Sizes sizes;
  sizes.n = problem.n.lo;
  sizes.k = problem.k.lo;
  sizes.batch = problem.batch.lo;
  const Slot slot = slot_of(problem, Layout::plain, problem.b_layout, Which::b, sizes);
  operand_ = describe(problem, slot, Which::b, sizes);
}

Weight::~Weight() {
  if (owned_) context_->backend().release(owned_);
}

Result<std::int64_t> Weight::bytes_for(const PreparedPlan& plan) {
  const Problem& p = plan.problem();
  if ((p.op != Op::gemm && p.op != Op::hadamard_gemm && p.op != Op::gemm_quantize) ||
      p.b_type != DType::mxfp4)
    return Status(Code::not_supported,
                  "this plan takes no prepared weight: prepare a GEMM with b_type = QTURN_MXFP4");
  if (p.grouping == Grouping::k_grouped)
    return Status(Code::not_supported,
                  "this plan takes no prepared weight: k_grouped contracts tokens");
  if (!p.n.is_static() || !p.k.is_static() || !entries_extent(p).is_static())
    return Status(Code::not_supported,
                  "this plan takes no prepared weight: n, k and batch (or groups) must be static");
  auto bytes = entry_bytes(weight_problem(p, plan.b_layout()));
  bytes.codes *= entries_extent(p).lo;
  bytes.scales *= entries_extent(p).lo;
  return storage_needed(bytes);
}

Status Weight::take_storage(void* storage, std::size_t storage_bytes) {
  const auto needed = storage_needed(bytes_);
  if (storage) {
    if (storage_bytes < static_cast<std::size_t>(needed))
      return Status(Code::invalid_argument,
                    fmt::format("storage_bytes = {}: this weight needs {} (qturn_weight_bytes)",
                                storage_bytes, needed));
    if (reinterpret_cast<std::uintptr_t>(storage) % 64 != 0)
      return Status(Code::misaligned,
                    fmt::format("storage = {} is not a multiple of 64 bytes", storage));
  } else {
    auto memory = context_->backend().allocate(needed);
    if (!memory.ok()) return memory.status();
    storage = owned_ = *memory;
  }
  operand_.data = storage;
  operand_.scales = static_cast<char*>(storage) + round_up(bytes_.codes, kAlignment);
  return {};
}

Result<std::unique_ptr<Weight>> Weight::create(std::shared_ptr<Context> context,
                                               const PreparedPlan& plan,
                                               const qturn_operand& source, void* storage,
                                               std::size_t storage_bytes, void* stream) {
  if (auto bytes = bytes_for(plan); !bytes.ok()) return bytes.status();
  std::unique_ptr<Weight> out(
      new Weight(std::move(context), weight_problem(plan.problem(), plan.b_layout())));
  if (auto status = out->take_storage(storage, storage_bytes); !status.ok()) return status;
  if (auto status = out->refresh(source, stream); !status.ok()) return status;
  return out;
}

Problem Weight::packing_problem(DType source_type, Layout to) const {
  const Problem& p = problem_;
  Problem out;
  out.op = source_type == DType::mxfp4 ? Op::pack : Op::quantize;
  out.m = p.n;
  out.k = p.k;
  out.batch = p.batch;
  out.a_type = source_type;
  out.d_type = DType::mxfp4;
  out.a_layout = source_type == DType::mxfp4 ? Layout::plain : Layout::chosen;
  out.d_layout = to;
  out.rotation = p.rotation;
  out.signs = p.signs;
  out.scale_rule = p.scale_rule;
  out.scale_block = p.scale_block;
  if (source_type == DType::mxfp4) return out;
  out.a_rounding = p.b_rounding;
  out.biased = p.biased;
  if (p.b_major == Major::rows) {
    // W is stored as [k, n]: quantised along its columns.
    out.copies = Copies::columns;
    std::swap(out.m, out.k);
  }
  return out;
}

Status Weight::fill(const Problem& step, const qturn_operand& source, const qturn_operand& to,
                    void* stream) const {
  auto plan = context_->prepare_packing(step);
  if (!plan.ok()) return plan.status();
  qturn_args args{};
  args.a = source;
  args.d = to;
  args.noise_seed = source.noise_seed;
  args.noise_stream = source.noise_stream;
  args.noise_operand = 1;
  Backend& backend = context_->backend();
  void* scratch = nullptr;
  if ((*plan)->workspace_bytes() > 0) {
    const auto bytes = (*plan)->workspace_bytes() + kWorkspaceAlignment;
    auto memory = backend.allocate(bytes);
    if (!memory.ok()) return memory.status();
    args.workspace = scratch = *memory;
    args.workspace_bytes = static_cast<std::size_t>(bytes);
  }
  Call call;
  Status status = bind(**plan, args, args.b, call);
  if (status.ok() && call.work == Call::Work::some)
    status = (*plan)->executable().run(call.args, stream, call.row0_b);
  if (scratch) {
    // The kernels may still be using it.
    if (status.ok()) status = backend.synchronize();
    backend.release(scratch);
  }
  return status;
}

Status Weight::fill_by_plain(const qturn_operand& source, void* stream) const {
  const auto bytes =
      operand_bytes(Layout::plain, problem_.n.lo, problem_.k.lo, padding_unit(problem_));
  const auto codes = round_up(bytes.codes * problem_.batch.lo, kAlignment);
  Backend& backend = context_->backend();
  auto memory = backend.allocate(codes + bytes.scales * problem_.batch.lo);
  if (!memory.ok()) return memory.status();
  qturn_operand plain = operand_;
  plain.layout = QTURN_LAYOUT_PLAIN;
  plain.data = *memory;
  plain.scales = static_cast<char*>(*memory) + codes;
  Status status =
      fill(packing_problem(static_cast<DType>(source.type), Layout::plain), source, plain, stream);
  if (status.ok())
    status = fill(packing_problem(DType::mxfp4, problem_.b_layout), plain, operand_, stream);
  if (status.ok()) status = backend.synchronize();
  backend.release(*memory);
  return status;
}

Status Weight::refresh(const qturn_operand& source, void* stream) {
  const auto type = source.type;
  if (type < QTURN_BF16 || type > QTURN_MXFP4)
    return Status(Code::invalid_argument,
                  fmt::format("source.type = {}: bf16, f16, f32 or plain mxfp4 is allowed", type));
  const Problem direct = packing_problem(static_cast<DType>(type), problem_.b_layout);
  const bool by_plain = type != QTURN_MXFP4 && problem_.b_layout != Layout::plain &&
                        context_->supports(direct).code() == Code::not_supported;
  const Status status =
      by_plain ? fill_by_plain(source, stream) : fill(direct, source, operand_, stream);
  if (!status.ok())
    return Status(
        status.code(),
        fmt::format("packing the weight (a: the source, d: the weight): {}", status.message()));
  operand_.sign_seed = source.sign_seed;
  std::memcpy(operand_.sign_mask, source.sign_mask, sizeof operand_.sign_mask);
  return {};
}

Status Weight::check_size(const Problem& p) const {
  const Extent entries = entries_extent(p);
  if (p.n == problem_.n && p.k == problem_.k && entries == problem_.batch &&
      p.grouping != Grouping::k_grouped)
    return {};
  return Status(
      Code::wrong_operand,
      fmt::format("the weight is {} x {} ({} of them), the plan wants {}..{} x {}..{} ({}..{} of "
                  "them)",
                  problem_.n.lo, problem_.k.lo, problem_.batch.lo, p.n.lo, p.n.hi, p.k.lo, p.k.hi,
                  entries.lo, entries.hi));
}

std::string Weight::header() const {
  nlohmann::json json;
  json["n"] = problem_.n.lo;
  json["k"] = problem_.k.lo;
  json["batch"] = problem_.batch.lo;
  json["major"] = name_of(problem_.b_major);
  json["layout"] = name_of(problem_.b_layout);
  json["rotation"] = problem_.rotation;
  json["signs"] = name_of(problem_.signs);
  json["sign_seed"] = operand_.sign_seed;
  json["sign_mask"] = operand_.sign_mask;
  json["scale_rule"] = name_of(problem_.scale_rule);
  json["scale_block"] = name_of(problem_.scale_block);
  json["rounding"] = name_of(problem_.b_rounding);
  json["biased"] = name_of(problem_.biased);
  json["codes_bytes"] = bytes_.codes;
  json["scales_bytes"] = bytes_.scales;
  return json.dump();
}

std::size_t Weight::image_bytes() const {
  return kPrefix + header().size() + static_cast<std::size_t>(bytes_.codes + bytes_.scales) +
         sizeof(Digest);
}

Status Weight::serialize(void* to) const {
  const auto text = header();
  std::string image(kMagic);
  put_u32(image, kFormat);
  put_u32(image, static_cast<std::uint32_t>(text.size()));
  image += text;
  const auto payload = image.size();
  image.resize(payload + static_cast<std::size_t>(bytes_.codes + bytes_.scales));
  Backend& backend = context_->backend();
  if (auto s = backend.download(image.data() + payload, operand_.data, bytes_.codes); !s.ok())
    return s;
  if (auto s =
          backend.download(image.data() + payload + bytes_.codes, operand_.scales, bytes_.scales);
      !s.ok())
    return s;
  const Digest digest = sha256(image);
  std::memcpy(to, image.data(), image.size());
  std::memcpy(static_cast<char*>(to) + image.size(), digest.data(), digest.size());
  return {};
}

Result<std::unique_ptr<Weight>> Weight::deserialize(std::shared_ptr<Context> context,
                                                    std::string_view image, void* storage,
                                                    std::size_t storage_bytes) {
  if (image.size() < kPrefix || image.substr(0, kMagic.size()) != kMagic)
    return Status(Code::not_ours, "these bytes are not a Quarterturn weight");
  if (const auto format = get_u32(image, 8); format != kFormat)
    return Status(Code::newer_version,
                  fmt::format("the weight image has format {}, this library reads {}; use the "
                              "library that wrote it, or pack the weight again",
                              format, kFormat));
  const std::size_t text_bytes = get_u32(image, 12);
  if (image.size() < kPrefix + text_bytes + sizeof(Digest)) return damaged("it is cut short");
  const auto body = image.substr(0, image.size() - sizeof(Digest));
  const Digest digest = sha256(body);
  if (std::memcmp(digest.data(), image.data() + body.size(), digest.size()) != 0)
    return damaged("its checksum does not match");

  Problem problem;
  qturn_operand signs{};
  if (!read_header(body.substr(kPrefix, text_bytes), problem, signs))
    return Status(
        Code::newer_version,
        "the weight image describes what this library does not know; use the library that "
        "wrote it, or pack the weight again");
  std::unique_ptr<Weight> out(new Weight(std::move(context), problem));
  const auto payload = body.substr(kPrefix + text_bytes);
  if (payload.size() != static_cast<std::size_t>(out->bytes_.codes + out->bytes_.scales))
    return damaged("it holds another number of bytes than its sizes say");
  if (auto status = out->take_storage(storage, storage_bytes); !status.ok()) return status;
  Backend& backend = out->context_->backend();
  if (auto s = backend.upload(out->operand_.data, payload.data(), out->bytes_.codes); !s.ok())
    return s;
  if (auto s = backend.upload(out->operand_.scales, payload.data() + out->bytes_.codes,
                              out->bytes_.scales);
      !s.ok())
    return s;
  out->operand_.sign_seed = signs.sign_seed;
  std::memcpy(out->operand_.sign_mask, signs.sign_mask, sizeof signs.sign_mask);
  return out;
}

}  // namespace quarterturn
