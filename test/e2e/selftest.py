#!/usr/bin/env python3
"""The harness tested: comparisons accept what they should and reject the rest."""
import array
import json
import os
import re
import struct
import sys
import tempfile
import unittest

import exact_models
import harness
import identity
import matrix
import oracle
from harness import Failed, Tensor


def floats(*values):
    return array.array("f", values)


class Comparisons(unittest.TestCase):
    def test_losses(self):
        oracle.compare_losses([1.00005, 2.0], [1.0, 2.0])
        for bad in ([1.0002, 2.0], [1.0], [float("nan"), 2.0],
                    [1.0, 2.0, 3.0], [None, 2.0]):
            with self.assertRaises(Failed):
                oracle.compare_losses(bad, [1.0, 2.0])

    def test_relative_l2(self):
        a, b = floats(1, 2, 2), floats(1, 2, 5)
        self.assertAlmostEqual(harness.relative_l2(a, b)[1], 3)
        self.assertEqual(harness.relative_l2(a, b, [[2, 3]]), (0, 0))
        self.assertEqual(harness.relative_l2(a, b, [[0, 2]])[0], 3 / 5)
        self.assertEqual(harness.relative_l2(floats(float("nan")), floats(1))[0],
                         float("inf"))

    def test_tensors(self):
        params = [{"name": "w", "shape": [2], "adamw_update_l2": 0.1}]
        wanted = {"w": Tensor("F32", [2], floats(3, 4))}
        near = {"w": Tensor("F32", [2], floats(3.0003, 4))}
        oracle.compare_tensors(near, wanted, params, 1e-3, "x", 5e-3)
        with self.assertRaises(Failed):
            oracle.compare_tensors(near, wanted, params, 1e-5, "x")
        with self.assertRaisesRegex(Failed, "update"):
            oracle.compare_tensors(near, wanted, params, 1e-3, "x", 1e-3)
        with self.assertRaisesRegex(Failed, "shape"):
            oracle.compare_tensors({"w": Tensor("F32", [2, 1], floats(3, 4))},
                                   wanted, params, 1e-3, "x")

    def test_names(self):
        with self.assertRaisesRegex(Failed, "missing \\['b'\\]"):
            oracle.compare_names({"a": 0}, [{"name": "a"}, {"name": "b"}], "g")
        with self.assertRaisesRegex(Failed, "not trained \\['mask'\\]"):
            oracle.compare_names({"a": 0, "mask": 0}, [{"name": "a"}], "g")

    def test_vanishing_gradients(self):
        params = [{"name": "b", "grad_l2": 1.0, "zero_grad_ranges": [[0, 1]]}]
        oracle.small_where_zero({"b": Tensor("F32", [2], floats(1e-7, 1))}, params)
        with self.assertRaises(Failed):
            oracle.small_where_zero({"b": Tensor("F32", [2], floats(1, 1))},
                                    params)

    def test_identity(self):
        def result(loss=1.0, gradient=2.0, weight=3.0):
            return identity.Result([loss], {"w": Tensor("F32", [1], floats(gradient))},
                                   {"w": Tensor("F32", [1], floats(weight))})
        identity.compare(result(), result())
        for other in (result(loss=1.0000001), result(gradient=2.0000005),
                      result(weight=3.0000005)):
            with self.assertRaises(Failed):
                identity.compare(other, result())


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write_safetensors(self, name, tensors):
        header, blob = {}, b""
        for key, (shape, values) in tensors.items():
            data = floats(*values).tobytes()
            header[key] = {"dtype": "F32", "shape": shape,
                           "data_offsets": [len(blob), len(blob) + len(data)]}
            blob += data
        text = json.dumps(header).encode()
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + blob)

    def test_safetensors(self):
        self.write_safetensors("a", {"x": ([2], [1, 2]), "y": ([], [3])})
        found = harness.read_safetensors(self.path("a"))
        self.assertEqual(found["x"].data, floats(1, 2))
        self.assertEqual(found["y"].data, floats(3))

    def test_npy_header(self):
        harness.write_npy(self.path("x.npy"), "<i8", [2, 1], [5, 6])
        with open(self.path("x.npy"), "rb") as file:
            content = file.read()
        (size,) = struct.unpack("<H", content[8:10])
        self.assertEqual((10 + size) % 64, 0)
        self.assertIn(b"'shape': (2, 1,)", content)
        self.assertEqual(struct.unpack("<2q", content[10 + size:]), (5, 6))

    def test_boxes(self):
        target = Tensor("F32", [2, 4], floats(*[0] * 8))
        harness.copy_box(floats(1, 2, 3, 4), target, [0, 1], [2, 2])
        self.assertEqual(target.data, floats(0, 1, 2, 0, 0, 3, 4, 0))


class Matrix(unittest.TestCase):
    def test_pairwise_covers_all_pairs(self):
        everything = list(oracle.all_cases())
        chosen = matrix.pairwise(everything)
        self.assertLess(len(chosen), len(everything) / 5)
        for i in range(5):
            for j in range(i):
                self.assertEqual({(c[i], c[j]) for c in chosen},
                                 {(c[i], c[j]) for c in everything})

    def test_one_of_each_has_what_names_say(self):
        everything = [f"{kind} {model} {mesh} {schedule}" for kind in ("a", "b")
                      for model in "klmno" for mesh in ("none", "dp=2", "tp=2")
                      for schedule in ("gpipe", "none")] + ["alone"]
        chosen = harness.one_of_each(everything)
        self.assertEqual(len(chosen), 2 * 5 + 1)  # as many as the models
        self.assertLessEqual(chosen, set(everything))
        for kind in ("a", "b"):
            for place in range(1, 4):
                self.assertEqual(*({name.split()[place] for name in names
                                    if name.startswith(kind + " ")}
                                   for names in (chosen, everything)))
        self.assertEqual(harness.one_of_each([]), set())

    def test_every_schedule(self):
        # A unit test holds the page to the schedules that there are.
        page = os.path.join(harness.ROOT, "docs/Schedules.md")
        with open(page, encoding="utf-8") as file:
            sections = re.findall(r"^### (\S+)$", file.read(), re.M)
        self.assertEqual(sorted(matrix.ALL_SCHEDULES), sorted(sections))

    def test_samples(self):
        self.assertEqual(matrix.samples("none", "whole"), 8)
        self.assertEqual(matrix.samples("pp=2,dp=2,tp=2", "half"), 2)
        self.assertEqual(matrix.samples("dp=4", "one"), 1)

    def test_stored_models(self):
        self.assertEqual(exact_models.stale(), [])


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=0).result
    bad = len(outcome.failures) + len(outcome.errors)
    print(f"{outcome.testsRun - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)
