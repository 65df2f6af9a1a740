# SPDX-License-Identifier: Apache-2.0
"""What the JSON file of each area holds, as far as the report reads it, and the check of a document against it.

A shape is NUMBER (finite, or null where the area has no figure), TEXT, FLAG, [shape] for a list, or {name: shape} for an
object; a name that ends in "?" may be absent. Members that no shape names are not read.
"""
NUMBER, TEXT, FLAG = "a number below 10^15, or null", "a text", "true or false"
MOST = 1e15

CHECKS = {"exit_status?": NUMBER, "summary": TEXT, "unit?": TEXT, "plugin?": TEXT,
          "checks?": [{"group": TEXT, "name": TEXT, "verdict": TEXT, "text": TEXT, "count?": NUMBER, "details?": [TEXT]}]}

SOURCE = {"plugin?": TEXT, "exit_status?": NUMBER, "task": TEXT, "metric?": TEXT, "is_synthetic?": FLAG, "encoder_sha256?": TEXT,
          "sha256?": {"train?": TEXT}, "dtype?": TEXT, "parameters": NUMBER, "steps": NUMBER, "batch": NUMBER,
          "lr?": NUMBER}

GLUE = {**SOURCE, "lr": NUMBER, "margin": NUMBER,
        "arms": [{"name": TEXT, "title?": TEXT, "metric": [NUMBER], "mean_losses": [NUMBER], "verdict?": TEXT,
                  "mean_difference?": NUMBER, "lower?": NUMBER, "upper?": NUMBER, "start?": {"conforms": FLAG},
                  "last_quarter_ratio?": NUMBER, "stall_us_per_step?": NUMBER, "step_us?": NUMBER,
                  "link_bytes_per_step?": {"down": NUMBER, "publish": NUMBER, "enter": NUMBER, "down_formula": NUMBER,
                                           "publish_formula": NUMBER},
                  "host_bytes_per_parameter?": {"mapped": NUMBER}}]}

MEASURED = {name: NUMBER for name in ("n_elems", "down", "up", "records", "enter", "state", "slots", "publish", "planned", "mapped",
                                      "device_mapped", "outside", "hook_allocations", "stall_us", "step_us")}
PERF = {"exit_status?": NUMBER,
        "rows": [{"gradient": TEXT, "interval": NUMBER, "down_formula": NUMBER, "up_formula": NUMBER, "host_formula": NUMBER,
                  "faults": TEXT, "measured": MEASURED}]}

BAR = {"mean": NUMBER, "worst": NUMBER}
DEFAULTS = {"plugin?": TEXT, "exit_status?": NUMBER, "bars": {"fetches": BAR, "does not fetch": BAR},
            "cells": [{"name": TEXT, "what": TEXT, "trained_by": TEXT, "dtype": TEXT, "steps": NUMBER, "batch": NUMBER, "lr": NUMBER,
                       "seeds": NUMBER, "first_loss": NUMBER, "adamw_loss": NUMBER}],
            "settings": [{"name": TEXT, "bar": TEXT, "mean": NUMBER, "worst": NUMBER, "worst_cell": TEXT, "verdict": TEXT,
                          "cells": [{"cell": TEXT, "gaps": [NUMBER], "mean": NUMBER, "error": NUMBER}]}]}

SETTING = {"update_interval": NUMBER, "publish_lag": NUMBER, "has_run": FLAG, "verdict": TEXT, "steps?": NUMBER, "step_s?": NUMBER,
           "stall_share?": NUMBER, "lateness?": NUMBER}
TUNE = {"exit_status?": NUMBER, "max_stall": NUMBER, "settings": [SETTING]}

RUN = {"ran": [{"area": TEXT, "exit_status": NUMBER, "seconds": NUMBER}]}

AREAS = {"abi": CHECKS, "exact": CHECKS, "shard": CHECKS, "glue": GLUE, "defaults": DEFAULTS, "perf": PERF,
         "tune": TUNE, "report": RUN}


class Unfit(ValueError):
    """A document that is not of the shape its area needs: where, what was found, what is needed."""

    def __init__(self, place, found, needed):
        super().__init__(f"{place or 'the document'}: found {short(found)}; {needed} is needed")


def short(value):
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def fits(value, shape):
    if shape is NUMBER:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value is None or (is_number and abs(value) < MOST)  # which neither infinity nor NaN is
    return isinstance(value, str if shape is TEXT else bool)


def check(value, shape, place=""):
    """Raises Unfit where value is not of this shape."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise Unfit(place, value, "a list")
        for i, item in enumerate(value):
            check(item, shape[0], f"{place}[{i}]")
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise Unfit(place, value, "an object")
        for name, inner in shape.items():
            key = name.rstrip("?")
            if key in value:
                check(value[key], inner, f"{place}.{key}" if place else key)
            elif name == key:
                raise Unfit(place, value, f'the member "{key}"')
    elif not fits(value, shape):
        raise Unfit(place, value, shape)


def need(is_right, place, found, needed):
    if not is_right:
        raise Unfit(place, found, needed)


def check_area(area, data):
    """Raises Unfit where data is not what the area leaves."""
    check(data, AREAS[area])
    if area == "glue":
        need(data["arms"], "arms", data["arms"], "AdamW's arm, which is the first,")
