#include "runtime/metrics.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/version.hpp"

namespace quarterturn {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

enum class Kind { counter, gauge };

// In a label's value: what would end it, or the line.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// Families of samples, one after the other, each of all contexts.
class Exposition {
 public:
  explicit Exposition(std::span<Context* const> contexts) : contexts_(contexts) {
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      const auto& device = contexts[i]->backend().device();
      Labels labels{{"backend", std::string(backend_name(device.target.vendor))},
                    {"device", fmt::format("{}", device.ordinal)}};
      if (contexts.size() > 1) labels.emplace_back("context", fmt::format("{}", i));
      labels_.push_back(std::move(labels));
    }
  }

  /// `samples` calls `add(labels, value)` for each sample of one context.
  template <class Samples>
  void family(std::string_view name, Kind kind, std::string_view help, const Samples& samples) {
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help,
                         kind == Kind::counter ? "counter" : "gauge");
    for (std::size_t i = 0; i < contexts_.size(); ++i)
      samples(*contexts_[i], [&](const Labels& more, const auto& value) {
        text_ += name;
        char before = '{';
        for (const Labels* labels : {std::as_const(labels_).data() + i, &more})
          for (const auto& [label, text] : *labels) {
            text_ += fmt::format("{}{}=\"{}\"", before, label, escaped(text));
            before = ',';
          }
        text_ += fmt::format("}} {}\n", value);
      });
  }
  /// One number of each context.
  template <class Value>
  void number(std::string_view name, Kind kind, std::string_view help, const Value& value) {
    family(name, kind, help,
           [&](Context& context, const auto& add) { add(Labels{}, value(context)); });
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string_view backend_name(Vendor vendor) {
    return vendor == Vendor::nvidia ? "cuda" : vendor == Vendor::amd ? "hip" : "cpu";
  }

  std::span<Context* const> contexts_;
  std::vector<Labels> labels_;
  std::string text_;
};

void add_dispatch(Exposition& out) {
  out.family(
      "qturn_prepares_total", Kind::counter,
      "Prepared plans by how their answer matched: exact and bucket were tuned for this, "
      "stale under another version, borrowed elsewhere; heuristic is the default of what "
      "nobody tuned, reference the prebuilt kernel.",
      [](Context& context, const auto& add) {
        const auto& matched = context.statistics().matched;
        for (std::size_t i = 0; i < matched.size(); ++i)
          add(Labels{{"match", std::string(match_name(static_cast<Match>(i)))}}, matched[i].load());
      });
  out.number(
      "qturn_prepare_failures_total", Kind::counter,
      "Prepares of valid problems that gave no plan, misses under the policy error among them.",
      [](Context& context) { return context.statistics().failures.load(); });
  out.number("qturn_runs_total", Kind::counter, "Calls of prepared plans.",
             [](Context& context) { return context.statistics().runs.load(); });
  out.number("qturn_window_fallback_rows_total", Kind::counter,
             "Rows that windowed kernels computed by their exact stand-in, as last read from the "
             "device.",
             [](Context& context) { return context.statistics().window_fallbacks.load(); });
}

void add_misses(Exposition& out) {
  out.number("qturn_untuned_calls_total", Kind::counter,
             "Calls served without a valid decision (stale, borrowed, heuristic, reference) or "
             "refused; a prepared plan counts at least once.",
             [](Context& context) { return context.miss_totals().calls; });
  out.number("qturn_untuned_seconds_total", Kind::counter,
             "Time of those calls by a rough estimate: what tuning could shorten.",
             [](Context& context) { return context.miss_totals().seconds; });
}

void add_code(Exposition& out) {
  out.number("qturn_compiles_total", Kind::counter, "Kernels compiled.",
             [](Context& context) { return context.statistics().compiles.load(); });
  out.number("qturn_code_hits_total", Kind::counter, "Kernels found compiled in the code cache.",
             [](Context& context) { return context.statistics().code_hits.load(); });
  out.number("qturn_quarantined_total", Kind::counter,
             "Plans put in quarantine because they did not compile or load.",
             [](Context& context) { return context.statistics().quarantined.load(); });
}

void add_snapshots(Exposition& out) {
  out.family("qturn_build_info", Kind::gauge, "The library's version and the device's target.",
             [](Context& context, const auto& add) {
               add(Labels{{"version", std::string(kVersion)},
                          {"target", context.backend().device().target.key()}},
                   1);
             });
  out.family("qturn_snapshot_info", Kind::gauge,
             "SHA-256 of all that prepare goes by: equal on ranks that prepare the same plans.",
             [](Context& context, const auto& add) {
               add(Labels{{"hash", hex(context.snapshot_hash())}}, 1);
             });
  out.family("qturn_snapshot_generation", Kind::gauge,
             "The generation that serves, of each published folder in the order of the snapshots.",
             [](Context& context, const auto& add) {
               int place = 0;
               for (const auto& layer : context.layers())
                 if (layer.generation > 0)
                   add(Labels{{"snapshot", fmt::format("{}", place++)}}, layer.generation);
             });
  out.number("qturn_stored_answers", Kind::gauge, "Stored answers that can serve this device.",
             [](Context& context) { return context.table()->size(); });
  out.family("qturn_reloads_total", Kind::counter,
             "Reloads by result: refused ones left everything as it was.",
             [](Context& context, const auto& add) {
               const auto& counts = context.statistics();
               add(Labels{{"result", "changed"}}, counts.reloads_changed.load());
               add(Labels{{"result", "unchanged"}}, counts.reloads_unchanged.load());
               add(Labels{{"result", "refused"}}, counts.reloads_refused.load());
             });
}

}  // namespace

std::string metrics_text(std::span<Context* const> contexts) {
  Exposition out(contexts);
  add_dispatch(out);
  add_misses(out);
  add_code(out);
  add_snapshots(out);
  return out.take();
}

}  // namespace quarterturn
