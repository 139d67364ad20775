"""The pages of the reference that are made of the code."""

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from typing import Any

import torch
import typer
from algorithm_words import BASELINE, WORDS
from measurement_pages import markdown_table

import torch_cudnn_ext
from torch_cudnn_ext import _C, analysis, knobs, models, ops, policy, tuning
from torch_cudnn_ext._commands.examples import EXAMPLES
from torch_cudnn_ext._commands.parsing import INTERRUPTED
from torch_cudnn_ext._commands.topics import arguments_of, markdown_of
from torch_cudnn_ext._defaults import DEFAULT_TARGET
from torch_cudnn_ext._engine_knobs import ENGINE_KNOBS
from torch_cudnn_ext._grammar import (
    ALGORITHM,
    ALGORITHMS,
    CONSTRAINTS,
    CONVOLUTION_FIELDS,
    PROBLEM_LINE,
    PROBLEM_PARTS,
    SELECTED,
    SELECTIONS,
)
from torch_cudnn_ext._policy_text import algorithms_of
from torch_cudnn_ext.cli.app import app, main
from torch_cudnn_ext.cli.info import operators_markdown

FOLDER = "reference/generated/"
# What the scripts in tools and setup.py read; the package does not.
TOOL_VARIABLES = {
    "TORCH_CUDNN_EXT_ERRATA": "The file of local errata; if it is empty, there is none. By default "
    "`torch_cudnn_ext/errata.jsonl` in `$XDG_CACHE_HOME` or `~/.cache`.",
    "TORCH_CUDNN_EXT_PYTHON": "The interpreter that the scripts in `tools` use, and no other.",
    "TORCH_VERSION": "The PyTorch that `tools/test` makes an environment for, such as `2.11`.",
    "CXX": "The C++ compiler of the build.",
    "MAX_JOBS": "Compilers at a time. The default depends on cores and memory.",
    "CUDA_HOME": "A CUDA toolkit, for headers that no wheel brings.",
}
# Modules of `ops` without the family's name; the functions of spatial transformers have it.
FAMILIES_OF_MODULES = {
    "convolution": "conv",
    "convolution_primitives": "conv",
    "cross_entropy": "softmax",
    "pooling": "pool",
    "reduction": "reduce",
}
EXIT_CODES = {
    0: "All was done.",
    1: "Something failed while it ran, also in a network's own code. Or `compare` found something "
    "slower or gone, `verify` a known defect that counts as fixed, or `store` nothing to show, bad "
    "lines, differences or a drift.",
    2: "An argument or an environment variable is wrong.",
    INTERRUPTED: "Ctrl-C or SIGTERM. `profile`, `bench` and `tune` print first what was finished.",
}


DEFECTS = """# Defects of cuDNN

These errata are known defects of cuDNN, and of PyTorch's kernels that run on it. The tests of this
project found them. Each is a row of a table in the code. `info --errata` prints the table for the
installed versions, and `info --errata --cudnn 9.28.1` for another.

A guard stays on with every later version until a run has shown that a version is free of the
defect. `verify --errata` makes such runs, each in a process of its own with the guard lifted.
A row may have several runs. It counts as not seen only if all of them ran and none showed it.

Sizes beyond 2^31 elements were tried on an H200 with the engines of some thirty problems. Other
shapes of that size may hold more such defects.
[Numerics](../../explanation/numerics.md) tells what differs in infinities and NaN.

"""


def pages() -> dict[str, str]:
    """The text of each page by its path under docs."""
    made = {
        "command-line.md": command_line(),
        "settings.md": settings(),
        "operators.md": operators(),
        "algorithms.md": algorithms(),
        "schemas.md": schemas(),
        "exceptions.md": exceptions(),
        "defects-of-cudnn.md": defects(),
        "constraints.txt": constraints(),
        "problem-lines.txt": problem_lines(),
        "selections.txt": selections(),
        "selection-words.txt": f"{SELECTED}\n\n"
        + two_columns("written as", "selects for", SELECTIONS),
        "algorithm-texts.txt": f"{ALGORITHM}\n\n" + block("      ".join(ALGORITHMS)),
        "problem-parts.txt": two_columns("part", "meaning", PROBLEM_PARTS),
        "engine-knobs.txt": engine_knobs(),
        "problem-line.txt": block(PROBLEM_LINE),
        "convolution-fields.txt": f"{CONVOLUTION_FIELDS}\n",
    }
    return {FOLDER + name: text for name, text in made.items()}


