"""What happens to contexts in forked children and at exit: processes of their own, on the CPU."""

import subprocess
import sys
import unittest

import support

support.needs_numpy()

BEGIN = """
import multiprocessing, os, sys, threading
sys.path.insert(0, os.environ["QTURN_PYTHON"])
import numpy, quarterturn
x = numpy.random.default_rng(1).normal(size=(300, 256)).astype("float32")
context = quarterturn.Context(threads=4, {options})
wanted = context.hadamard_gemm(x, x)
"""


class ProcessTest(unittest.TestCase):
    def run_program(self, text, options="jit='off'", code=0):
        out = subprocess.run([sys.executable, "-c", BEGIN.format(options=options) + text],
                             capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual((out.returncode, out.stderr), (code, ""), out.stdout)
        return out.stdout

    def test_forked_workers_use_their_parents_context(self):
        out = self.run_program("""
def work(rows):
    same = (context.hadamard_gemm(x[:rows], x) == wanted[:rows]).all()
    context.prepare(context.problem(op="quantize", m=rows, k=64, a_type="f32", d_type="mxfp4"))
    return bool(same)
with multiprocessing.get_context("fork").Pool(3) as pool:
    print(pool.map(work, [1, 17, 300, 64, 299]))
print((context.hadamard_gemm(x, x) == wanted).all())
""")
        self.assertEqual(out, "[True, True, True, True, True]\nTrue\n")

    def test_a_fork_while_other_threads_run_is_survived(self):
        out = self.run_program("""
stop = threading.Event()
def busy():
    while not stop.is_set():
        context.hadamard_gemm(x, x)
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
codes = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        right = (context.hadamard_gemm(x, x) == wanted).all()
        context.close()
        os._exit(7 if right else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
for thread in threads: thread.join()
print(codes)
""")
        self.assertEqual(out, "[7, 7, 7, 7, 7]\n")

    def test_exit_with_everything_in_use_is_quiet(self):
        self.run_program("""
plan = context.prepare(context.problem(op="quantize", m=3, k=64, a_type="f32", d_type="mxfp4"))
mx = context.quantize(x)
keep = [plan, mx, context]
keep.append(keep)
""")

    def test_exit_while_code_is_compiled_in_the_background_ends(self):
        self.run_program("sys.exit(4)", options="miss_policy='background'", code=4)


if __name__ == "__main__":
    unittest.main()
