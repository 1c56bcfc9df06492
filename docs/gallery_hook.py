"""What the site has besides the documents: a gallery of worked examples, each with the page that plays it.

A worked example is one that the tests hold device by device; here each is drawn before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import reshard as rs
from reshard.drawing.notebooks import standalone
from reshard.plans.plan_page import plan_drawing

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


class Example(NamedTuple):
    """A reshard that is worked by hand somewhere."""

    name: str
    says: str
    mesh: str
    source: str
    target: str
    shape: tuple[int, ...]
    network: str | None = None


EXAMPLES = (
    Example("transposed-cut", "Rows by y to a grid: two rounds of half a tile each.",
            "x=2,y=4", '[{"y"}, {}]', '[{"x"}, {"y"}]', (8, 8)),
    Example("columns", "Rows and columns to columns alone, 16 devices.",
            "D=2,Y=2,X=2,T=2", '[{"D"}, {"X", "Y"}]', '[{}, {"D", "Y", "X", "T"}]', (16, 16)),
    Example("all-gather", "Every device gets the whole.", "x=4", '[{"x"}, {}]', "[{}, {}]", (8, 8)),
    Example("all-to-all", "Rows to columns: a quarter of a tile to each other device.",
            "x=4", '[{"x"}, {}]', '[{}, {"x"}]', (8, 8)),
    Example("slice", "Whole to rows: nothing is sent.", "x=4", "[{}, {}]", '[{"x"}, {}]', (8, 8)),
    Example("all-reduce", "Four parts are summed, each element on one device, then gathered.",
            "x=4", '[{}, {}], unreduced={"x"}', "[{}, {}]", (8, 8)),
    Example("reduce-scatter", "Four parts are summed where they stay.",
            "x=4", '[{}, {}], unreduced={"x"}', '[{"x"}, {}]', (8, 8)),
    Example("two-against-three", "Cuts that do not nest: boxes in place of digits.",
            "x=2,y=3", '[{"x"}]', '[{"y"}]', (12,)),
    Example("uneven", "Seven rows and five columns over 2 x 3 devices.",
            "x=2,y=3", '[{"x"}, {}]', '[{"y"}, {"x"}]', (7, 5)),
    Example("rank-three", "The reshard that XLA rematerializes: one all-to-all here.",
            "x=4,y=2", '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]', (16, 16, 16)),
    Example("two-hosts", "Between hosts little, inside much: time decides.",
            "host=2,gpu=8", '[{}, {"host"}]', '[{"host"}, {}]', (8192, 8192), "h100-2x8"),
)  # fmt: skip


def plan_of(example: Example) -> rs.Plan:
    """The plan of an example."""
    mesh = rs.parse_mesh(example.mesh)
    ends = (rs.parse_sharding(text, mesh, len(example.shape)) for text in (example.source, example.target))
    return rs.plan(*ends, example.shape, "float32", network=example.network)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the gallery and its pages to the files of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # only the generator of the site has it

    parts = ["# Gallery\n\nEvery picture opens the page that plays it.\n"]
    for example in EXAMPLES:
        plan = plan_of(example)
        files.append(File.generated(config, f"gallery/{example.name}.html", content=plan.to_html()))
        pictures = plan_drawing(plan)
        title = example.name.replace("-", " ").capitalize()
        command = f"reshard view plan --mesh {example.mesh} --shape {','.join(map(str, example.shape))}"
        ends = f"'{example.source}' '{example.target}'"
        drawn = standalone(pictures) if pictures else ""
        parts.append(
            f"## {title}\n\n{example.says} [Play it](gallery/{example.name}.html).\n\n"
            f'<div class="gallery">{drawn}</div>\n\n```sh\n{command} {ends} --out page.html\n```\n'
        )
    files.append(File.generated(config, "gallery.md", content="\n".join(parts)))
    return files