def code(text: str) -> str:
    """A text as code in a table's cell."""
    return f"`{text}`" if text else ""


def two_columns(left: str, right: str, rows: dict[str, str]) -> str:
    """A table of names and meanings."""
    return markdown_table([left, right], [[*row] for row in rows.items()])


def block(text: str) -> str:
    """A fenced block of text."""
    return f"```text\n{text}\n```\n"


def engine_knobs() -> str:
    """Numbers and names of engine knobs in one paragraph."""
    return ", ".join(f"`k{i}` `{name}`" for i, name in enumerate(ENGINE_KNOBS)) + ".\n"


# Command line.


def command_line() -> str:
    """Every command with its options, from the declarations that ``--help`` prints."""
    lines = [
        "# Command line",
        "",
        "In a clone the command is `tools/run`. An installed package has `torch_cudnn_ext` and "
        "`python -m torch_cudnn_ext`.",
        "",
    ]
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        lines += [f"## {name}", "", *paragraphs(command.help or ""), ""]
        context = typer.Context(command, info_name=f"tools/run {name}")
        records = [param.get_help_record(context) for param in command.params]
        rows = [[code(names), " ".join(text.split())] for names, text in filter(None, records)]
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        examples = [f"$ tools/run {example}" for example in EXAMPLES[name]]
        lines += ["```console", f"$ {usage}", "```", ""]
        lines += [markdown_table(["option", "meaning"], rows), ""]
        lines += ["Examples:", "", "```console", *examples, "```", ""]
    return "\n".join(lines)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring, each in one line, with an empty line between."""
    for part in inspect.cleandoc(text).split("\n\n"):
        yield " ".join(part.split())
        yield ""


# Settings.


def settings() -> str:
    """All settings, and all environment variables, in one table."""
    described = arguments_of(policy.Policy.__doc__ or "")
    of_knobs = knob_descriptions()
    rows = [setting_row(name, wanted, described[name]) for name, (_, wanted) in CONSTRAINTS.items()]
    for name in ("enabled", *knobs._OF_PROCESS):
        rows.append(setting_row(name, "No field of a policy.", of_knobs[name]))
    for name in filter(lambda one: one.endswith("_algo"), dir(knobs)):
        key = name.removesuffix("_algo")
        wanted = "'autotune', 'tuned', 'heuristic', or an algorithm"
        rows.append(setting_row(name, wanted, f"The selection `{key}` of a policy."))
    rows += [[code(name), "", meaning] for name, meaning in TOOL_VARIABLES.items()]
    return "\n".join(
        [
            "# Settings and environment variables",
            "",
            "A constraint has one name: as a field of a [policy](../policy.md), as an attribute of "
            "`torch_cudnn_ext.knobs`, and as an environment variable, which stands under it. The "
            "selection `conv_fwd` of a policy is the knob `conv_fwd_algo`. Environment variables "
            "are read once, when the package is imported. The last rows are other variables: "
            "that of local errata, and those of `tools` and of the build.",
            "",
            markdown_table(["setting and variable", "values", "meaning"], rows),
        ]
    )


def setting_row(name: str, wanted: str, meaning: str) -> list[str]:
    """The cells of one setting."""
    names = f"{code(name)}<br>{code(f'TORCH_CUDNN_EXT_{name.upper()}')}"
    return [names, words_as_code(wanted), meaning]


def words_as_code(text: str) -> str:
    """A text whose words in quotes are written as code."""
    return re.sub("'([^']*)'", r"`\1`", text)


def constraints() -> str:
    """The fields of a policy that select nothing."""
    described = arguments_of(policy.Policy.__doc__ or "")
    rows = [
        [code(name), words_as_code(wanted), described[name]]
        for name, (_, wanted) in CONSTRAINTS.items()
    ]
    return markdown_table(["field", "values", "meaning"], rows)


def knob_descriptions() -> dict[str, str]:
    """What the docstring of `knobs` says of each knob that is listed by itself."""
    text = (torch_cudnn_ext.knobs.__doc__ or "").partition("- ``conv_fwd_algo``")[2]
    found = re.findall(r"^- ``(\w+)``: (.*(?:\n  .*)*)", text, re.M)
    return {name: markdown_of(words) for name, words in found}


def selections() -> str:
    """The passes of each family, and the names that select for them."""
    rows = []
    for op in _C.operators():
        family, passes = op["family"], op["passes"]
        keys = [family, *(f"{family}_{name}" for name in passes)]
        rows.append([code(family), *(", ".join(map(code, words)) for words in (passes, keys))])
    return markdown_table(["family", "passes", "names in a policy of any operator"], rows)


# Operators and algorithms.


def operators() -> str:
    """The table that ``info --operators`` prints, as a section for each family."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in operators_markdown().splitlines()
        if line.startswith("|")
    ]
    headings, cells = rows[0], rows[2:]
    lines = [
        "# Operators",
        "",
        "*cuDNN's algorithms* counts what an H200 may run on some common problems: engines of the "
        "graph API, and algorithms of the classic API (`legacy`). "
        "[Algorithms by family](algorithms.md) names them. `cudnnBackendExecute` is the graph API. "
        "`tools/run info --operators` prints all of this as one table.",
        "",
    ]
    for row in cells:
        fields = [[name, text] for name, text in zip(headings[1:], row[1:], strict=True) if text]
        family = row[0].strip("`")
        fields.insert(0, ["functions", ", ".join(functions_of(family))])
        lines += ["## " + family, "", markdown_table(["what", "of this family"], fields), ""]
    return "\n".join(lines)


