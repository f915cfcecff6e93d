#include "tuner/instance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/operand.hpp"
#include "tuner/parallel.hpp"
#include "tuner/random.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kExtraColumns = 16;  // between rows that are parts of wider matrices

// Notices a changed bit and names no content: hundreds of megabytes are compared for each plan.
std::uint64_t fingerprint(const std::vector<unsigned char>& bytes) {
  std::atomic<std::uint64_t> sum{bytes.size()};
  const auto words = static_cast<std::int64_t>(bytes.size() / 8);
  const auto word_at = [&](std::int64_t i, std::size_t size) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, size);
    return Random::at(word, static_cast<std::uint64_t>(i));
  };
  on_all_cores(words, 4, [&](std::int64_t first, std::int64_t end) {
    std::uint64_t part = 0;
    for (std::int64_t i = first; i < end; ++i) part += word_at(i, 8);
    sum += part;
  });
  if (bytes.size() % 8 != 0) sum += word_at(words, bytes.size() % 8);
  return sum;
}

void set_keys(qt_args& args) {
  args.noise_seed = InstanceKeys::noise_seed;
  args.sign_seed = InstanceKeys::sign_seed;
  std::copy(std::begin(InstanceKeys::sign_mask), std::end(InstanceKeys::sign_mask), args.sign_mask);
  args.stream = InstanceKeys::stream;
}

}  // namespace

float SourceOperand::at(std::int64_t batch, std::int64_t row, std::int64_t k_index) const {
  if (special && k_index == k / 2 && row == 0) return std::numeric_limits<float>::quiet_NaN();
  if (special && k_index == k / 2 && row == rows - 1) return std::numeric_limits<float>::infinity();
  const Matrix& matrix = entries[static_cast<std::size_t>(batch)];
  return major == Major::k ? matrix.at(row, k_index) : matrix.at(k_index, row);
}

void Instance::describe_sources() {
  const Problem& p = spec_.problem;
  const Sizes& s = spec_.sizes;
  const auto source = [&](Profile profile, std::uint64_t salt, DType type, Major major,
                          std::int64_t rows, std::int64_t k, std::int64_t entries) {
    SourceOperand out;
    out.major = major;
    out.rows = rows;
    out.k = k;
    for (std::int64_t batch = 0; batch < entries; ++batch) {
      const auto seed = spec_.seed * 1000003 + salt + 17 * static_cast<std::uint64_t>(batch);
      const bool as_is = major == Major::k;
      out.entries.emplace_back(profile, seed, source_type(type), as_is ? rows : k,
                               as_is ? k : rows);
    }
    return out;
  };
  a_ = source(spec_.a_profile, 1, p.a_type, p.a_major, s.m, input_columns(p.prologue, s.k),
              entries_.a);
  if (spec_.a_data)
    for (Matrix& entry : a_.entries)
      entry = Matrix(spec_.a_data, entry.type(), entry.rows(), entry.columns());
  a_.special = spec_.special;
  const auto side = [&](std::uint64_t salt, Profile profile, std::int64_t columns) {
    std::vector<Matrix> out;
    for (std::int64_t batch = 0; batch < entries_.d; ++batch)
      out.emplace_back(profile,
                       spec_.seed * 1000003 + salt + 17 * static_cast<std::uint64_t>(batch),
                       side_type(p), s.m, columns);
    return out;
  };
  if (p.prologue == Prologue::rmsnorm)
    norm_weight_ = Matrix(Profile::forward, spec_.seed * 1000003 + 5, p.a_type, 1, s.k);
  if (!multiplies(p.op)) return;
  b_ = source(spec_.b_profile, 2, p.b_type, p.b_major, s.n, s.k, entries_.b);
  if (p.accumulate == Accumulate::accumulate) c_ = side(3, Profile::heavy_tail, s.n);
  if (is_derivative(p.epilogue)) aux_ = side(6, Profile::forward, aux_columns(p.epilogue, s.n));
  if (p.bias == Bias::per_column)
    bias_ = Matrix(Profile::forward, spec_.seed * 1000003 + 4, side_type(p), 1, s.n);
}

float Instance::aux_at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
  return aux_[static_cast<std::size_t>(batch)].at(row, column);
}

float Instance::norm_weight_at(std::int64_t column) const { return norm_weight_.at(0, column); }

