// The command on simulated GPUs: families that never ran on such hardware are proved before they
// serve, planted faults are not served, and what is measured there stays among its own.
#include <cstring>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

/// A home with simulated devices, and no code that a planted fault could be hidden by.
struct SimulatedHome : Home {
  SimulatedHome() {
    set("QTURN_SIMULATORS", std::string(QTURN_SIMULATED_CUDA) + ":" + QTURN_SIMULATED_HIP);
    set("QTURN_CODE_CACHE", (path() / "code").string());
  }
  /// What compilers will read in the place of the first `text` that they meet.
  void plant(const std::string& text, const std::string& other) {
    const auto file = (path() / "mutant").string();
    std::ofstream(file) << "1\x1e" << text << "\x1e" << other;
    set("QTURN_SIMULATED_MUTANT", file);
  }
  bool has_planted() const { return std::filesystem::exists(path() / "mutant.seen"); }
  std::string simulated_database() const { return database() + ".simulated"; }
};

std::vector<std::string> served(const Outcome& outcome) {
  std::vector<std::string> out;
  for (const auto& line : outcome.lines()) out.push_back(line.at("kernel"));
  return out;
}

json explained(const Home& home, std::vector<std::string> command) {
  command.front() = "explain";
  const auto outcome = home.run(command);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  return outcome.lines().at(0);
}

std::map<std::string, std::string> states(const json& answer) {
  std::map<std::string, std::string> out;
  for (const auto& row : answer.at("proof")) out[row.at("family")] = row.at("state");
  return out;
}

}  // namespace

TEST_CASE(
    "simulated: a device proves the families of a product once, and wrong ones do not serve") {
  SimulatedHome home;
  const std::vector<std::string> command{"compile", "--device",    "simulated:sm_100f",
                                         "--shape", "2048x64x256", "--log",
                                         "info",    "--json"};
  const auto before = explained(home, command);
  CHECK(states(before) == std::map<std::string, std::string>{{"cuda_quantize", "unproven"},
                                                             {"cuda_gemm_sm100", "unproven"}});
  const auto first = home.run(command);
  REQUIRE_MESSAGE(first.code == 0, first.err);
  CHECK(served(first).back().starts_with("cuda_gemm_sm100/"));
  CHECK(states(explained(home, command)) ==
        std::map<std::string, std::string>{{"cuda_quantize", "proven here"},
                                           {"cuda_gemm_sm100", "proven here"}});
  const auto admissions =
      rows(home.simulated_database(), "SELECT count(*) FROM trial WHERE kind = 1");
  const auto second = home.run(command);
  REQUIRE(second.code == 0);
  CHECK(served(second) == served(first));
  CHECK(rows(home.simulated_database(), "SELECT count(*) FROM trial WHERE kind = 1") == admissions);

  SimulatedHome other;
  other.plant("keep | step);", "1u);");  // sums begin with what was there
  const auto spoilt = other.run(command);
  REQUIRE_MESSAGE(spoilt.code == 0, spoilt.err);
  CHECK(other.has_planted());
  CHECK(served(spoilt).back().starts_with("cuda_gemm_mma/"));
  CHECK(spoilt.says("cuda_gemm_sm100/1 failed its proof"));
  const auto answer = explained(other, command);
  CHECK(states(answer).at("cuda_gemm_mma") == "proven here");
  CHECK(answer.at("held_back").at("plan").get<std::string>().find("cuda_gemm_sm100") !=
        std::string::npos);
}

