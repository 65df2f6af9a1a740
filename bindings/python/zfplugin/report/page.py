# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of all results: no script, nothing fetched; pictures are embedded as data.

The page is well-formed XML as well as HTML. Text from the files is escaped, whatever it holds.
"""
from __future__ import annotations

import base64
import datetime
import html

from . import draw
from .blocks import Figure, Head, Table, Text, Verdict, fixed

TITLES = {
    "abi": ("ABI", "Does the library keep the contract of its tables, whatever a host does?"),
    "exact": ("Exact laws", "Is every value the oracle's, bit for bit?"),
    "shard": ("Ranks", "Are P ranks one rank?"),
    "glue": ("Accuracy parity", "Does training through the plugin reach what AdamW reaches?"),
    "defaults": ("Defaults", "Which settings stay close to AdamW on every task?"),
    "perf": ("Bytes, memory, time", "Are bytes moved and occupied those of the formulas, and what do the threads do?"),
    "tune": ("Windows, tuned", "Which windows does the trainer hide, and what do they cost?"),
}
WORDS = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE", 77: "skipped"}
KINDS = {"PASS": "good", "held": "good", "FAIL": "bad", "MISSED": "bad"}
STYLE = """
body{margin:0 auto;max-width:80rem;padding:1.2rem 1rem 4rem;background:#fff;color:#1d1d1f;overflow-wrap:break-word;
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0}h3{font-size:1.1rem;margin:1.6rem 0 .2rem}
h2{font-size:1.3rem;margin:2.8rem 0 .2rem;border-top:1px solid #e4e4e8;padding-top:1.1rem}
p{max-width:60rem;margin:.4rem 0}.quiet,figcaption span,summary{color:#5a5a60}a{color:inherit}
.scroll{overflow-x:auto;margin:.8rem 0}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.28rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid #e4e4e8}
th{color:#5a5a60;font-weight:600;vertical-align:bottom}td.n,th.n{text-align:right}td{white-space:nowrap}
th[colspan]{color:#1d1d1f;padding-top:.9rem}td.wide{min-width:18rem;white-space:normal}td ul{margin:.2rem 0 0;padding-left:1.1rem;color:#5a5a60}
.verdict{font-weight:700}.good{color:#00694b}.bad{color:#a83200}.open{color:#6b5200}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr));gap:1.6rem 2rem;margin:1rem 0}
figure{margin:0;min-width:0}figcaption{margin-bottom:.4rem;font-weight:600}
figcaption span{display:block;font-weight:400;font-size:.88rem}img{max-width:100%;height:auto}
@media print{body{max-width:none;font-size:11pt}figure,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}}
"""


def escape(text):
    """As text or attribute of XHTML; what XML cannot hold becomes "?"."""
    kept = "".join(c if c in "\n\t" or (ord(c) >= 0x20 and not 0x7f <= ord(c) < 0xa0 and not 0xd800 <= ord(c) < 0xe000
                                        and ord(c) & 0xfffe != 0xfffe) else "?" for c in text)
    return html.escape(kept, quote=True)


def verdict(word):
    return f'<span class="verdict {KINDS.get(word, "open")}">{escape(word or "-")}</span>'


def cell(content, is_number=False):
    if isinstance(content, Verdict):
        wide = ' class="wide"' if content.after else ""
        return f"<td{wide}>{escape(content.before)}{verdict(content.word)}{escape(content.after)}</td>"
    if isinstance(content, list):
        more = "".join(f"<li>{escape(t)}</li>" for t in content[1:])
        return f'<td class="wide">{escape(content[0])}{f"<ul>{more}</ul>" if more else ""}</td>'
    kind = ' class="n"' if is_number else ""
    return f"<td{kind}>{escape(content)}</td>"


def table(block):
    heads = "".join(f'<th class="n">{escape(h[1:])}</th>' if h.startswith(">") else f"<th>{escape(h)}</th>" for h in block.heads)
    rows = []
    for row in block.rows:
        if isinstance(row, Head):
            rows.append(f'<tr><th colspan="{len(block.heads)}">{escape(row.text)}</th></tr>')
        else:
            rows.append("<tr>" + "".join(cell(c, h.startswith(">")) for c, h in zip(row, block.heads)) + "</tr>")
    text = '<div class="scroll"><table><thead><tr>' + heads + "</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table></div>"
    return f"<details><summary>{escape(block.title)}</summary>{text}</details>" if block.is_folded else text


def figure(block):
    data = base64.b64encode(draw.rendered(block.draw)).decode()
    return (f"<figure><figcaption>{escape(block.title)}<span>{escape(block.note)}</span></figcaption>"
            f'<img alt="{escape(block.title)}" src="data:image/svg+xml;base64,{data}"/></figure>')


def blocks(all_blocks):
    """Neighbouring figures stand side by side where there is room."""
    out, is_open = [], False
    for block in all_blocks:
        if isinstance(block, Figure) != is_open:
            is_open = not is_open
            out.append('<div class="plots">' if is_open else "</div>")
        if isinstance(block, Figure):
            out.append(figure(block))
        elif isinstance(block, Table):
            out.append(table(block))
        elif isinstance(block, Text):
            out.append(f"<p><strong>{escape(block.text)}</strong></p>" if block.is_strong else f'<p class="quiet">{escape(block.text)}</p>')
    return "\n".join(out + ["</div>"] * is_open)


def word_of(result):
    if result.exit_status is None:
        return "no verdict"
    return WORDS.get(result.exit_status, "could not run" if result.exit_status == 2 else "did not end")


def found(result, section):
    return section.summary if section else f"left no results; exit status {result.exit_status:g}"


def summary(results, sections):
    rows = []
    for area, (_, question) in TITLES.items():
        own = [(r, s) for r, s in zip(results, sections) if r.area == area]
        for result, section in own or [(None, None)]:
            word, said = ("not run", "-") if result is None else (word_of(result), found(result, section))
            rows.append(f'<tr><td><a href="#{area}">{area}</a></td><td>{verdict(word)}</td><td class="wide">{escape(said)}</td>'
                        f'{cell(fixed(result.seconds if result else None, 0), True)}<td class="wide">{escape(question)}</td></tr>')
    return ('<div class="scroll"><table><thead><tr><th>area</th><th>verdict</th><th>found</th><th class="n">seconds</th><th>question</th>'
            "</tr></thead><tbody>\n" + "\n".join(rows) + "</tbody></table></div>")


def area_part(area, own):
    title, question = TITLES[area]
    out = [f'<section id="{area}">\n<h2>{title} <span class="quiet">({area})</span></h2>\n<p>{escape(question)}</p>']
    for result, section in own:
        name = f"<h3>{escape(result.stem)}</h3>" if len(own) > 1 else ""
        out.append(f"{name}<p>Verdict: {verdict(word_of(result))}. {escape(found(result, section))}</p>")
        out.append(blocks(section.blocks) if section else "")
    if not own:
        out.append('<p class="quiet">Not run.</p>')
    return "\n".join(out + ["</section>"])


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


def head(results):
    version = next((r.data["plugin"] for r in results if r.data and r.data.get("plugin")), "")
    parts = [f"page made {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC", version and f"plugin {version}",
             processor() and f"on {processor()}"]
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            f"<title>zf-conform: conformance of libzfplugin</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f'<h1>Conformance of libzfplugin</h1>\n<p class="quiet">{escape("; ".join(p for p in parts if p))}</p>\n')


def page(results, sections):
    """The page as a text. sections: one per result, None for a run that left no file."""
    parts = [area_part(area, [(r, s) for r, s in zip(results, sections) if r.area == area]) for area in TITLES]
    return head(results) + summary(results, sections) + "\n" + "\n".join(parts) + "\n</body>\n</html>\n"