std::int64_t Instance::columns() const {
  const Problem& p = spec_.problem;
  return multiplies(p.op) ? output_columns(p.epilogue, spec_.sizes.n) : spec_.sizes.k;
}

float Instance::c_at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
  return c_.empty() ? 0.0f : c_[static_cast<std::size_t>(batch)].at(row, column);
}

float Instance::bias_at(std::int64_t column) const {
  return bias_.columns() > 0 ? bias_.at(0, column) : 0.0f;
}

Result<Instance::Stored> Instance::store_source(const SourceOperand& source) const {
  const Matrix& first = source.entries.front();
  const std::int64_t extra = spec_.rows == Rows::wider ? kExtraColumns : 0;
  const std::int64_t ld = first.columns() + extra;
  std::vector<unsigned char> all;
  for (std::int64_t batch = 0; batch < static_cast<std::int64_t>(source.entries.size()); ++batch) {
    auto bytes = source.entries[static_cast<std::size_t>(batch)].bytes(ld);
    if (source.special)
      for (const std::int64_t row : {std::int64_t{0}, source.rows - 1}) {
        const std::int64_t at =
            source.major == Major::k ? row * ld + source.k / 2 : source.k / 2 * ld + row;
        store_element(first.type(), source.at(batch, row, source.k / 2),
                      bytes.data() + at * bytes_of(first.type()));
      }
    if (all.empty())
      all = std::move(bytes);
    else
      all.insert(all.end(), bytes.begin(), bytes.end());
  }
  Stored out;
  auto memory = Memory::of(backend_, all);
  if (!memory.ok()) return memory.status();
  out.data = std::move(*memory);
  out.fingerprint = fingerprint(all);
  out.tensor = dense_matrix(first.rows(), first.columns(), out.data.data());
  out.tensor.ld = ld;
  out.tensor.batch_stride = first.rows() * ld;
  return out;
}

// Groups of rows, or of tokens in k_grouped: all but equal, the first empty where there are three,
// so that its weights are read by nobody. Masked groups use every row, which a check can then look
// at.
Status Instance::allocate_groups() {
  const Problem& p = spec_.problem;
  const std::int64_t groups = spec_.sizes.groups;
  const std::int64_t m = p.grouping == Grouping::k_grouped ? spec_.sizes.k : spec_.sizes.m;
  if (p.grouping == Grouping::none) return {};
  const std::int64_t empty = groups >= 3 ? 1 : 0;
  for (std::int64_t g = 0; g < groups; ++g)
    group_sizes_.push_back(static_cast<std::int32_t>(p.grouping == Grouping::m_masked ? m
                                                     : g < empty
                                                         ? 0
                                                         : m * (g + 1 - empty) / (groups - empty)));
  std::vector<unsigned char> bytes(group_sizes_.size() * sizeof group_sizes_[0]);
  std::memcpy(bytes.data(), group_sizes_.data(), bytes.size());
  auto memory = Memory::of(backend_, bytes);
  if (!memory.ok()) return memory.status();
  group_memory_ = std::move(*memory);
  return {};
}

std::int64_t Instance::entry_of_b(std::int64_t entry, std::int64_t row) const {
  if (spec_.problem.grouping != Grouping::m_contiguous) return entries_.b == 1 ? 0 : entry;
  return std::upper_bound(group_sizes_.begin(), group_sizes_.end(), row) - group_sizes_.begin();
}

Status Instance::allocate_sources() {
  if (auto status = allocate_groups(); !status.ok()) return status;
  if (spec_.problem.a_type != DType::mxfp4) {
    auto a = store_source(a_);
    if (!a.ok()) return a.status();
    a_memory_ = std::move(*a);
  }
  if (!b_.entries.empty() && spec_.problem.b_type != DType::mxfp4) {
    auto b = store_source(b_);
    if (!b.ok()) return b.status();
    b_memory_ = std::move(*b);
  }
  if (!c_.empty()) {
    SourceOperand c;
    c.entries = c_;
    auto stored = store_source(c);
    if (!stored.ok()) return stored.status();
    c_memory_ = std::move(*stored);
  }
  if (!aux_.empty()) {
    SourceOperand aux;
    aux.entries = aux_;
    auto stored = store_source(aux);
    if (!stored.ok()) return stored.status();
    aux_memory_ = std::move(*stored);
  }
  for (const auto& [vector, memory] :
       {std::pair(&bias_, &bias_memory_), {&norm_weight_, &norm_memory_}}) {
    if (vector->columns() == 0) continue;
    auto stored = Memory::of(backend_, vector->bytes(vector->columns()));
    if (!stored.ok()) return stored.status();
    *memory = std::move(*stored);
  }
  return {};
}

