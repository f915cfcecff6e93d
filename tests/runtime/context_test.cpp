// The way from a problem to a plan, on a made-up device with a made-up database.
#include "tests/runtime/made_up_device.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

TEST_CASE("context.a stored winner is served as what it is: exact, bucket, stale, borrowed") {
  Setup setup;
  const auto context = setup.make();
  const auto second = plan_number(problem(), 1);
  store_winner(*context, problem(), second);
  // Not seen before a reload: the table is immutable.
  CHECK((*context->prepare(problem()))->match() == Match::heuristic);
  REQUIRE(context->reload(Reload::replace).ok());
  const auto exact = *context->prepare(problem());
  CHECK(exact->match() == Match::exact);
  CHECK(exact->place() == "database");
  CHECK(served(*exact) == second.text());
  CHECK((*context->prepare(problem(4, 4)))->match() == Match::bucket);
  CHECK((*context->prepare(problem(17, 20)))->match() == Match::borrowed);

  const auto stale = setup.make([](MadeUp& device) { device.info.compiler = "made-up 2.0"; });
  CHECK((*stale->prepare(problem()))->match() == Match::stale);
  CHECK(served(**stale->prepare(problem())) == second.text());
  const auto borrowed = setup.make(
      [](MadeUp& device) { device.info.performance_class = "cpu model=made-up units=64"; });
  CHECK((*borrowed->prepare(problem()))->match() == Match::borrowed);
  const auto foreign =
      setup.make([](MadeUp& device) { device.info.target = *parse_target("x86-64-v3"); });
  CHECK((*foreign->prepare(problem()))->match() == Match::heuristic);
}

TEST_CASE("context.the environment does not depend on what was asked") {
  Setup one, other;
  const auto products = one.make(), copies = other.make();
  Problem quantize;
  quantize.op = Op::quantize;
  quantize.m = {1, 16};
  quantize.k = Extent::exactly(4096);
  quantize.a_type = DType::bf16;
  quantize.d_type = DType::mxfp4;
  CHECK(products->prepare(problem()).ok());
  CHECK(copies->prepare(quantize).ok());
  CHECK(products->env() == copies->env());
  CHECK(products->env().hash() == copies->env().hash());
  // Nor does either take the other's answers away.
  store_winner(*products, problem(), plan_number(problem(), 1));
  store_winner(*products, quantize, plan_number(quantize, 0));
  REQUIRE(products->reload(Reload::replace).ok());
  CHECK((*products->prepare(problem()))->match() == Match::exact);
  CHECK((*products->prepare(quantize))->match() == Match::exact);
}

TEST_CASE("context.reload changes later prepares only") {
  Setup setup;
  const auto context = setup.make();
  const auto before = *context->prepare(problem());
  store_winner(*context, problem(), plan_number(problem(), 2));
  REQUIRE(context->reload(Reload::replace).ok());
  CHECK(before->match() == Match::heuristic);
  CHECK(served(*before) == plan_number(problem(), 0).text());
  CHECK(served(**context->prepare(problem())) == plan_number(problem(), 2).text());
}

TEST_CASE("context.a stored plan that does not compile here is quarantined, and the next serves") {
  Setup setup;
  {
    const auto context = setup.make();
    store_winner(*context, problem(), plan_number(problem(), 1));
    store_winner(*context, problem(1, 64), plan_number(problem(), 2));
  }
  const auto broken = plan_number(problem(), 1);
  const auto context = setup.make(
      [&](MadeUp& device) { device.refused_words.insert(broken.steps.back().variant.text()); });
  const auto plan = *context->prepare(problem());
  CHECK(plan->match() == Match::bucket);
  CHECK(served(*plan) == plan_number(problem(), 2).text());
  CHECK(context->statistics().quarantined == 1);
  CHECK(setup.said("quarantine") == 1);
  // Once is enough: neither this context nor another tries it again.
  CHECK((*context->prepare(problem()))->match() == Match::bucket);
  CHECK(context->statistics().quarantined == 1);
  const auto other = setup.make();
  CHECK((*other->prepare(problem()))->match() == Match::bucket);
  // Another compiler gives it another chance.
  const auto newer = setup.make([](MadeUp& device) { device.info.compiler = "made-up 2.0"; });
  CHECK(served(**newer->prepare(problem())) == broken.text());
}

TEST_CASE("context.what is not the plan's fault quarantines nothing") {
  for (const auto code : {Code::no_compiler, Code::io_error, Code::disk_full, Code::busy}) {
    Setup setup;
    const auto context = setup.make([code](MadeUp& device) {
      device.refused_words.insert("struct Config");
      device.refusal = code;
    });
    const auto plan = context->prepare(problem());
    REQUIRE(plan.ok());
    CHECK((*plan)->match() == Match::reference);
    CHECK(context->statistics().quarantined == 0);
    CHECK(context->database().quarantine()->empty());
  }
}

