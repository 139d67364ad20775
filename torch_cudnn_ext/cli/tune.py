"""``tune``: measure ahead of use."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import Tune
from torch_cudnn_ext._workload.network import Workload, nothing_found
from torch_cudnn_ext._workload.problems import (
    Layer,
    coupled_problems,
    is_inference,
    is_wanted,
    merge,
)
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.profile import profile_of_rankings
from torch_cudnn_ext.analysis.records import Record
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.summary import with_most_to_gain
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, bytes_text, milliseconds, plural
from torch_cudnn_ext.cli import checks, running, workload
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.tuning.measure import check_constraints_alone
from torch_cudnn_ext.tuning.store_rows import MEASUREMENT_FIELDS
from torch_cudnn_ext.tuning.tune import problems_met
from torch_cudnn_ext.tuning.untuned import take_recorded

SHOWN_TUNED = 20  # problems, unless the user asks for all
_COLUMNS = (
    Column("problem", lambda r: r["problem"]),
    ALGORITHM,
    Column("ms", lambda r: milliseconds(r["median_ms"]), True),
    Column("workspace", lambda r: bytes_text(r["workspace_bytes"]), True),
)


def tune_command(context: typer.Context, given: Tune) -> None:
    """Run ``tune``."""
    table, device, constraints, search = given.table, given.device, given.constraints, given.search
    running.check_report(given.report)
    record = _recorded(device) if given.from_record else {}
    if given.from_record:
        work = Workload([Layer(line) for part in record.values() for line in part], {})
    else:
        with ProgressBar() as bar:
            bar.phase(running.first_phase(given.source))
            work = workload.from_options(
                given.source, given.tensors, constraints.policy, device, _trace_enabled
            )
    settings = running.settings_of(work.layers, device, None, constraints, search)
    place, text = settings.device, settings.policy
    with checks.errors_of("--policy"):
        check_constraints_alone(text)
    layers = merge(workload.only_shard(work.layers, given.shard_text))
    lines = [layer.problem for layer in layers]
    before = tuning.statistics()
    place_kept = _place_kept(table)
    if table is not None:
        running.merge_file(table)
    rows = partial(_C.tuned, device=place, policy=text, time_budget_s=settings.time_budget_s)
    left = [line for line in lines if rows(line) is None]
    known = len(lines) - len(left)
    end: running.End = None
    try:
        with ProgressBar() as bar:
            tuning.tune(
                left,
                device=place,
                policy=text,
                time_budget_s=settings.time_budget_s,
                knob_search=search.knob_search,
                jobs=search.jobs,
                progress=bar,
                isolate=given.isolate,
            )
    except KeyboardInterrupt as interrupt:
        end = interrupt
    finally:
        rankings = [(layer, ranking) for layer in layers if (ranking := rows(layer.problem))]
        records = [{"problem": layer.problem, **ranking[0]} for layer, ranking in rankings]
        title = given.source.model or given.source.problems or ""
        tuned = profile_of_rankings(rankings, settings, title)
        # The table in memory has what a full disk kept out of the store.
        lost = 0 if table is not None else tuning.statistics().not_kept - before.not_kept
        try:
            if table is not None:
                tuning.merge_table(table)
        finally:
            footer = _footer(place_kept, len(lines), known, len(records) - lost, lost)
            _print(given, tuned, records, f"tuned on {place}", footer)
            running.print_measured(given.format, before)
    if len(records) - lost == len(lines):
        for path in record:
            path.unlink(missing_ok=True)
    replay = running.replay_of(context)
    running.write_report(given.report, lambda: tuned.to_html(replay=replay))
    running.finish(end, len(records), len(lines))
    if lost:
        raise typer.Exit(1)


def _recorded(device: str | None) -> dict[Path, list[str]]:
    """The problems that calls on a device recorded in the store, by file.

    Lines that are no problems are told and left out: a process may have been killed in the middle
    of one.

    Raises:
        BadParameter: There is no store, or nothing in it.
    """
    store = tuning.store_path()
    if store is None:
        raise typer.BadParameter("--from-record: the tuning store is off, wanted one")
    place = checks.place_of(device)
    with checks.errors_of("--from-record"):
        found = take_recorded(store, _C.device_fingerprint(place))
    for path, lines in found.items():
        found[path] = [line for line in map(_canonical, lines) if line is not None]
        if bad := len(lines) - len(found[path]):
            typer.echo(f"{path}: {plural(bad, 'line')} hold no problem", err=True)
    if not any(found.values()):
        raise typer.BadParameter(
            f"--from-record: {store} holds no problems of {place}; calls with on_miss=record add "
            "them"
        )
    return found


def _canonical(line: str) -> str | None:
    """The canonical text of a problem line; ``None`` if it is none."""
    try:
        return _C.canonical_problem(line)
    except ValueError:
        return None


def _print(given: Tune, tuned: Profile, records: list[Record], title: str, footer: str) -> None:
    """Print the sentence, and the best algorithms of the problems with most to gain."""
    format, fields, data = given.format, ("problem", *MEASUREMENT_FIELDS), {"best": records}
    if format not in (options.Format.json, options.Format.csv) and records:
        title = f"{tuned.sentence()}\n{title}"
        most = 0 if given.all_layers else SHOWN_TUNED
        by_problem = {record["problem"]: record for record in records}
        records = [by_problem[layer.problem] for layer in with_most_to_gain(tuned, most)]
        if hidden := len(by_problem) - len(records):
            footer += f"\n{plural(hidden, 'problem')} more, with less to gain (--all-layers)"
    running.print_output(formatted(format.value, data, title, _COLUMNS, records, fields, footer))


def _place_kept(table: str | None) -> str:
    """The file of ``--table``, or the folder of the store; BadParameter if there is neither."""
    kept = table or tuning.store_path()
    if kept is None:
        raise typer.BadParameter(
            "--table: not given, and the tuning store is off, wanted one of them"
        )
    return str(kept)


def _footer(place_kept: str, asked: int, known: int, kept: int, lost: int) -> str:
    """How many of the problems were kept before, and are now."""
    text = f"{known} of {asked} problems were known before. " if known else ""
    text += f"{kept} of {asked} are kept in {place_kept}"
    if lost:
        text += f"; {plural(lost, 'ranking')} could not be written"
    if kept + lost < asked:
        text += "; the next call measures the others, which were too noisy, excluded or not reached"
    return f"{text}."


def _trace_enabled(
    name: str, load: workload.Loader, passes: list[str], compute: str, device: str
) -> Workload:
    """The problems of a network under `enable`, as `tuning.tune_model` tunes it."""
    network, inputs = load(device)
    infers = is_inference(passes)
    with workload.network_errors(name):
        met = problems_met(network, inputs, train=not infers, policy=compute)
        every = infers and "fwd" in passes  # inference calls its forward alone

        def wanted(problem: str) -> bool:
            """Whether the problem is of a wanted pass, or is tuned with one that is."""
            infos = map(_C.problem_info, [problem, *coupled_problems(problem)])
            return any(is_wanted(info["pass_name"], passes) for info in infos)

        layers = [layer for layer in met if every or wanted(layer.problem)]
        if not layers:
            led = [line for one in met for line in (one.problem, *coupled_problems(one.problem))]
            raise ValueError(nothing_found(network, passes, led))
    return Workload(layers, {})