Status Instance::supports(const Problem& p) {
  const bool plain = multiplies(p.op) && p.bias == Bias::none && p.a_type != DType::mxfp4 &&
                     (p.grouping != Grouping::k_grouped || p.b_type != DType::mxfp4);
  if (p.grouping == Grouping::none || plain) return {};
  return Status(Code::not_supported,
                fmt::format("grouping = {}: measured and admitted are products of a high-precision "
                            "A (in k_grouped B, too) without a bias; the default plan serves the "
                            "others",
                            name_of(p.grouping)));
}

Result<std::unique_ptr<Instance>> Instance::make(Backend& backend, const InstanceSpec& spec) {
  if (auto status = supports(spec.problem); !status.ok()) return status;
  auto out = std::make_unique<Instance>(backend, spec);
  out->describe_sources();
  if (auto status = out->allocate_sources(); !status.ok()) return status;
  return out;
}

// An operand as a plan takes it. Quantising is a plan of its own: the default one, whose codes the
// admission of the plan under test checks beside everything else.
Result<qt_tensor> Instance::operand(const SourceOperand& source, DType type, Layout layout,
                                    std::uint32_t which, std::map<Layout, Stored>& packed) {
  if (type != DType::mxfp4) return (which == 1 ? b_memory_ : a_memory_).tensor;
  if (const auto found = packed.find(layout); found != packed.end()) return found->second.tensor;
  // Plans of several layouts are tried; a host's memory need not hold the source until then.
  const bool keep = backend_.device().target.vendor != Vendor::cpu;
  if (sources_.count(which) == 0) {
    auto high = store_source(source);
    if (!high.ok()) return high.status();
    sources_[which] = std::move(*high);
  }
  auto steps = preparation_of(spec_.problem, backend_.device().target, which, layout);
  if (!steps.ok()) return steps.status();
  Stored last;
  qt_tensor from = sources_[which].tensor;
  for (const auto& step : *steps) {
    auto made = prepare(step, source, which, from);
    if (!made.ok()) return made.status();
    last = std::move(*made);
    from = last.tensor;
  }
  if (!keep) sources_.erase(which);
  packed[layout] = std::move(last);
  return from;
}

Result<Instance::Stored> Instance::prepare(const Preparation& step, const SourceOperand& source,
                                           std::uint32_t which, const qt_tensor& from) {
  const Problem& p = step.problem;
  auto executable = Executable::build(backend_, p, step.plan);
  if (!executable.ok() && executable.status().code() == Code::no_compiler)
    executable = Executable::prebuilt(backend_, p);
  if (!executable.ok()) return executable.status();
  const auto padding = padding_unit(spec_.problem);
  const auto bytes = operand_bytes(p.d_layout, source.rows, source.k, padding);
  const auto entries = static_cast<std::int64_t>(source.entries.size());
  auto codes = Memory::allocate(backend_, bytes.codes * entries);
  if (!codes.ok()) return codes.status();
  auto scales = Memory::allocate(backend_, bytes.scales * entries);
  if (!scales.ok()) return scales.status();
  auto workspace = Memory::allocate(backend_, (*executable)->workspace_bytes());
  if (!workspace.ok()) return workspace.status();

  qt_args args{};
  args.m = source.rows;
  args.k = source.k;
  if (p.copies == Copies::columns) std::swap(args.m, args.k);
  args.batch = entries;
  args.groups = 1;
  args.a = from;
  args.d =
      packed_operand(p.d_layout, source.rows, source.k, padding, codes->data(), scales->data());
  set_keys(args);
  args.operand = which;
  args.workspace = workspace->data();
  args.workspace_bytes = workspace->bytes();
  if (auto status = (*executable)->run(args, nullptr); !status.ok()) return status;
  if (auto status = backend_.synchronize(); !status.ok()) return status;
  Stored out;
  out.data = std::move(*codes);
  out.scales = std::move(*scales);
  out.tensor = args.d;
  return out;
}

