"""What the site has besides the documents: galleries of worked examples, each with the page that plays it.

`gallery.yml` lists the examples; every picture, page, command and text form is made of it here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import reshard as rs
from reshard.drawing.notebooks import standalone
from reshard.plans.plan_page import WRITERS, plan_drawing

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

GALLERIES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "gallery.yml").read_text(encoding="utf-8"))


def command(example: dict[str, Any]) -> list[str]:
    """The words of the command that shows an example: `show` for a sharding, `view` for what has a page."""
    options = ["--mesh", example["mesh"]]
    for name in ("target_mesh", "dtype", "network", "basis"):
        options += [f"--{name.replace('_', '-')}", str(example[name])] if name in example else []
    for shape in example.get("shapes", [example.get("shape")]):
        options += ["--shape", ",".join(map(str, shape))]
    if "sharding" in example:
        return ["show", *options, example["sharding"]]
    if "einsum" in example:
        for operand in example["operands"]:
            options += ["--operand", operand]
        for label, size in example.get("sizes", {}).items():
            options += ["--size", f"{label}={size}"]
        return ["view", "einsum", example["einsum"], *options, "--target", example["target"]]
    return ["view", "plan", *options, example["source"], example["target"]]


def worked(example: dict[str, Any]) -> Any:
    """What an example is about: a sharding, a plan, a plan of an einsum."""
    mesh = rs.parse_mesh(example["mesh"])
    more = {name: example[name] for name in ("network", "basis") if name in example}
    dtype = example.get("dtype", "float32")
    if "sharding" in example:
        return rs.parse_sharding(example["sharding"], mesh, len(example["shape"]))
    if "einsum" in example:
        shapes = example["shapes"]
        operands = [
            rs.parse_sharding(text, mesh, len(shape)) for text, shape in zip(example["operands"], shapes, strict=True)
        ]
        result = example["einsum"].partition("->")[2].strip()
        ndim = len(result.split() if " " in result else result)
        target = rs.parse_sharding(example["target"], mesh, ndim)
        return rs.einsum(
            example["einsum"], *operands, shapes=shapes, dtype=dtype, target=target, sizes=example.get("sizes"), **more
        )
    ends = [
        rs.parse_sharding(example[name], mesh_of_end, len(example["shape"]))
        for name, mesh_of_end in (
            ("source", mesh),
            ("target", rs.parse_mesh(example["target_mesh"]) if "target_mesh" in example else mesh),
        )
    ]
    return rs.plan(*ends, example["shape"], dtype, **more)


def forms(sharding: rs.Sharding) -> Iterator[str]:
    """A sharding in every text form that has it."""
    for name, writer in WRITERS.items():
        try:
            yield f"{name}: {writer(sharding)}"
        except rs.ReshardError:  # this form cannot say it
            continue


def address(gallery: dict[str, Any], example: dict[str, Any]) -> str:
    """Of the page that plays an example, beside the gallery's own."""
    return f"{gallery['page']}/{example['name'].replace(' ', '-')}.html"


def shown(gallery: dict[str, Any], example: dict[str, Any], subject: Any) -> str:
    """An example in Markdown: what it shows, its picture, its command, its text forms."""
    if isinstance(subject, rs.Sharding):
        drawing, play = subject.drawn(example["shape"]).get("text/html", ""), ""
        texts = "\n".join(forms(subject))
    else:
        pictures = plan_drawing(subject) if isinstance(subject, rs.Plan) else None
        drawing = standalone(pictures) if pictures else subject._repr_mimebundle_().get("text/html", "")
        play = f" [Open its page]({address(gallery, example)}), which has every text form to copy."
        texts = str(subject).strip()
    words = shlex.join(["reshard", *command(example), *([] if "sharding" in example else ["--out", "page.html"])])
    says = example["says"] + play
    return (
        f"## {example['name'].capitalize()}\n\n{says}\n\n"
        f'<div class="gallery">{drawing}</div>\n\n```sh\n{words}\n```\n\n```text\n{texts}\n```\n'
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the galleries and their pages to the files of the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415  # only the generator of the site has it

    for gallery in GALLERIES:
        parts = [f"# {gallery['title']}\n\n{gallery['about']}\n"]
        for example in gallery["examples"]:
            subject = worked(example)
            parts.append(shown(gallery, example, subject))
            if not isinstance(subject, rs.Sharding):
                page = f"gallery/{address(gallery, example)}"
                files.append(File.generated(config, page, content=subject.to_html()))
        files.append(File.generated(config, f"gallery/{gallery['page']}.md", content="\n".join(parts)))
    return files
