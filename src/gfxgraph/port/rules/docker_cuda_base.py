"""CUDA base image."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX009",
    code="docker-cuda-base",
    severity=Severity.MEDIUM,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "CUDA base image",
        "built on {image}",
        "The image has no ROCm user space.",
        "Keep it, and add a sibling Dockerfile on rocm/pytorch or rocm/dev-ubuntu.",
    ),
    zh=Text(
        "CUDA 基础镜像",
        "基于 {image}",
        "该镜像没有 ROCm 用户态。",
        "保留原文件，另加一个基于 rocm/pytorch 或 rocm/dev-ubuntu 的 Dockerfile。",
    ),
    path="Dockerfile",
    bad="FROM nvidia/cuda:12.4.1-devel-ubuntu22.04\n",
    good={"Dockerfile": "FROM python:3.11\n", "Dockerfile_amd": "FROM rocm/pytorch:latest\n"},
    needs=("cuda", "nvcr.io"),
)
_IMAGE = re.compile(
    r"(?:docker\.io/)?nvidia/cuda\S*|nvcr\.io/nvidia/\S+|(?<!\S)\S*pytorch/pytorch:\S*cuda\S*|(?<!\S)\S+[:-]cu1\d\d\S*"
)


def check_docker(f: TextFile, ctx: Context) -> Iterator[Hit]:
    cuda = False
    for entry in f.commands("FROM", "ARG"):
        match = _IMAGE.search(entry.text)
        if match and (entry.keyword == "FROM" or re.match(r"\w*(BASE|IMAGE)\w*\s*=", entry.text)):
            yield entry_hit(f, entry, image=match.group())
            cuda = entry.keyword == "FROM" or cuda
    if cuda:
        for entry in f.entries:
            if entry.keyword not in ("FROM", "LABEL") and not (entry.keyword == "ARG" and _IMAGE.search(entry.text)):
                for number in range(entry.line, max(entry.line, entry.last_line) + 1):
                    line = f.lines[number - 1].partition(" #")[0] if number <= len(f.lines) else ""
                    if (found := _REST.search(line)) and not re.search(r"(?i)rocm|\bhip|\bamd\b", line):
                        made = entry_hit(f, entry, image=found.group(), severity=Severity.LOW, group="image")
                        yield replace(made, line=number, end_line=number)


# What else in such a file is NVIDIA's: packages, paths, variables, keys of its repository.
_REST = re.compile(
    r"(?i)/usr/local/cuda\S*|\b(?:cuda|cudnn|nccl|nvidia|libcu|libnv|tensorrt)[\w-]*|\bLD_LIBRARY_PATH\S*cuda|TORCH_CUDA\w*|NVIDIA_\w+|\bcu1\d\d\b|sm_\d\d"
)


def check_yaml(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(rf"\b(?:image|container)\s*:\s*[\"']?(?:{_IMAGE.pattern})"):
        yield entry_hit(f, entry, image=match.group().partition(":")[2].strip())


def fix_docker(hit: Hit, f: TextFile, ctx: Context) -> Edit | EditRefusal | None:
    """The base image becomes a build argument whose default is the old one."""
    line = f.lines[hit.line - 1] if 0 < hit.line <= len(f.lines) else ""
    match = re.fullmatch(r"FROM\s+(\S+)(.*)", line.strip())
    if match is None or "$" in line:
        return None if hit.group else EditRefusal(hit.line, "the image is computed")
    number = sum(row.upper().startswith("FROM") for row in f.lines[: hit.line - 1])
    if number:
        return EditRefusal(hit.line, "an argument of a later stage must stand before the first FROM")
    text = f"ARG BASE_IMAGE={match[1]}\nFROM ${{BASE_IMAGE}}{match[2]}"
    needs = "docker build --build-arg BASE_IMAGE=rocm/dev-ubuntu-22.04 (or rocm/pytorch) for AMD"
    return Edit(hit.line, 0, text, last_line=hit.line, needs=needs)