Status Instance::allocate_result(const Executable& executable) {
  const Problem& p = spec_.problem;
  const Sizes& s = spec_.sizes;
  const auto padding = padding_unit(p);
  if (workspace_.bytes() < executable.workspace_bytes()) {
    workspace_ = {};
    auto memory = Memory::allocate(backend_, executable.workspace_bytes());
    if (!memory.ok()) return memory.status();
    workspace_ = std::move(*memory);
    ++workspace_moves_;
  }
  if (d_memory_.data.data() || d2_memory_.data.data()) return {};
  if (p.pre_activation == PreActivation::kept) {
    auto z = Memory::allocate(backend_, entries_.d * s.m * s.n * bytes_of(side_type(p)));
    if (!z.ok()) return z.status();
    z_memory_.data = std::move(*z);
    z_memory_.tensor = dense_matrix(s.m, s.n, z_memory_.data.data());
  }
  if (p.bias_gradient != BiasGradient::none) {
    auto sums = Memory::allocate(backend_, s.batch * (multiplies(p.op) ? s.m : s.k) * 4);
    if (!sums.ok()) return sums.status();
    sums_memory_ = std::move(*sums);
  }
  if (p.d_type == DType::mxfp4) {
    const auto make = [&](Stored& to, std::int64_t rows, std::int64_t k) -> Status {
      const auto bytes = operand_bytes(p.d_layout, rows, k, padding);
      auto codes = Memory::allocate(backend_, bytes.codes * entries_.d);
      if (!codes.ok()) return codes.status();
      auto scales = Memory::allocate(backend_, bytes.scales * entries_.d);
      if (!scales.ok()) return scales.status();
      to.data = std::move(*codes);
      to.scales = std::move(*scales);
      to.tensor = packed_operand(p.d_layout, rows, k, padding, to.data.data(), to.scales.data());
      return {};
    };
    const bool columns_only = p.copies == Copies::columns;
    const auto across = columns();
    if (auto status = columns_only ? make(d_memory_, across, s.m) : make(d_memory_, s.m, across);
        !status.ok())
      return status;
    return p.copies == Copies::both ? make(d2_memory_, across, s.m) : Status{};
  }
  const std::int64_t columns = this->columns();
  result_ld_ =
      spec_.rows == Rows::wider ? round_up(columns, kExtraColumns) + kExtraColumns : columns;
  auto memory = Memory::allocate(backend_, entries_.d * s.m * result_ld_ * bytes_of(p.d_type));
  if (!memory.ok()) return memory.status();
  d_memory_.data = std::move(*memory);
  d_memory_.tensor = dense_matrix(s.m, columns, d_memory_.data.data());
  d_memory_.tensor.ld = result_ld_;
  d_memory_.tensor.batch_stride = s.m * result_ld_;
  return {};
}

Result<qt_args> Instance::arguments(const Executable& executable) {
  const Problem& p = spec_.problem;
  qt_args args{};
  args.m = spec_.sizes.m;
  args.n = spec_.sizes.n;
  args.k = spec_.sizes.k;
  args.batch = entries_.d;
  args.groups = spec_.sizes.groups;
  args.group_sizes = static_cast<const int*>(group_memory_.data());
  auto a = operand(a_, p.a_type, executable.a_layout(), 0, a_packed_);
  if (!a.ok()) return a.status();
  args.a = *a;
  if (!b_.entries.empty()) {
    auto b = operand(b_, p.b_type, executable.b_layout(), 1, b_packed_);
    if (!b.ok()) return b.status();
    args.b = *b;
  }
  if (auto status = allocate_result(executable); !status.ok()) return status;
  args.c = c_memory_.tensor;
  args.d = d_memory_.tensor;
  args.d2 = d2_memory_.tensor;
  args.z = z_memory_.tensor;
  args.aux = aux_memory_.tensor;
  args.bias = bias_memory_.data();
  args.norm_weight = norm_memory_.data();
  args.epsilon = InstanceKeys::epsilon;
  args.bias_gradient = static_cast<float*>(sums_memory_.data());
  args.alpha = spec_.alpha;
  args.beta = c_.empty() ? 0 : spec_.beta;
  set_keys(args);
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.bytes();
  return args;
}

const Instance::Stored* Instance::stored_at(const void* data) const {
  for (const Stored* stored :
       {&a_memory_, &b_memory_, &c_memory_, &aux_memory_, &d_memory_, &d2_memory_, &z_memory_})
    if (stored->data.data() == data) return stored;
  for (const auto* packed : {&a_packed_, &b_packed_})
    for (const auto& [layout, stored] : *packed)
      if (stored.data.data() == data) return &stored;
  return nullptr;
}

