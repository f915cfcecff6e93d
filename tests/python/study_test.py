"""The study: its report from logs alone, and, where PyTorch is, runs of a tiny model on the CPU."""

import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock
from html.parser import HTMLParser

import support
from quarterturn.study import __main__ as command
from quarterturn.study import arms, report

HAS_TORCH = support.has_torch()
if HAS_TORCH:
    import torch


def write_run(out, arm, seed, losses, validation, probe=None, ms=10.0):
    path = pathlib.Path(out, "runs", f"{arm}-{seed}.jsonl")
    path.parent.mkdir(exist_ok=True)
    header = {"arm": arm, "seed": seed, "recipe": {"name": arm}, "model": "tiny", "shape": {},
              "steps": len(losses), "data": "text <&>", "bytes": 10, "sha256": "0" * 64,
              "device": "CPU", "quarterturn": "0", "torch": "0"}
    lines = [header, *({"step": i, "loss": loss, "norm": 1.0, "ms": ms}
                       for i, loss in enumerate(losses)),
             {"validation": validation, "probe": probe or {}}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


class Tags(HTMLParser):
    VOID = {"meta"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name

    def test_differences_are_paired_by_seed(self):
        for seed, base in ((0, 2.0), (1, 3.0), (2, 1.0)):
            write_run(self.out, "bf16", seed, [base] * 10, base)
            write_run(self.out, "fdw_even", seed, [base] * 10, base + 0.1 + 0.01 * seed)
        runs = report.read(self.out)
        differences, mean, error = report.paired(runs, "fdw_even", "bf16")
        self.assertEqual(len(differences), 3)
        self.assertAlmostEqual(mean, 0.11)
        self.assertAlmostEqual(error, 0.01 / 3**0.5)

    def test_verdicts_claim_no_more_than_the_seeds_say(self):
        claim = arms.Claim("c", "fdw_even", "bf16")

        def judged(differences):
            for path in pathlib.Path(self.out).glob("runs/*"):
                path.unlink()
            for seed, difference in enumerate(differences):
                write_run(self.out, "bf16", seed, [2.0] * 5, 2.0)
                write_run(self.out, "fdw_even", seed, [2.0] * 5, 2.0 + difference)
            return report.verdict(report.read(self.out), claim)

        self.assertEqual(judged([0.1])[0], "not testable at this scale")
        told, why = judged([0.10, 0.11])
        self.assertEqual(told, "consistent with")
        self.assertIn("no significance is claimed", why)
        told, why = judged([0.10, 0.11, 0.12, 0.11])
        self.assertEqual(told, "consistent with")
        self.assertNotIn("significance", why)
        self.assertEqual(judged([-0.10, -0.11])[0], "not consistent with")
        told, why = judged([0.01, -0.02])
        self.assertEqual(told, "not testable at this scale")
        self.assertIn("null result", why)
        self.assertEqual(judged([float("nan"), 0.1])[0], "not testable at this scale")

    def test_the_page_is_whole_and_alone(self):
        for arm, seed, gap in (("bf16", 0, 0), ("bf16", 1, 0), ("fdw_even", 0, 0.02),
                               ("fdw_even", 1, 0.03), ("fd_even", 0, 0.01)):
            write_run(self.out, arm, seed, [5.0 - i / 30 + gap for i in range(60)], 3.0 + gap,
                      {} if arm == "bf16" else {"all": 0.2, "fprop": 0.1})
        self.assertEqual(report.write(self.out), 0)
        text = pathlib.Path(self.out, "report.html").read_text(encoding="utf-8")
        tags = Tags()
        tags.feed(text)
        self.assertEqual(tags.open, [])
        self.assertEqual(tags.seen.count("svg"), 3)
        self.assertEqual(tags.links, [])
        self.assertIn("text &lt;&amp;&gt;", text)
        told = json.loads(pathlib.Path(self.out, "report.json").read_text(encoding="utf-8"))
        self.assertEqual([row["arm"] for row in told["arms"]], ["bf16", "fd_even", "fdw_even"])
        self.assertIn("consistent with", {c["verdict"] for c in told["claims"]})

    def test_unfinished_runs_do_not_count(self):
        path = pathlib.Path(self.out, "runs")
        path.mkdir()
        (path / "bf16-0.jsonl").write_text('{"arm": "bf16", "seed": 0}\n{"step": 0, "loss": 1}\n')
        self.assertEqual(report.write(self.out), 1)

    def test_arms_are_data(self):
        from quarterturn import recipes
        for name, recipe in arms.ARMS.items():
            self.assertEqual(recipes.from_json(recipe.to_json()).name, name)
        for claim in arms.CLAIMS:
            self.assertIn(claim.worse, arms.ARMS)
            self.assertIn(claim.better, arms.ARMS)
        mine = pathlib.Path(self.out, "mine.json")
        mine.write_text('{"name": "mine", "wgrad": {}}', encoding="utf-8")
        self.assertEqual(list(arms.chosen(f"bf16,quartet,{mine}")), ["bf16", "quartet", "mine"])


@unittest.skipUnless(HAS_TORCH, "PyTorch 2.4 or later is not installed")
class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name
        torch.set_num_threads(1)

    def study(self, name, *more):
        words = ["--out", os.path.join(self.out, name), "--model", "tiny", "--device", "cpu",
                 "--jit", "off", "--seeds", "0", "--steps", "20", *more]
        self.assertEqual(command.main(words), 0)
        return report.read(os.path.join(self.out, name))

    def lines(self, name, arm):
        path = pathlib.Path(self.out, name, "runs", f"{arm}-0.jsonl")
        return [{k: v for k, v in json.loads(line).items() if k != "ms"}
                for line in path.read_text(encoding="utf-8").splitlines()]

    def test_loss_falls_and_a_stopped_run_goes_on_with_the_same_bits(self):
        chosen = "bf16,fdw_rht32_sr"
        runs = self.study("whole", "--arms", chosen)
        for arm in chosen.split(","):
            losses = runs[arm][0]["losses"]
            self.assertEqual(len(losses), 20)
            self.assertLess(losses[-1], losses[0] - 1.0)
        self.assertGreater(runs["fdw_rht32_sr"][0]["probe"]["all"], 0.05)
        # Stopped after every step that comes beyond the limit: one step a call.
        for _ in range(3):
            command.main(["--out", os.path.join(self.out, "parts"), "--model", "tiny", "--device",
                          "cpu", "--jit", "off", "--seeds", "0", "--steps", "20", "--arms",
                          "fdw_rht32_sr", "--time-limit", "1e-9"])
        self.study("parts", "--arms", "fdw_rht32_sr")
        self.assertEqual(self.lines("parts", "fdw_rht32_sr"), self.lines("whole", "fdw_rht32_sr"))

    def test_two_ranks_draw_and_learn_as_one_process_does(self):
        import subprocess
        chosen = "bf16,fdw_rht32_sr"
        alone = self.study("alone", "--arms", chosen, "--steps", "8")
        out = os.path.join(self.out, "ranks")
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
             "--master-port", str(20000 + os.getpid() % 20000), "-m", "quarterturn.study",
             "--out", out, "--model",
             "tiny", "--device", "cpu", "--jit", "off", "--seeds", "0", "--steps", "8", "--arms",
             chosen], env={**os.environ, "PYTHONPATH": os.environ["QTURN_PYTHON"]},
            stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        ranks = report.read(out)
        for arm in chosen.split(","):
            for one, two in zip(alone[arm][0]["losses"], ranks[arm][0]["losses"], strict=True):
                self.assertAlmostEqual(one, two, delta=2e-3 * one)
            self.assertAlmostEqual(alone[arm][0]["validation"], ranks[arm][0]["validation"],
                                   delta=0.02)

    def test_a_recipe_can_change_at_a_step(self):
        self.study("plain", "--arms", "bf16", "--steps", "6")
        self.study("switched", "--arms", "bf16", "--steps", "6", "--switch", "3:amd_det_h16")
        plain, switched = self.lines("plain", "bf16"), self.lines("switched", "bf16")
        self.assertEqual(plain[1:4], switched[1:4])
        self.assertNotEqual(plain[4:7], switched[4:7])
        self.assertIn("all", switched[-1]["probe"])

    def test_the_control_cuts_half_of_the_elements_towards_zero(self):
        import mxfp4_reference as reference
        from quarterturn import torch_ops
        from quarterturn.study.control import cut_half
        x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
        codes, scales = torch_ops.quantize(x, torch_ops.noise(seed=3), rounding="sr16")
        cut = cut_half(x, codes, scales)
        before, after = (torch_ops.dequantize(c, scales) for c in (codes, cut))
        kept = torch.arange(96) % 4 < 2
        self.assertTrue(torch.equal(before[:, kept], after[:, kept]))
        self.assertTrue(bool((after.abs() <= x.abs())[:, ~kept].all()))
        unit = torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
        self.assertTrue(bool(((x.abs() - after.abs()) / unit)[:, ~kept].max() < 2))
        grid = torch.tensor(reference.VALUES)
        above = grid[torch.clamp(torch.searchsorted(grid, (after.abs() / unit).contiguous()) + 1,
                                 max=7)]
        self.assertTrue(bool(((x.abs() / unit < above) | (above == 6))[:, ~kept].all()))


@unittest.skipUnless(HAS_TORCH, "needs PyTorch 2.4 or newer")
class ShapesTest(unittest.TestCase):
    def test_a_step_names_its_problems_and_a_missing_program_is_said(self):
        import contextlib
        import io
        from quarterturn import torch_ops
        from quarterturn.study import shapes
        torch_ops.configure("cpu", jit="off")
        given = shapes.parser().parse_args(["--recipe", "te_mxfp4", "--model", "tiny",
                                            "--batch", "1"])
        given.device = "cpu"
        rows = shapes.called(given)
        roles = {role for role in ("fprop", "dgrad", "wgrad")
                 for row in rows
                 if f"role={role}" in row["problem"] and "op=" not in row["problem"]}
        self.assertEqual(roles, {"fprop", "dgrad", "wgrad"})  # gemm is the default op
        with contextlib.redirect_stderr(io.StringIO()) as told:
            with mock.patch.dict(os.environ, PATH=""), mock.patch(
                    "quarterturn._command._candidates", return_value=()):
                self.assertEqual(shapes.main(["--recipe", "te_mxfp4", "--device", "cpu"]), 1)
        self.assertIn("QTURN_PROGRAM", told.getvalue())


@unittest.skipUnless(HAS_TORCH, "needs PyTorch 2.4 or newer")
class TensorsTest(unittest.TestCase):
    """What is told of real tensors, on made-up ones whose answers are known."""

    @classmethod
    def setUpClass(cls):
        from quarterturn import torch_ops
        torch_ops.configure("cpu", jit="off")
        torch.manual_seed(0)
        cls.x = torch.randn(64, 256)

    def test_rotated_values_are_those_that_are_quantised(self):
        from quarterturn.study import tensors
        for signs in ("none", "per_call"):
            turned = tensors.rotated(self.x, 64, signs)
            self.assertAlmostEqual(turned.norm().item(), self.x.double().norm().item(), places=6)
            got = tensors.measure(self.x, tensors.Form(64, signs, "rceil", "rne"), 1)
            self.assertLess(got["error"], 0.02)  # with other signs it would be near 2
        self.assertGreater((tensors.rotated(self.x, 64, "none")
                            - tensors.rotated(self.x, 64, "per_call")).abs().max().item(), 1)

    def test_error_is_bias_and_variance(self):
        from quarterturn.study import tensors
        nearest = tensors.measure(self.x, tensors.Form(0, "none", "rceil", "rne"), 8)
        self.assertAlmostEqual(nearest["error"], 0.0137, delta=0.001)  # numerics of normal numbers
        self.assertEqual(nearest["variance"], 0)
        self.assertAlmostEqual(nearest["shrink"], 0.0135, delta=0.003)
        drawn = tensors.measure(self.x, tensors.Form(0, "none", "rceil", "sr16"), 16)
        self.assertAlmostEqual(drawn["error"], 2 * nearest["error"], delta=0.004)
        self.assertLess(drawn["bias"], 0.002)
        self.assertLess(abs(drawn["shrink"]), 0.003)
        self.assertIsNone(tensors.measure(self.x[:, :96].contiguous(),
                                          tensors.Form(64, "none", "rceil", "rne"), 1))

    def test_windows_count_rows_and_no_blocks_of_zeros(self):
        from quarterturn.study import tensors
        x = torch.ones(4, 256)
        x[0, :32] = 0.0
        x[1, :32] = 2.0 ** -3
        x[2, :32] = 2.0 ** -4
        x[3, :32] = 2.0 ** -40
        self.assertEqual(tensors.windows(x, 0, "none"), {"int8": 0.5, "e5m2": 0.75})


if __name__ == "__main__":
    unittest.main()