TEST_CASE("simulated: kernels that crash or hang cost a child, and no other family: no answer") {
  const std::tuple<const char*, const char*, const char*> faults[] = {
      {"sm_120f", "__builtin_trap();", "crashed"},
      {"gfx950", "for (volatile int i = 0; i == 0;) {}", "hung"}};
  for (const auto& [target, fault, reason] : faults) {
    INFO(target);
    SimulatedHome home;
    home.set("QTURN_PROOF_SECONDS", "2");
    home.plant("QT_FN void quantize(const Config&, const qt_args& args) {",
               "QT_FN void quantize(const Config&, const qt_args& args) { " + std::string(fault));
    const auto outcome = home.run({"compile", "--device", "simulated:" + std::string(target),
                                   "--op", "quantize", "--shape", "40x64", "--json"});
    CHECK(home.has_planted());
    CHECK(outcome.code == 1);
    CHECK_MESSAGE(outcome.says("failed its proof on this device"), outcome.err);
    CHECK(rows(home.simulated_database(), "SELECT reason FROM quarantine") ==
          std::vector<std::string>{std::string(reason) == "crashed" ? "3" : "4"});
  }
}

TEST_CASE("simulated: codes that a product leaves are held against its own binary32 result") {
  SimulatedHome home;
  // Rows of every tile draw as the first tile's.
  home.plant("noise_position(y, column, args.row0, 0, columns)",
             "noise_position(row, column, args.row0, 0, columns)");
  const auto outcome = home.run(
      {"compile", "--device", "simulated:sm_120f", "--json", "--problem",
       "op=gemm_quantize role=fprop m=1..32 n=64 k=64 a_type=bf16 b_type=bf16 d_type=mxfp4 "
       "d_layout=128x4 rotation=32 d_rounding=sr16"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(home.has_planted());
  CHECK_MESSAGE(outcome.says("cuda_gemm_sm120/1 failed its proof"), outcome.err);
  CHECK(outcome.says("of its own binary32 result"));
  CHECK(!outcome.says("code at row 0,"));
  CHECK(served(outcome).back().starts_with("cuda_quantize/"));
}

TEST_CASE("simulated: a self-test tells apart what hardware may do with random bits") {
  const auto weights = [](const std::string& target, const std::string& as) {
    SimulatedHome home;
    home.set("QTURN_SIMULATED_ROUNDING", as);
    const auto file = (home / "answers.json").string();
    const auto asked = home.run(
        {"selftest", "--device", "simulated:" + target, "--questions", "-o", file, "--json"});
    REQUIRE_MESSAGE(asked.code == 0, asked.err);
    const auto report = json::parse(read_file(file));
    REQUIRE(report.at("questions").size() == 1);
    const auto& answer = report.at("questions").at(0);
    REQUIRE_MESSAGE(answer.at("state") == "answered", answer.at("state"));
    // Eight hexadecimal digits a word.
    const auto records = answer.at("inputs").get<std::string>().size() / 40;
    CHECK(records > 22 * 33);
    CHECK(answer.at("results").get<std::string>().size() ==
          8 * records * answer.at("result_words").get<std::size_t>());
    return answer.at("weights");
  };
  // The seed's highest bit is half a step by AMD's reference; by reports a quarter.
  CHECK(weights("gfx950", "documented").at("x").at("31") == 1);
  const auto lower = weights("gfx950", "lower");
  CHECK(lower.at("x").at("31") == 2);
  CHECK(lower.at("y") == lower.at("x"));
  CHECK(lower.at("x").size() == 21);
  // Eight bits an element: of a and f the highest and the lowest bytes, or each other's halves.
  const auto by_manual = weights("sm_100f", "documented");
  CHECK(by_manual.at("a").at("31") == 1);
  CHECK(by_manual.at("f").at("7") == 1);
  CHECK(by_manual.at("f").at("0") == 8);
  CHECK(by_manual.at("f").size() == 8);
  const auto swapped = weights("sm_100f", "swapped");
  CHECK(swapped.at("a").at("15") == 1);
  CHECK(swapped.at("f").at("23") == 1);
}

TEST_CASE("simulated: a rounding of hardware serves after a proof only, and never as another") {
  const auto command = [](const std::string& target, const std::string& rounding) {
    return std::vector<std::string>{
        "compile", "--device", "simulated:" + target, "--op",   "quantize",
        "--shape", "40x64",    "--rounding",          rounding, "--json"};
  };
  {
    SimulatedHome home;
    const auto proved = home.run(command("gfx950", "sr_cvt_scalef32"));
    REQUIRE_MESSAGE(proved.code == 0, proved.err);
    CHECK(served(proved).front().starts_with("hip_quantize_cvt_scalef32/"));
    CHECK(states(explained(home, command("gfx950", "sr_cvt_scalef32")))
              .at("hip_quantize_cvt_scalef32") == "proven here");
    // What a proof of software's rounding says counts for itself alone.
    CHECK(states(explained(home, command("gfx950", "sr16"))).at("hip_quantize") == "unproven");
    const auto elsewhere = home.run(command("gfx950", "sr_cvt_rs"));
    CHECK(elsewhere.code != 0);
    CHECK_MESSAGE(elsewhere.says("sm_100a and sm_103a"), elsewhere.err);
  }
  {
    // Not even who asks for unproven families gets it.
    SimulatedHome home;
    home.set("QTURN_UNPROVEN", "serve");
    home.set("QTURN_SIMULATED_ROUNDING", "lower");  // as reports have it
    const auto other = home.run(command("gfx950", "sr_cvt_scalef32"));
    CHECK(other.code == 1);
    CHECK(served(other).empty());
    CHECK_MESSAGE(other.says("v_cvt_scalef32_sr_pk_fp4_f32 takes element 0"), other.err);
    CHECK(other.says("qturn selftest --questions"));
    const auto again = home.run(command("gfx950", "sr_cvt_scalef32"));
    CHECK(again.code == 1);
    CHECK_MESSAGE(again.says("is in quarantine on this device"), again.err);

    // What the operator sees of it, and how it is lifted.
    const auto made = home.simulated_database();
    const auto listed = home.run({"db", "proofs", "--db", made, "--json"});
    REQUIRE_MESSAGE(listed.code == 0, listed.err);
    CHECK(listed.lines().at(0).at("subject") == "hip_quantize_cvt_scalef32/1");
    CHECK(listed.lines().at(0).at("state") == "wrong");
    const auto doctor = home.run({"doctor", "--db", made, "--json"});
    CHECK_MESSAGE(doctor.says("qturn db proofs --lift hip_quantize_cvt_scalef32/1"), doctor.out);
    const auto lift = [&](const std::string& name, const std::string& target) {
      return home.run({"db", "proofs", "--db", made, "--lift", name, "--target", target, "--json"});
    };
    CHECK(lift("hip_quantize", "gfx950").code == 1);
    CHECK(lift("hip_quantize_cvt_scalef32", "sm_100a").code == 1);
    home.set("QTURN_SIMULATED_ROUNDING", "documented");  // say, by new microcode
    CHECK(home.run(command("gfx950", "sr_cvt_scalef32")).code == 1);
    const auto lifted = lift("hip_quantize_cvt_scalef32", "gfx950");
    CHECK_MESSAGE(lifted.code == 0, lifted.err);
    CHECK(lifted.lines().at(0).at("reason") == "wrong");
    const auto proved = home.run(command("gfx950", "sr_cvt_scalef32"));
    CHECK_MESSAGE(proved.code == 0, proved.err);
    const auto now = home.run({"db", "proofs", "--db", made, "--json"});
    CHECK(now.lines().at(0).at("state") == "proven");
  }
  {
    SimulatedHome home;
    const auto refused = home.run(command("sm_100f", "sr_cvt_rs"));
    CHECK(refused.code == 2);
    CHECK_MESSAGE(refused.says("QTURN_TARGET=sm_100a"), refused.err);
    home.set("QTURN_TARGET", "sm_100a");
    home.set("QTURN_SIMULATED_ROUNDING", "swapped");
    const auto other = home.run(command("sm_100f", "sr_cvt_rs"));
    CHECK(other.code == 1);
    CHECK_MESSAGE(other.says("cvt.rs.satfinite.e2m1x4.f32 takes element"), other.err);
  }
  SimulatedHome home;
  home.set("QTURN_UNPROVEN", "refuse");
  const auto refused = home.run(command("gfx950", "sr_cvt_scalef32"));
  CHECK(refused.code == 1);
  CHECK_MESSAGE(refused.says("rounding sr16 instead of sr_cvt_scalef32 runs everywhere"),
                refused.err);
}

TEST_CASE("simulated: the tuner goes all the way, and its timings enter no real database") {
  SimulatedHome home;
  for (const std::string target : {"sm_90a", "sm_100f", "sm_120f", "gfx950"}) {
    INFO(target);
    const auto tuned = home.run({"tune", "--device", "simulated:" + target, "--op", "quantize",
                                 "--shape", "4x64", "--candidates", "1", "--json"});
    REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
    const auto answer = tuned.lines().at(0).at("answer").get<std::string>();
    CHECK_MESSAGE((answer == "tuned" || answer == "default"), answer);
  }
  CHECK(!std::filesystem::exists(home.database()));
  const auto made = home.simulated_database();
  CHECK(rows(made, "SELECT count(DISTINCT target) FROM env WHERE class LIKE 'simulated %'") ==
        std::vector<std::string>{"4"});
  CHECK(rows(made, "SELECT count(*) FROM env WHERE class NOT LIKE 'simulated %'") ==
        std::vector<std::string>{"0"});
  CHECK(rows(made, "SELECT count(*) FROM winner") == std::vector<std::string>{"4"});

  // Products, too: by their matrix cores, and with a default whose blocks share a long K.
  const std::string products = (home / "products.db").string();
  const std::tuple<std::string, std::string, std::string, std::string> cases[] = {
      {"gfx950", "m=4 n=32 k=64", "2", "hip_gemm_mfma_scale/"},
      {"sm_120f", "m=4 n=32 k=2048", "2", "cuda_gemm_sm120/"},
      {"sm_100f", "m=4 n=32 k=64", "1", "cuda_gemm_"},
      {"sm_90a", "m=4 n=32 k=64", "1", "cuda_gemm_"}};
  for (const auto& [target, sizes, candidates, family] : cases) {
    INFO(target);
    const auto tuned =
        home.run({"tune", "--device", "simulated:" + target, "--db", products, "--problem",
                  "op=gemm role=fprop " + sizes + " a_type=mxfp4 b_type=mxfp4 d_type=bf16",
                  "--candidates", candidates, "--json"});
    REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
    const auto line = tuned.lines().at(0);
    const auto answer = line.at("answer").get<std::string>();
    CHECK_MESSAGE((answer == "tuned" || answer == "default"), answer);
    const auto plan = line.at("plan").get<std::string>();
    CHECK_MESSAGE(plan.starts_with("gemm=" + family), plan);
    CHECK(line.at("tried") == std::stoi(candidates));
  }
  CHECK(rows(products + ".simulated",
             "SELECT count(*) FROM env WHERE class NOT LIKE 'simulated %'") ==
        std::vector<std::string>{"0"});
  CHECK(rows(products + ".simulated", "SELECT count(*) FROM winner") ==
        std::vector<std::string>{"4"});
  CHECK(rows(products + ".simulated", "SELECT count(*) FROM variant WHERE text LIKE '%splits=%'") !=
        std::vector<std::string>{"0"});

  // Neither a merge nor an import makes a winner of them.
  const auto merged = home.run({"db", "merge", made, "--json"});
  REQUIRE_MESSAGE(merged.code == 0, merged.err);
  CHECK(merged.lines().at(0).at("new_trials") == 0);
  CHECK(merged.lines().at(0).at("decided") == 0);
  CHECK(merged.says("trials of simulated devices were left out"));
  const auto text = (home / "made.json").string();
  std::ofstream(text) << home.run({"db", "export", "-", "--db", made}).out;
  const auto imported = home.run({"db", "import", text});
  CHECK_MESSAGE(imported.code == 0, imported.err);
  CHECK(home.info("trials") == 0);
  CHECK(home.info("winners") == 0);
  CHECK(home.info("quarantined") == 0);
}
