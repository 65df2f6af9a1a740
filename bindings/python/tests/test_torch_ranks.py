# SPDX-License-Identifier: Apache-2.0
"""Several ranks that train as one (ZenFlow(group=...)), with gloo on the loopback: what each rank does is ranks_worker.py.
Beside torch's AdamW on the whole batch, across stages to the bit, and with a rank that dies or stops.

The example runs under torchrun. The other ranks are forks of this process, which has imported all that they need and computes
nothing itself: importing it in each of them takes longer than what they do. Under torchrun each file of cases is a program."""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

from support import HERE, TorchTest, needs, torch

ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
               "PYTHONPATH": os.pathsep.join(sys.path)}  # the package that this process tests
WORKER = HERE / "ranks_worker.py"
LONGEST = 500  # seconds until a job counts as hung


def torchrun(n_ranks, script, *arguments):
    """Runs a job; its output. A rank that fails ends it. One that hangs is killed with all others."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n_ranks), "--rdzv-backend", "c10d",
               "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", str(script), *arguments]
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as job:
        try:
            output = job.communicate(timeout=LONGEST)[0]
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            raise AssertionError(f"the job hung: {job.communicate()[0]}") from None
    if job.returncode != 0:
        raise AssertionError(output)
    return output


def rank_of(rank, n_ranks, folder, worker, cases):
    """[a fork] Runs as rank, with its output in a file of the folder; does not return."""
    import ranks_worker

    status = 1
    output = os.open(folder / str(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        os.environ.update(ENVIRONMENT, ZF_STORE=str(folder / "store"), RANK=str(rank), WORLD_SIZE=str(n_ranks))
        sys.argv[1:] = cases
        ranks_worker.main(vars(worker))
        torch.distributed.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def end_of(pids):
    """Waits for all of them; one that fails, or the time, ends the others. True where all went well."""
    left, is_good, end = set(pids), True, time.monotonic() + LONGEST
    while left:
        for pid in sorted(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                is_good &= status == 0
        if not is_good or time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return False
        time.sleep(0.02)
    return is_good


def run_ranks(n_ranks, worker, *cases):
    """Runs cases of a worker's module on ranks that are forks of this process; their output."""
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as name:
        folder, pids = Path(name), []
        for rank in range(n_ranks):
            pid = os.fork()
            if pid == 0:
                rank_of(rank, n_ranks, folder, worker, cases)
            pids.append(pid)
        is_good = end_of(pids)
        output = "".join((folder / str(rank)).read_text() for rank in range(n_ranks))
    if not is_good:
        raise AssertionError(f"a rank failed, or the job hung: {output}")
    for case in cases:
        if f"done: {case}" not in output:
            raise AssertionError(f"{case} is not done: {output}")
    return output


@unittest.skipUnless(torch and torch.distributed.is_available() and torch.distributed.is_gloo_available(), "no torch with gloo")
class Ranks(TorchTest):
    def test_two(self):
        import ranks_worker

        run_ranks(2, ranks_worker, "as_adamw", "stages_agree", "with_holes", "edited", "edited_row", "summed", "clipped", "changed_after_backward", "taken_out", "dropped",
                  "moved_after_backward", "refused", "saved_together")

    @needs("transformers")
    def test_four(self):
        import ranks_worker
        import transformers

        self.assertTrue(transformers.GPT2LMHeadModel)  # all of it is imported when it is asked for
        run_ranks(4, ranks_worker, "subgroup", "hugging_face", "two_levels")

    def test_spread(self):
        """Eight processes: two by tensor, two stages, two by data."""
        import ranks_worker
        import spread_worker

        self.assertTrue(ranks_worker.main)
        run_ranks(8, spread_worker, "tensor_pipeline_data")

    def test_experts(self):
        """Four processes, two of which have each expert."""
        import ranks_worker
        import spread_worker

        self.assertTrue(ranks_worker.main)
        run_ranks(4, spread_worker, "experts", "experts_in_meshes")

    def test_experts_resume_elsewhere(self):
        """On 4, then 2, then 8 processes."""
        import spread_worker

        with tempfile.TemporaryDirectory() as folder:
            spread_worker.FOLDER = Path(folder)
            for n in spread_worker.JOBS:
                run_ranks(n, spread_worker, "resumes_elsewhere")

    @needs("transformers")
    def test_example(self):
        output = torchrun(2, HERE.parent / "examples" / "ranks_loop.py", "--steps", "6")
        self.assertRegex(output, "loss .* at the last of 6")

    @contextlib.contextmanager
    def processes(self, case, n_ranks):
        """Ranks that nothing ends with one of them."""
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, str(WORKER), case], text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, env={**ENVIRONMENT, "ZF_STORE": str(Path(folder) / "store"),
                                                                     "RANK": str(rank), "WORLD_SIZE": str(n_ranks)})
                     for rank in range(n_ranks)]
            try:
                yield ranks
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
                    rank.stdout.close()

    def test_a_rank_that_dies_or_stops(self):
        with self.processes("faults", 3) as ranks:
            outputs = [ranks[0].communicate(timeout=LONGEST)[0]]
            outputs += [self.end(rank) for rank in ranks[1:]]
        self.assertIn("rank 0 is done", outputs[0])
        self.assertIn("rank 0: rank 1 has not come", outputs[0])
        self.assertIn("rank 1: rank 1 of 3: ", outputs[1])
        self.assertEqual(ranks[2].returncode, -signal.SIGKILL)

    def test_whoever_ends_because_another_died_is_not_named(self):
        with self.processes("ended_after_a_death", 3) as ranks:
            outputs = [rank.communicate(timeout=LONGEST)[0] for rank in ranks]
        self.assertIn("rank 0 says: rank 2: ", outputs[0])
        self.assertRegex(outputs[1], "rank 1 says: (rank 2|a rank that is not known)")

    def test_a_process_that_ends_while_another_is_awaited(self):
        with self.processes("ends_alone", 2) as ranks:
            output = ranks[0].communicate(timeout=LONGEST)[0]
        self.assertEqual(ranks[0].returncode, 0, output)

    @staticmethod
    def end(rank):
        rank.kill()  # it is stopped, or dead
        return rank.communicate()[0]


if __name__ == "__main__":
    unittest.main()
