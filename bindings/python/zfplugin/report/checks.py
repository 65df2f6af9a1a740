# SPDX-License-Identifier: Apache-2.0
"""Sections of results that are a list of checks (abi, exact, shard), and of one verdict over scores."""
from .blocks import Section, Table, Verdict, fixed, signed


def section(data):
    rows = [[c["group"], c["name"], Verdict(c["verdict"]), fixed(c.get("count"), 0), [c["text"], *c.get("details", [])]]
            for c in data.get("checks", [])]
    return Section(data["summary"], [Table(["", "name", "result", ">" + data.get("unit", "checks"), "what holds"], rows)])


def verdict_section(data):
    rows = [[Verdict(data["verdict"]), fixed(data["n_seeds"], 0), signed(data["mean_difference"], 2), signed(data["lower"], 2),
             signed(data["upper"], 2), fixed(data["standard_deviation"], 2), fixed(data["margin"], 2)]]
    heads = ["result", ">seeds", ">plugin - AdamW, points", ">lower bound", ">upper bound", ">deviation", ">margin"]
    return Section(data["sentence"], [Table(heads, rows)])