TEST_CASE("context.stored rows of families that changed are passed over") {
  Setup setup;
  const auto context = setup.make();
  auto old = plan_number(problem(), 0);
  old.steps.back().variant.revision += 1;
  store_winner(*context, problem(), old);
  auto gone = plan_number(problem(), 0);
  gone.steps.back().variant.family = "cpu_retired";
  store_winner(*context, problem(1, 64), gone);
  REQUIRE(context->reload(Reload::replace).ok());
  CHECK((*context->prepare(problem()))->match() == Match::heuristic);
}

TEST_CASE("context.misses are counted in the database, winners are not") {
  Setup setup;
  {
    const auto context = setup.make();
    const auto missed = *context->prepare(problem());
    for (int i = 0; i < 5; ++i) missed->count_run();
    (void)context->prepare(problem(1, 64));
    store_winner(*context, problem(1, 2), plan_number(problem(), 0));
    REQUIRE(context->reload(Reload::replace).ok());
    (void)context->prepare(problem(1, 2));
    context->flush_misses();
    for (int i = 0; i < 3; ++i) missed->count_run();
  }
  const auto context = setup.make();
  const auto misses =
      context->database().misses(context->env().target, context->env().performance_class);
  REQUIRE(misses.ok());
  std::map<std::string, std::int64_t> calls;
  for (const auto& miss : *misses) {
    calls[miss.problem] = miss.calls;
    CHECK(miss.ns > 1000 * miss.calls);
  }
  CHECK(calls.count(problem(1, 2).key()) == 0);
  CHECK(calls[problem(1, 64).key()] == 1);
  // Those before and after the first count, and those of a plan that has ended.
  CHECK(calls[problem().key()] == 8);
  CHECK(misses->front().problem == problem().key());
}

TEST_CASE("context.what is refused or answered stale is counted, and ends with its answer") {
  Setup setup;
  setup.variables["QTURN_ON_MISS"] = "error";
  const auto context = setup.make();
  const Env& env = context->env();
  CHECK(context->prepare(problem()).status().code() == Code::miss);
  store_winner(*context, problem(1, 64), plan_number(problem(), 1),
               [](Env& other) { other.compiler = "made-up 0.9"; });
  REQUIRE(context->reload(Reload::replace).ok());
  CHECK((*context->prepare(problem(1, 64)))->match() == Match::stale);
  context->wait_for_background();
  context->flush_misses();
  auto& database = context->database();
  REQUIRE(database.misses(env.target, env.performance_class)->size() == 1);
  CHECK(database.misses(env.target, env.performance_class)->front().problem == problem().key());
  CHECK(database.servings(env.target, env.performance_class)->size() == 2);
  REQUIRE(database.clear_misses(problem().key(), env.target, env.performance_class).ok());
  CHECK(database.misses(env.target, env.performance_class)->empty());
  CHECK(database.servings(env.target, env.performance_class)->size() == 1);
}

TEST_CASE("context.the miss policy background leaves plans in use as they are") {
  Setup setup;
  setup.variables["QTURN_ON_MISS"] = "background";
  const auto context = setup.make();
  const auto first = *context->prepare(problem());
  const auto* const executable = &first->executable();
  CHECK(first->match() == Match::reference);
  context->wait_for_background();
  CHECK(setup.device->compiled.size() == 1);
  CHECK(first->match() == Match::reference);
  CHECK(&first->executable() == executable);
  const auto second = *context->prepare(problem());
  CHECK(second->match() == Match::heuristic);
  CHECK(setup.device->compiled.size() == 1);
}

namespace {

LockFile lock_of(const Problem& p, const Plan& plan) {
  const auto target = *parse_target("x86-64-v4:avx512_vnni");
  return {"0.0.1", target.key(), {{p.key(), {plan, *code_digest(p, target, plan)}}}};
}

}  // namespace

TEST_CASE("context.a lock file decides alone, and refuses what it does not name") {
  Setup setup;
  store_winner(*setup.make(), problem(), plan_number(problem(), 1));
  const auto lock = lock_of(problem(), plan_number(problem(), 2));
  setup.variables["QTURN_LOCK"] = setup.folder.write("tuning.lock", lock.text());
  const auto context = setup.make();
  const auto plan = *context->prepare(problem());
  CHECK(served(*plan) == plan_number(problem(), 2).text());
  CHECK(plan->match() == Match::exact);
  for (const auto& other : {problem(1, 8), problem(1, 64)}) {
    const auto refused = context->prepare(other).status();
    CHECK(refused.code() == Code::not_locked);
    CHECK(refused.message().find("does not name it") != std::string::npos);
    CHECK(context->explain(other).find("does not name it") != std::string::npos);
  }
  const auto elsewhere =
      setup.make([](MadeUp& device) { device.info.target = *parse_target("x86-64-v3"); });
  CHECK(elsewhere->prepare(problem()).status().code() == Code::not_locked);
}