Result<qt_tensor> Instance::copy_of(const qt_tensor& tensor) {
  qt_tensor out = tensor;
  const Stored* from = tensor.data ? stored_at(tensor.data) : nullptr;
  if (!from) return out;
  Stored copy;
  for (const auto& [source, to] :
       {std::pair(&from->data, &copy.data), {&from->scales, &copy.scales}}) {
    if (!source->data()) continue;
    auto memory = Memory::copy_of(*source);
    if (!memory.ok()) return memory.status();
    *to = std::move(*memory);
  }
  out.data = copy.data.data();
  out.scales = copy.scales.data();
  copies_.push_back(std::move(copy));
  return out;
}

Result<std::vector<qt_args>> Instance::rotated(const Executable& executable, std::size_t copies) {
  auto first = arguments(executable);
  if (!first.ok()) return first.status();
  std::vector<qt_args> out{*first};
  while (out.size() < copies) {
    qt_args next = *first;
    for (qt_tensor* tensor : {&next.a, &next.b, &next.c, &next.aux, &next.d, &next.d2, &next.z}) {
      auto copy = copy_of(*tensor);
      if (!copy.ok()) return copy.status();
      *tensor = *copy;
    }
    out.push_back(next);
  }
  return out;
}

Status Instance::poison() {
  for (Memory* memory : {&workspace_, &d_memory_.data, &d_memory_.scales, &d2_memory_.data,
                         &d2_memory_.scales, &z_memory_.data, &sums_memory_})
    if (memory->data())
      if (auto status = memory->poison(); !status.ok()) return status;
  return {};
}

Status Instance::check_memory(Inputs inputs) const {
  const auto check = [](const Stored& stored, std::string_view name) -> Status {
    if (auto status = stored.data.check_guards(name); !status.ok()) return status;
    return stored.scales.check_guards(name);
  };
  for (const auto& [stored, name] : {std::pair<const Stored*, std::string_view>{&a_memory_, "A"},
                                     {&b_memory_, "B"},
                                     {&c_memory_, "C"},
                                     {&d_memory_, "D"},
                                     {&d2_memory_, "D2"},
                                     {&aux_memory_, "aux"},
                                     {&z_memory_, "z"}})
    if (auto status = check(*stored, name); !status.ok()) return status;
  for (const auto& [layout, stored] : a_packed_)
    if (auto status = check(stored, "quantised A"); !status.ok()) return status;
  for (const auto& [layout, stored] : b_packed_)
    if (auto status = check(stored, "quantised B"); !status.ok()) return status;
  if (auto status = bias_memory_.check_guards("the bias"); !status.ok()) return status;
  if (auto status = norm_memory_.check_guards("the norm's weights"); !status.ok()) return status;
  if (auto status = sums_memory_.check_guards("the sums"); !status.ok()) return status;
  if (auto status = workspace_.check_guards("the workspace"); !status.ok()) return status;
  if (inputs == Inputs::trusted) return {};
  // What the caller gave must be as it was; weights are too large to compare each time.
  for (const auto& [stored, name] :
       {std::pair<const Stored*, std::string_view>{&a_memory_, "A"}, {&c_memory_, "C"}}) {
    if (!stored->data.data()) continue;
    if (auto status = stored->data.read(scratch_); !status.ok()) return status;
    if (fingerprint(scratch_) != stored->fingerprint)
      return Status(Code::rejected, fmt::format("changed its input {}", name));
  }
  return {};
}

Status Instance::result(Outputs& out) const {
  if (auto status = d_memory_.data.read(scratch_); !status.ok()) return status;
  const Problem& p = spec_.problem;
  const std::int64_t columns = this->columns();
  const std::int64_t size = bytes_of(p.d_type), rows = entries_.d * spec_.sizes.m;
  out.type = p.d_type;
  if (result_ld_ == columns) {
    std::swap(out.bytes, scratch_);
    return {};
  }
  out.bytes.resize(static_cast<std::size_t>(rows * columns * size));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* at = scratch_.data() + row * result_ld_ * size;
    std::memcpy(out.bytes.data() + row * columns * size, at,
                static_cast<std::size_t>(columns * size));
    if (auto status = check_gap(at, columns, row); !status.ok()) return status;
  }
  return {};
}

