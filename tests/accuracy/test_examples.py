# SPDX-License-Identifier: Apache-2.0
"""zf-conform examples: WordPiece on a small vocabulary, the nine tasks' files with their official traps, encoders that are refused; and
zf-host, which must learn a rule of one word from each task's file. Official GLUE files are read where ZF_GLUE_DIR names them."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

from zfplugin.accuracy import encoder, examples, scores, synthetic, tasks
from zfplugin.accuracy.runs import CannotRun
from zfplugin.accuracy.wordpiece import Vocabulary

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the them un ##aff ##able ##e ##s , ! $ ' - – i cafe naive 中 国 straße a ##a".split()
TINY = Path(__file__).resolve().parent.parent / "conformance" / "tiny_encoder.py"


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return str(path)


class Pieces(InFolder):
    def setUp(self):
        super().setUp()
        self.vocabulary = Vocabulary(self.write("vocab.txt", "\n".join(WORDS) + "\n"))

    def test_a_text_becomes_these_pieces(self):
        for text, pieces in (
                ("unaffable them theme thes", "un ##aff ##able them them ##e the ##s"), ("thexyz", "[UNK]"), ("  \t \n ", ""),
                ("The  THE\tthe\u00a0the\u3000the", "the the the the the"), ("th\u0001e\u007f th\u00ade the\ufffd", "the the the"),
                ("café CAFÉ cafe\u0301 naïve İ straße", "cafe cafe cafe naive i straße"), ("the,them! i'the-$", "the , them ! i ' the - $"),
                ("the–the 中国", "the – the 中 国"), ("a" * 100, " ".join(["a", *["##a"] * 99])), ("a" * 101, "[UNK]")):
            self.assertEqual([WORDS[i] for i in self.vocabulary.tokenize(text)], pieces.split(), text)

    def test_rows_are_cut_at_the_longer_text(self):
        the, i = WORDS.index("the"), WORDS.index("i")
        self.assertEqual(self.vocabulary.encode(("the",), 16), ([2, the, 3], [0, 0, 0]))
        self.assertEqual(self.vocabulary.encode(("the", "i i"), 16), ([2, the, 3, i, i, 3], [0, 0, 0, 1, 1, 1]))
        self.assertEqual(self.vocabulary.encode(("the " * 5, "i"), 7)[0], [2, the, the, the, 3, i, 3])
        self.assertEqual(self.vocabulary.encode(("the " * 9, "i " * 9), 8)[0], [2, the, the, 3, i, i, i, 3])
        self.assertEqual(len(self.vocabulary.encode(("the " * 9,), 5)[0]), 5)

    def test_no_vocabulary(self):
        for path, said in (("/nowhere/vocab.txt", "cannot read"), (self.write("bad", "the\n"), r"\[PAD\]")):
            with self.assertRaisesRegex(CannotRun, said):
                Vocabulary(path)


MNLI = "index\tpromptID\tpairID\tgenre\ts1_binary_parse\ts2_binary_parse\ts1_parse\ts2_parse\tsentence1\tsentence2\tlabel1\t"
MNLI_ROW = "0\t1\t2\tfiction\tgood\tbad\tgood\tbad\t{a}\t{b}\tneutral\t"
LAYOUTS = {  # header and row of the training file; of dev files where they differ
    "sst2": ("sentence\tlabel\n", "{a}\t{label}\n"), "cola": ("", "gj04\t{label}\t*\t{a}\n"),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", "{label}\t1\t2\t{a}\t{b}\n"),
    "rte": ("index\tsentence1\tsentence2\tlabel\n", "7\t{a}\t{b}\t{label}\n"), "qnli": ("index\tquestion\tsentence\tlabel\n", "7\t{a}\t{b}\t{label}\n"),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n", "7\t{a}\t{b}\t{label}\n"),
    "stsb": ("index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
             "0\tmain\tfile\t2012\t1\tnone\tnone\t{a}\t{b}\t{label}\n"),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", "1\t2\t3\t{a}\t{b}\t{label}\n"),
    "mnli": (MNLI + "gold_label\n", MNLI_ROW + "{label}\n", MNLI + "label2\tlabel3\tgold_label\n", MNLI_ROW + "neutral\tneutral\t{label}\n"),
}
BROKEN = "9\t8\t7\tthe film\tthe \nnoise?\t0\n\n"  # a question with a line end, as QQP has some
SECOND = {"mrpc": "f1", "qqp": "f1", "stsb": "spearman", "mnli": "dev_mismatched.tsv"}


def rows(task, row, n, shift):
    """The last word of the last text decides."""
    for i in range(n):
        number = (i + shift) * 7 % 11 % (len(task.labels) or 3)
        other, text = (f'the "film noise {word}' for word in ("noise", ("bad", "good", "fair")[number]))
        a, b = (other, text) if task.texts[1:] else (text, "")
        yield row.format(a=a, b=b, label=task.labels[number] if task.labels else f"{2 * number}.{number}00")
        if task.may_skip_rows and i % 50 == 20:
            yield BROKEN


class Files(InFolder):
    def write_task(self, name):
        task, (header, row, *dev) = tasks.find_task(name), LAYOUTS[name]
        self.write(f"{task.folder}/train.tsv", header + "".join(rows(task, row, 240, 0)))
        for i, file in enumerate(task.dev):
            self.write(f"{task.folder}/{file}", (dev or (header,))[0] + "".join(rows(task, (dev or (0, row))[1], 60 >> i, 3)))
        self.write("vocab.txt", '[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\nfair\nthe\nfilm\n"\nnoise\nnobody\n')
        return task

    def read(self, path):
        data = Path(path).read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + n])
        ids = {name.split(".")[0]: array("i", data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
               for name, t in header.items() if name.endswith(".ids")}
        return header, ids

    @unittest.skipUnless(os.environ.get("ZF_CONFORM"), "ZF_CONFORM does not name zf-conform")
    def test_zf_host_learns_every_task(self):
        host, path, out = Path(os.environ["ZF_CONFORM"]).parent / "host" / "zf-host", self.root / "examples", self.root / "report"
        for name in LAYOUTS:
            task = self.write_task(name)
            done = subprocess.run([os.environ["ZF_CONFORM"], "examples", "--task", name, "--data", str(self.root), "--max-tokens", "32", "--out",
                                   str(path)], capture_output=True, text=True, check=False, env={**os.environ, "ZF_PYTHON": sys.executable})
            self.assertEqual(done.returncode, 0, done.stderr)
            header, ids = self.read(path)
            self.assertNotIn(1, ids["train"])  # [UNK]
            self.assertEqual(header["__metadata__"]["pieces"], "11" if len(task.labels) != 2 else "10")
            words = "--layers 1 --hidden 32 --ffn 64 --steps 120 --batch 16 --lr 3e-3 --quiet".split()
            subprocess.run([str(host), "--examples", str(path), "--out", str(out), *words], check=True)
            truth = [tasks.read(task, tasks.find_file(task, str(self.root), file)).labels for file in task.dev]
            report = scores.scored(json.loads(out.read_text()), task, truth)
            self.assertEqual(report["rows"], {"train": 240, "dev": 60, "second_dev": 30 if name == "mnli" else 0, "skipped": 12 if name == "qqp" else 0})
            self.assertEqual(report["metric"]["name"], task.metrics[0])
            self.assertGreater(report["metric"]["value"], 99.0, name)
            self.assertEqual(report.get("second", {}).get("name"), SECOND.get(name))
            self.assertGreater(report.get("second", {"value": 99})["value"], 90.0, name)

    def test_files_that_are_refused(self):
        task = self.write_task("mnli")
        (self.root / task.folder / task.dev[1]).unlink()
        with self.assertRaisesRegex(CannotRun, "dev_mismatched.tsv"):
            examples.make_of_files(str(self.root / "out"), task, str(self.root), None, None)
        other = self.write("QQP/train.tsv", LAYOUTS["qqp"][0] + "1\t2\t3\ta\tb\t1\nc\nd\n")
        with self.assertRaisesRegex(CannotRun, "2 lines .* beside 1 whole ones"):
            tasks.read(tasks.find_task("qqp"), other)
        for label in ("2", "", "yes"):
            with self.assertRaisesRegex(CannotRun, "x.tsv:2: label"):
                tasks.read(tasks.find_task("sst2"), self.write("x.tsv", f"sentence\tlabel\na\t{label}\n"))
        with self.assertRaisesRegex(CannotRun, "x.tsv:2: 1 columns; need 2"):
            tasks.read(tasks.find_task("sst2"), self.write("x.tsv", "sentence\na fine film\n"))

    @unittest.skipUnless(os.environ.get("ZF_GLUE_DIR"), "ZF_GLUE_DIR does not name the folder of the official files")
    def test_official_files(self):
        data, path = os.environ["ZF_GLUE_DIR"], str(self.root / "out")
        for name, n_train, n_dev, longest in (("sst2", 67349, 872, 66), ("cola", 8551, 1043, 47), ("mrpc", 3668, 408, 103)):
            examples.make_of_files(path, tasks.find_task(name), data, None, 512)
            header, ids = self.read(path)
            self.assertEqual((header["train.lengths"]["shape"], header["dev.lengths"]["shape"]), ([n_train], [n_dev]))
            self.assertNotIn(1, ids["train"])
            vocabulary = Vocabulary(os.path.join(data, "vocab.txt"))
            read = tasks.read(tasks.find_task(name), tasks.find_file(tasks.find_task(name), data, "train.tsv"))
            self.assertEqual(max(len(vocabulary.encode(texts, 512)[0]) for texts in read.texts), longest)

    def test_the_generated_corpus(self):
        folder = synthetic.ensure(str(self.root / "made"))
        examples.make_of_files(str(self.root / "out"), tasks.find_task("sst2"), folder, None, 64)
        header, ids = self.read(self.root / "out")
        self.assertEqual((header["train.lengths"]["shape"], header["dev.lengths"]["shape"]), ([20000], [1500]))
        self.assertNotIn(1, [*ids["train"], *ids["dev"]])
        labels = tasks.read(tasks.find_task("sst2"), os.path.join(folder, "dev.tsv")).labels
        self.assertTrue(650 < sum(labels) < 850)
        self.assertEqual(synthetic.rows("dev", 1500), Path(folder, "dev.tsv").read_text())
        self.assertNotEqual(synthetic.rows("dev", 9), synthetic.rows("train", 9))


class Encoders(InFolder):
    def setUp(self):
        super().setUp()
        vocabulary = self.write("words.txt", "\n".join(WORDS) + "\n")
        subprocess.run([sys.executable, str(TINY), str(self.root), vocabulary, "1"], check=True)
        self.config = json.loads((self.root / "config.json").read_text())

    def test_what_the_host_does_not_compute_is_refused_by_name(self):
        encoder.Encoder(str(self.root))
        for key, value in (("model_type", "gpt2"), ("hidden_act", "relu"), ("position_embedding_type", "relative_key"), ("is_decoder", True),
                           ("hidden_size", 33), ("num_hidden_layers", 2), ("num_hidden_layers", "x"), ("vocab_size", None), ("hidden_size", 64)):
            self.write("config.json", json.dumps({**self.config, key: value}))
            with self.assertRaisesRegex(CannotRun, rf'"{key}"|encoder.layer.1|tensor|config.json makes it'):
                list(encoder.Encoder(str(self.root)).weights({}))
        self.write("config.json", json.dumps(self.config))
        for text in ('{"tokenize_chinese_chars": false}', '{"do_lower_case": false, "strip_accents": true}', "[", "[]"):
            self.write("tokenizer_config.json", text)
            with self.assertRaisesRegex(CannotRun, "tokenizer_config.json"):
                encoder.Encoder(str(self.root))

    def test_files_cut_short_are_refused(self):
        path = self.root / "model.safetensors"
        whole = path.read_bytes()
        for n in (0, 7, 100, len(whole) - 4):
            path.write_bytes(whole[:n])
            with self.assertRaisesRegex(CannotRun, "model.safetensors"):
                list(encoder.Encoder(str(self.root)).weights({}))

    def test_positions_and_pieces(self):
        one = tasks.Examples([("the",)], [1.0])
        for change, tokens, said in (({}, 129, "max-tokens 129"), ({}, 4, "max-tokens 4"), ({"vocab_size": len(WORDS) - 1}, 16, "pieces; the encoder knows")):
            self.write("config.json", json.dumps({**self.config, **change}))
            with self.assertRaisesRegex(CannotRun, said):
                examples.make(str(self.root / "out"), tasks.find_task("sst2"), [one, one], "", str(self.root), tokens)
