# SPDX-License-Identifier: Apache-2.0
"""Sections of results that are a list of checks (abi, exact, shard)."""
from .blocks import Section, Table, Verdict, fixed


def section(data):
    rows = [[c["group"], c["name"], Verdict(c["verdict"]), fixed(c.get("count"), 0), [c["text"], *c.get("details", [])]]
            for c in data.get("checks", [])]
    return Section(data["summary"], [Table(["", "name", "result", ">" + data.get("unit", "checks"), "what holds"], rows)])
