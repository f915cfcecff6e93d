"""quarterturn.tune and explain: the program qturn as a child process, from Python."""

import os
import pathlib
import signal
import stat
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import support

support.needs_numpy()

import quarterturn
from quarterturn import _command

try:
    PROGRAM = _command.program()
except FileNotFoundError as error:
    support.skip(str(error))


def problem(m=(1, 4)):
    return quarterturn.Context.problem(op="quantize", role="wgrad", m=m, k=64, a_type="f32",
                                       d_type="mxfp4", d_layout="plain")


class TuneTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.options = dict(database=str(self.folder / "a.db"), candidates=1, threads=1)

    def double(self, text):
        """A program in the place of qturn."""
        path = self.folder / "qturn"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return mock.patch.dict(os.environ, QTURN_PROGRAM=str(path))

    def test_a_problem_is_tuned_and_served(self):
        given = problem()
        told = []
        rows = quarterturn.tune(given, progress=told.append, **self.options)
        self.assertEqual([row["key"] for row in rows], [quarterturn.Context.key(given)])
        self.assertIn(rows[0]["answer"], ("tuned", "default"))
        self.assertEqual(rows.failed, [])
        self.assertIn("answer", str(rows).splitlines()[0])
        self.assertIn(rows[0]["answer"], str(rows).splitlines()[1])
        results = [event for event in told if "answer" in event]
        self.assertEqual([(event["done"], event["problems"]) for event in results], [(1, 1)])
        self.assertTrue(any("1 of 1 problems" in event.get("text", "") for event in told))
        with quarterturn.Context(threads=1, database=self.options["database"]) as context:
            self.assertEqual(quarterturn.explain(given, context)["match"], "exact")
            # By keys, and several at once; what is decided is not tried again.
            keys = [quarterturn.Context.key(given), quarterturn.Context.key(problem((5, 8)))]
            self.assertEqual(context.key(context.parse(keys[1])), keys[1])
            self.assertNotEqual(quarterturn.explain(keys[1], context)["match"], "exact")
            again = quarterturn.tune(keys, **self.options)
            self.assertEqual(sorted(row["key"] for row in again), sorted(keys))
            self.assertEqual({row["key"]: row["answer"] for row in again}[keys[0]], "cached")
            context.reload()
            self.assertEqual(quarterturn.explain(keys[1], context)["match"], "exact")

    def test_what_the_program_refuses_is_an_error_with_its_words(self):
        with self.assertRaisesRegex(RuntimeError, "ended with 2: .*op"):
            quarterturn.tune("op=nothing", **self.options)
        with self.assertRaisesRegex(TypeError, "belong to a callable"):
            quarterturn.tune(problem(), 3)
        with mock.patch.dict(os.environ, QTURN_PROGRAM=str(self.folder / "none")):
            with self.assertRaises(FileNotFoundError):
                quarterturn.tune(problem(), **self.options)
        with mock.patch.dict(os.environ, PATH="", QTURN_PROGRAM=""), mock.patch(
                "quarterturn._command._candidates", return_value=()):
            with self.assertRaisesRegex(FileNotFoundError, "name it by QTURN_PROGRAM"):
                quarterturn.tune(problem(), **self.options)

    def test_a_failed_problem_is_a_row(self):
        with self.double("""echo '{"site":"a","layout":"plain"}'
echo '{"problem":"p","layers":"problem 2","answer":"failed","speedup":1}'
echo 'qturn: no memory' >&2; exit 1"""):
            rows = quarterturn.tune([problem(), problem((5, 8))])
        self.assertEqual(rows.failed, [quarterturn.Context.key(problem((5, 8)))])
        self.assertEqual(len(rows), 1)

    def test_an_interrupted_program_is_an_interrupt_here(self):
        with self.double("exit 130"), self.assertRaises(KeyboardInterrupt):
            quarterturn.tune(problem())

    def test_an_error_of_the_caller_stops_the_program_by_an_interrupt(self):
        seen = self.folder / "seen"
        line = '{"problem":"p","layers":"problem 1","answer":"default"}'
        with self.double(f"""trap 'echo interrupted > {seen}; exit 130' INT
echo '{line}'
i=0; while [ $i -lt 200 ]; do sleep 0.1; i=$((i + 1)); done"""):
            def progress(event):
                raise LookupError("enough")
            begin = time.monotonic()
            with self.assertRaisesRegex(LookupError, "enough"):
                quarterturn.tune(problem(), progress=progress)
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual(seen.read_text(), "interrupted\n")
        self.assertEqual(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        self.assertEqual(threading.active_count(), 1)


if __name__ == "__main__":
    unittest.main()