Status Instance::result_rows(const std::vector<std::int64_t>& rows, Outputs& out) const {
  const Problem& p = spec_.problem;
  const std::int64_t columns = this->columns();
  const std::int64_t size = bytes_of(p.d_type);
  out.type = p.d_type;
  out.bytes.resize(static_cast<std::size_t>(entries_.d * columns * size) * rows.size());
  auto* to = out.bytes.data();
  std::vector<unsigned char> line(static_cast<std::size_t>(result_ld_ * size));
  for (std::int64_t batch = 0; batch < entries_.d; ++batch)
    for (const std::int64_t row : rows) {
      const std::int64_t at = (batch * spec_.sizes.m + row) * result_ld_ * size;
      if (auto status = d_memory_.data.read_part(at, line); !status.ok()) return status;
      std::memcpy(to, line.data(), static_cast<std::size_t>(columns * size));
      to += columns * size;
      if (auto status = check_gap(line.data(), columns, row); !status.ok()) return status;
    }
  return {};
}

// What lies between rows belongs to the caller.
Status Instance::check_gap(const unsigned char* line, std::int64_t columns,
                           std::int64_t row) const {
  const std::int64_t size = bytes_of(spec_.problem.d_type);
  for (std::int64_t i = columns * size; i < result_ld_ * size; ++i)
    if (line[i] != 0xff)
      return Status(Code::rejected,
                    fmt::format("wrote beyond the last column of D, in row {}", row));
  return {};
}

Result<Outputs> Instance::pre_activation() const {
  auto bytes = z_memory_.data.read();
  if (!bytes.ok()) return bytes.status();
  return Outputs{side_type(spec_.problem), std::move(*bytes)};
}

Result<Outputs> Instance::sums() const {
  auto bytes = sums_memory_.read();
  if (!bytes.ok()) return bytes.status();
  return Outputs{DType::f32, std::move(*bytes)};
}

Result<Instance::Packed> Instance::packed(int which) const {
  const Stored& from = which == 0 ? d_memory_ : d2_memory_;
  auto codes = from.data.read();
  if (!codes.ok()) return codes.status();
  auto scales = from.scales.read();
  if (!scales.ok()) return scales.status();
  return Packed{std::move(*codes), std::move(*scales)};
}

Result<Instance::Packed> Instance::prepared(std::uint32_t which, Layout layout) const {
  const auto& all = which == 1 ? b_packed_ : a_packed_;
  const auto found = all.find(layout);
  if (found == all.end()) return Status(Code::internal, "no operand was made for this layout");
  auto codes = found->second.data.read();
  if (!codes.ok()) return codes.status();
  auto scales = found->second.scales.read();
  if (!scales.ok()) return scales.status();
  return Packed{std::move(*codes), std::move(*scales)};
}

std::int64_t Instance::traffic_bytes(const Executable& executable) const {
  const Problem& p = spec_.problem;
  const Sizes& s = spec_.sizes;
  const auto operand = [&](DType type, Layout layout, std::int64_t rows) {
    if (type != DType::mxfp4) return rows * s.k * bytes_of(type);
    const auto bytes = operand_bytes(layout, rows, s.k, padding_unit(p));
    return bytes.codes + bytes.scales;
  };
  const auto across = columns();
  std::int64_t bytes = entries_.a * operand(p.a_type, executable.a_layout(), s.m);
  if (p.prologue != Prologue::none) bytes += entries_.a * s.m * (a_.k - s.k) * bytes_of(p.a_type);
  if (p.d_type == DType::mxfp4) {
    const auto copies = p.copies == Copies::both ? 2 : 1;
    const auto packed = operand_bytes(p.d_layout, s.m, across, padding_unit(p));
    bytes += entries_.d * copies * (packed.codes + packed.scales);
  } else {
    bytes += entries_.d * s.m * across * bytes_of(p.d_type);
  }
  if (multiplies(p.op)) {
    bytes += entries_.b * operand(p.b_type, executable.b_layout(), s.n);
    const auto read = (p.accumulate == Accumulate::accumulate ? s.n : 0) +
                      aux_columns(p.epilogue, s.n) +
                      (p.pre_activation == PreActivation::kept ? s.n : 0);
    bytes += entries_.d * s.m * read * bytes_of(side_type(p));
  }
  return bytes;
}

}  // namespace quarterturn
