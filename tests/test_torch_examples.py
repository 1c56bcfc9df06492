"""Whether the examples for PyTorch run under torchrun and show what their matrices are, each worked out by hand."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def printed() -> str:
    """What the matrix multiplication prints on two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.Popen(
        [*launcher, str(ROOT / "examples" / "dtensor_matmul.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the ranks as well, where they did not end
    assert process.returncode == 0, err
    return out


def section(printed: str, title: str) -> str:
    """What stands under a heading."""
    after = printed.split(f"{title}\n{'=' * len(title)}\n", 1)[1]
    return after.split("\n===", 1)[0].rpartition("\n")[0] if "\n===" in after else after


COLUMNS = """\
Y is 6 x 4, S(1)
  rank 0    rank 1
   1  2      3  4
   5  6      7  8
   9 10     11 12
  13 14     15 16
  17 18     19 20
  21 22     23 24
"""
PRODUCT_COLUMNS = """\
X @ Y is 4 x 4, S(1)
  rank 0       rank 1
   301  322     343  364
   697  754     811  868
  1093 1186    1279 1372
  1489 1618    1747 1876
"""
PARTS = """\
X @ Y is 4 x 4, P(sum)
  rank 0             rank 1
   38  44  50  56     263  278  293  308
  128 152 176 200     569  602  635  668
  218 260 302 344     875  926  977 1028
  308 368 428 488    1181 1250 1319 1388
"""
WHOLE = """\
X @ Y is 4 x 4, R
  rank 0                 rank 1
   301  322  343  364     301  322  343  364
   697  754  811  868     697  754  811  868
  1093 1186 1279 1372    1093 1186 1279 1372
  1489 1618 1747 1876    1489 1618 1747 1876
"""
TURNED = """\
X.T is 6 x 4, S(1)
  rank 0    rank 1
   1  7     13 19
   2  8     14 20
   3  9     15 21
   4 10     16 22
   5 11     17 23
   6 12     18 24
"""


@pytest.mark.parametrize(
    ("title", "tables"),
    [
        ("Replicate x Replicate", [WHOLE]),
        ("Replicate x Shard", [COLUMNS, PRODUCT_COLUMNS, WHOLE]),
        ("Shard x Shard", [PARTS, WHOLE]),
        ("Transpose", [TURNED]),
    ],
)
def test_every_rank_holds_what_a_hand_computes(printed: str, title: str, tables: list[str]) -> None:
    text = section(printed, title)
    for table in tables:
        assert table in text
    assert text.count("on every rank: yes") == (title != "Transpose")
    assert "NO" not in text


@pytest.mark.parametrize(
    ("title", "step", "trace", "received"),
    [
        # 6 x 4 of 8 bytes, cut in two: nothing moves; the product's other two columns: 4 x 2 of 8 bytes
        ("Replicate x Shard", "1  Slice ", "R->S(1)", 0),
        ("Replicate x Shard", "1  AllGather ", "S(1)->R", 64),
        # the half of the sum that the rank makes, of the other's part, and the other half when it is made: 64 + 64
        ("Shard x Shard", "1  AllReduce ", "P(sum)->R", 128),
        ("Transpose", "1  Slice ", "R->S(0)", 0),
    ],
)
def test_every_redistribute_is_explained(printed: str, title: str, step: str, trace: str, received: int) -> None:
    text = section(printed, title)
    assert f"  | {step}" in text
    assert f"  | {trace}\n" in text
    assert f"  | received {received} B on the busiest device" in text
    assert f"  | received {received} B" in text.split(f"  | {trace}\n", 1)[1]  # torch's, which moves the same here