def functions_of(family: str) -> list[str]:
    """Links to the functions of `ops` that run operators of a family."""
    return [
        f"{{py:func}}`~torch_cudnn_ext.ops.{name}`"
        for name in ops.__all__
        if family in (name, FAMILIES_OF_MODULES.get(module_of(name), module_of(name)))
        and inspect.isfunction(getattr(ops, name))
    ]


def module_of(name: str) -> str:
    """The module of `ops` that defines a function."""
    return str(getattr(ops, name).__module__).rpartition(".")[2]


def algorithms() -> str:
    """The algorithms of each family and pass, with a sentence each."""
    lines = [
        "# Algorithms by family",
        "",
        "Every family has `aten:default`. " + BASELINE.replace("PyTorch", "It is PyTorch", 1),
        "",
        "Engines of the graph API are those that an H200 accepts for some common problems. Their "
        "numbers and knobs belong to a version of cuDNN.",
        "",
    ]
    for op in _C.operators():
        family = op["family"]
        lines += [f"## {family}", "", markdown_table(["algorithm", "passes", "what it is"], [
            [code(name), ", ".join(passes), words_of(family, name)]
            for name, passes in named_algorithms(op).items()
        ])]  # fmt: skip
        if numbers := legacy_numbers(op):
            lines += ["", "cuDNN's integers and names:", "", numbers]
        if engines := engines_of(op):
            lines += ["", f"Engines of the graph API by number: {engines}.", ""]
    return "\n".join(lines)


def named_algorithms(op: dict[str, Any]) -> dict[str, list[str]]:
    """The passes of each algorithm with a name, the baseline first.

    If cuDNN supports an algorithm in some passes alone, these are its passes.
    """
    found: dict[str, list[str]] = {}
    supported: dict[str, list[str]] = {}
    for name in op["passes"]:
        for algorithm in algorithms_of(op["family"], name):
            if not algorithm.startswith("graph:"):
                found.setdefault(algorithm, []).append(name)
        for algorithm in dict.fromkeys(
            row["algorithm"].partition("/")[0]
            for row in target_rows(op, name)
            if row["backend"] == "legacy" and row["status"] != "unsupported"
        ):
            supported.setdefault(algorithm, []).append(name)
    order = ("aten", "legacy", "cpu")
    both = found | supported
    return dict(sorted(both.items(), key=lambda one: order.index(one[0].partition(":")[0])))