TEST_CASE("context.a lock file of other kernel text, or changed by hand, is refused") {
  Setup setup;
  auto lock = lock_of(problem(), plan_number(problem(), 1));
  lock.plans.begin()->second.code[0] ^= 1;
  setup.variables["QTURN_LOCK"] = setup.folder.write("tuning.lock", lock.text());
  const auto refused = setup.make()->prepare(problem()).status();
  CHECK(refused.code() == Code::not_locked);
  CHECK(refused.message().find("other kernel text") != std::string::npos);

  const auto reason = [&](const std::string& text) {
    return parse_lock(text, "x.lock").status().message();
  };
  auto text = lock.text();
  CHECK(parse_lock(text, "x.lock")->plans == lock.plans);
  text.replace(text.find("m=1..16"), 7, "m=1..99");
  CHECK(reason(text).find("somebody changed it") != std::string::npos);
  CHECK(reason("[]").find("not a JSON object") != std::string::npos);
  CHECK(reason("{\"quarterturn_lock\": 2}").find("format 2") != std::string::npos);
  CHECK(reason("{\"quarterturn_lock\": 1, \"plans\": [3]}").find("without its problem") !=
        std::string::npos);
}

TEST_CASE("context.the snapshot hash is that of what is served, not of who stored it when") {
  Setup a, b;
  const auto first = a.make(), second = b.make();
  const auto empty = first->snapshot_hash();
  CHECK(empty == second->snapshot_hash());
  store_winner(*first, problem(), plan_number(problem(), 1));
  store_winner(*first, problem(1, 64), plan_number(problem(), 2));
  store_winner(*second, problem(1, 64), plan_number(problem(), 2));
  store_winner(*second, problem(), plan_number(problem(), 1));
  REQUIRE(first->reload(Reload::replace).ok());
  CHECK(first->snapshot_hash() != empty);
  CHECK(second->snapshot_hash() == empty);
  REQUIRE(second->reload(Reload::replace).ok());
  CHECK(first->snapshot_hash() == second->snapshot_hash());
  store_winner(*second, problem(), plan_number(problem(), 3));
  REQUIRE(second->reload(Reload::replace).ok());
  CHECK(first->snapshot_hash() != second->snapshot_hash());
  a.variables["QTURN_LOCK"] =
      a.folder.write("tuning.lock", lock_of(problem(), plan_number(problem(), 1)).text());
  CHECK(a.make()->snapshot_hash() != first->snapshot_hash());
}

TEST_CASE("context.snapshots answer after the local database") {
  Setup setup;
  const auto snapshot = setup.folder.file("site.snapshot");
  {
    const auto maker = setup.make();
    store_winner(*maker, problem(), plan_number(problem(), 1));
    store_winner(*maker, problem(1, 64), plan_number(problem(), 2));
    REQUIRE(maker->database().export_snapshot(snapshot).ok());
    REQUIRE(maker->database()
                .remove_winner(problem(1, 64).key(), maker->env().target,
                               maker->env().performance_class)
                .ok());
    store_winner(*maker, problem(), plan_number(problem(), 3));
  }
  setup.variables["QTURN_SNAPSHOTS"] = snapshot;
  const auto context = setup.make();
  const auto local = *context->prepare(problem());
  CHECK(local->place() == "database");
  CHECK(served(*local) == plan_number(problem(), 3).text());
  const auto site = *context->prepare(problem(1, 64));
  CHECK(site->place() == snapshot);
  CHECK(site->match() == Match::exact);
}

TEST_CASE("context.the same plan is compiled once, and stays loaded") {
  Setup setup;
  const auto context = setup.make();
  const auto first = &(*context->prepare(problem()))->executable();
  const auto count = setup.device->compiled.size();
  CHECK(&(*context->prepare(problem()))->executable() == first);
  CHECK(setup.device->compiled.size() == count);
}

TEST_CASE("context.disabled families are not used, stored or not") {
  Setup setup;
  {
    const auto context = setup.make();
    store_winner(*context, problem(), plan_number(problem(), 1));
  }
  setup.variables["QTURN_DISABLE"] = "cpu_gemm";
  const auto context = setup.make();
  const auto refused = context->prepare(problem());
  CHECK(refused.status().code() == Code::not_supported);
  CHECK(context->explain(problem()).find("disabled") != std::string::npos);
}
