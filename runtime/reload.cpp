// Context: newer answers in the place of older ones, while others prepare and run.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "runtime/context.hpp"

namespace quarterturn {
namespace {

// Of the first published folder; 0 when there is none.
std::int64_t generation_of(const std::vector<LayerRead>& layers) {
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [](const LayerRead& layer) { return layer.generation > 0; });
  return found == layers.end() ? 0 : found->generation;
}

}  // namespace

LoadedLayers Context::load(const std::vector<LayerRead>& before) {
  auto out = load_layers(
      *database_,
      {settings_.text(Setting::pins), settings_.list(Setting::snapshots),
       bundle_ ? bundle_->database_path() : std::string(), settings_.list(Setting::snapshot_keys)},
      env_, before);
  say(database_->take_notes());
  say(store_->take_notes());
  return out;
}

std::vector<LayerRead> Context::layers() const {
  const std::lock_guard lock(mutex_);
  return layers_;
}

std::optional<Context::Served> Context::held_answer(const Problem& problem) const {
  const std::lock_guard lock(mutex_);
  const auto found = served_.find(problem.key());
  if (found == served_.end() || !found->second.held) return std::nullopt;
  return found->second;
}

bool Context::remember(const std::shared_ptr<const LookupTable>& table, const Problem& problem,
                       const Served& served) {
  const std::lock_guard lock(mutex_);
  if (table_.load() != table) return false;
  // The prebuilt kernel only stands in for what is compiled meanwhile.
  if (served.match != Match::reference) served_[problem.key()] = served;
  return true;
}

bool Context::stays(const Served& served, const LookupTable& old, const LookupTable& fresh) {
  const Problem& problem = served.executable->problem();
  const auto now = choose_from(fresh, problem);
  if (!now.ok()) return false;
  if (now->plan == served.executable->plan()) return true;
  // What was served need not be the first choice, where that one could not be had.
  const auto before = choose_from(old, problem);
  return !served.held && before.ok() && before->plan == now->plan;
}

void Context::sort_out_served(const std::map<const Executable*, bool>& known,
                              const LookupTable& old, const LookupTable& fresh, Reload mode,
                              Reloaded& out) {
  for (auto at = served_.begin(); at != served_.end();) {
    Served& served = at->second;
    const auto found = known.find(served.executable.get());
    const bool same = found != known.end() ? found->second : stays(served, old, fresh);
    out.prepared_changed += !same;
    served.held = !same && mode == Reload::keep;
    out.prepared_held += served.held;
    at = !same && mode == Reload::replace ? served_.erase(at) : std::next(at);
  }
}

Result<Reloaded> Context::reload(Reload mode) {
  const std::lock_guard one_at_a_time(reloading_);
  const auto before = this->layers();
  auto layers = load(before);
  if (const auto* lost = lost_layer(layers.layers, before)) {
    ++statistics_.reloads_refused;
    return Status(lost->status.code(), fmt::format("{}: {}; what was read before goes on to serve",
                                                   lost->place, lost->status.message()));
  }
  say(layers.notes);
  proofs_->forget();
  const auto fresh = std::make_shared<const LookupTable>(std::move(layers.answers));
  Reloaded out;
  out.before = snapshot_hash();
  out.generation_before = generation_of(before);
  out.generation_after = generation_of(layers.layers);
  out.answers_after = fresh->size();
  const auto old = this->table();
  out.answers_before = old->size();
  out.problems_changed = differing(*old, *fresh);
  // Most of it before the others have to wait.
  std::map<std::string, Served> served;
  {
    const std::lock_guard lock(mutex_);
    served = served_;
  }
  std::map<const Executable*, bool> known;
  for (const auto& [problem, answer] : served)
    known[answer.executable.get()] = stays(answer, *old, *fresh);
  {
    const std::lock_guard lock(mutex_);
    sort_out_served(known, *old, *fresh, mode, out);
    layers_ = std::move(layers.layers);
    table_.store(fresh);
    hash_.reset();
  }
  out.after = snapshot_hash();
  ++(out.before == out.after ? statistics_.reloads_unchanged : statistics_.reloads_changed);
  log_(LogLevel::info, "reloaded: {} answers, {} problems changed, {} of those prepared here{}",
       out.answers_after, out.problems_changed, out.prepared_changed,
       out.prepared_held > 0 ? " keep theirs" : "");
  return out;
}

}  // namespace quarterturn