def target_rows(op: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The algorithms of a pass for each common problem, on the target."""
    for example in op["examples"]:
        line = " ".join([f"{op['family']}_{name}", *example.split()[1:]])
        yield from _C.candidates(line, f"target:{DEFAULT_TARGET}")


def words_of(family: str, algorithm: str) -> str:
    """The sentence for an algorithm.

    Raises:
        KeyError: ``algorithm_words`` has none.
    """
    return BASELINE if algorithm == "aten:default" else WORDS[f"{family} {algorithm}"]


def legacy_numbers(op: dict[str, Any]) -> str:
    """Integer and enumerator in cuDNN of each algorithm of the classic API."""
    named = named_algorithms(op)
    rows = [
        [name, str(value), code(enumerator), code(f"legacy:{short}")]
        for name, entries in op["legacy_names"].items()
        for value, enumerator, short in entries
        if name in named.get(f"legacy:{short}", op["passes"])
    ]
    return markdown_table(["pass", "integer", "cuDNN's name", "algorithm"], rows) if rows else ""


def engines_of(op: dict[str, Any]) -> str:
    """The engines of the graph API by pass, for the common problems."""
    parts = []
    for name in op["passes"]:
        engines = {
            int(re.findall(r"graph:eng(\d+)", row["algorithm"])[0])
            for row in target_rows(op, name)
            if row["backend"] == "graph" and row["status"] != "unsupported"
        }
        if engines:
            parts.append(f"{name} " + ", ".join(f"`eng{number}`" for number in sorted(engines)))
    return "; ".join(parts)


def problem_lines() -> str:
    """Common problems of each family, in their canonical lines."""
    return "".join(f"{_C.canonical_problem(op['examples'][0])}\n" for op in _C.operators())


# The interface.


def schemas() -> str:
    """Every operator that is registered with PyTorch's dispatcher."""
    found = sorted(
        str(schema)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torch_cudnn_ext::")
    )
    text = "\n".join(found)
    return (
        "# Schemas\n\nThe operators as `torch.ops.torch_cudnn_ext.*`. They take a policy's text "
        f"only. See [raw operators](../../howto/raw-operators.md).\n\n```text\n{text}\n```\n"
    )


def exceptions() -> str:
    """Which function raises what, from the docstrings, and the exit codes."""
    rows = []
    for label, holder in {
        "": torch_cudnn_ext, "tuning.": tuning, "models.": models, "analysis.": analysis,
        "knobs.": knobs, "ops.": ops,
    }.items():  # fmt: skip
        for name in holder.__all__:
            function = getattr(holder, name)
            if inspect.isfunction(function) and (raised := raises_of(function.__doc__ or "")):
                rows += [[code(label + name), code(kind), text] for kind, text in raised]
    return "\n".join(
        [
            "# Exit codes and exceptions",
            "",
            "An error of the command line is one line on standard error.",
            "",
            markdown_table(["exit code", "meaning"], [[str(k), v] for k, v in EXIT_CODES.items()]),
            "",
            "Functions raise `TypeError` for a wrong type, `ValueError` for a wrong value, and "
            "`RuntimeError` for what cannot run. `ImportError` at the import says what does not "
            "fit: the version of PyTorch, the build, or the files of cuDNN. A message names the "
            "argument, what came, and what was wanted.",
            "",
            markdown_table(["function", "exception", "when"], rows),
        ]
    )


def raises_of(docstring: str) -> list[tuple[str, str]]:
    """The exceptions that a docstring names, each with its condition."""
    text = inspect.cleandoc(docstring).partition("Raises:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.M)
    return [(name, markdown_of(words)) for name, words in found]


def defects() -> str:
    """What ``info --errata`` prints, with what it means."""
    output = io.StringIO()
    arguments = ["info", "--errata", "--format", "markdown"]
    with contextlib.redirect_stdout(output):
        status = main(arguments)
    if status:
        raise RuntimeError(f"torch_cudnn_ext {' '.join(arguments)} ended with {status}")
    return DEFECTS + output.getvalue()
