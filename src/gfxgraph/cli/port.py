"""gfxgraph port: audit, plan, fix and verify a CUDA codebase for ROCm."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console

from gfxgraph.port.archs import select
from gfxgraph.port.files import write_out


@click.group("port", help="Audit, plan, fix and verify a CUDA codebase for ROCm.")
def command() -> None:
    pass


LANG = click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Report language."
)
ARCH = click.option("--arch", metavar="LIST", help="Targets: names, patterns or families, as gfx1030,gfx94*,RDNA3.")


def _archs(spec: str | None) -> Any:
    try:
        return select(spec)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--arch") from error


def _fail(message: object) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(2)


class _Progress:
    """A line on a terminal's stderr while files are audited; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self.is_on = sys.stderr.isatty()
        self.last = -1

    def update(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total)
        if self.is_on and percent != self.last:
            self.last = percent
            click.echo(f"\r{done:,} of {total:,} files audited ({percent}%)", err=True, nl=False)

    def close(self) -> None:
        if self.is_on and self.last >= 0:
            click.echo("\r\x1b[K", err=True, nl=False)


@command.command("audit")
@click.argument("path", default=".")
@ARCH
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--sarif", "sarif_path", metavar="FILE", help="Write SARIF 2.1.0; - for stdout.")
@click.option("--diff", metavar="REV", help="Only findings on lines changed since a git revision.")
@click.option("--baseline", metavar="FILE", help="Leave out findings listed in FILE.")
@click.option("--write-baseline", metavar="FILE", help="Write today's findings as the baseline.")
@click.option("--rule", "rules", multiple=True, metavar="CODE", help="Only this rule or prefix; repeatable.")
@click.option(
    "--severity",
    type=click.Choice(["info", "low", "medium", "high", "critical"]),
    default="low",
    show_default=True,
    help="Leave out what is milder; the report says how many.",
)
@click.option("--show-guarded", is_flag=True, help="Also list findings that a guard keeps from AMD.")
@click.option("--vendored", is_flag=True, help="Audit third-party folders and submodules too.")
@click.option("--max-bytes", type=int, default=2_000_000, show_default=True, help="Pass over larger files.")
@click.option("--jobs", type=int, help="Worker processes; the number of cores by default.")
@click.option("--limit", type=int, default=8, show_default=True, help="Files shown a rule; 0 for all.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 even with findings.")
def audit_command(
    path: str,
    arch: str | None,
    lang: str,
    as_json: bool,
    sarif_path: str | None,
    diff: str | None,
    baseline: str | None,
    write_baseline: str | None,
    rules: tuple[str, ...],
    severity: str,
    show_guarded: bool,
    vendored: bool,
    max_bytes: int,
    jobs: int | None,
    limit: int,
    exit_zero: bool,
) -> None:
    """Find what keeps PATH from running on AMD GPUs.

    Exit status: 0 nothing found, 1 findings, 2 the audit could not run.
    """
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port import audit as auditing
    from gfxgraph.port import render
    from gfxgraph.port.model import Severity

    targets = _archs(arch)
    shown = _Progress()
    try:
        report = auditing.audit(
            path,
            archs=targets,
            rules=frozenset(rules) or None,
            diff=diff,
            baseline=baseline,
            vendored=vendored,
            max_bytes=max_bytes,
            jobs=jobs,
            min_severity=Severity[severity.upper()],
            progress=shown.update,
        )
        shown.close()
        if write_baseline:
            auditing.write_baseline(report, write_baseline)
    except (auditing.AuditError, OSError) as error:
        _fail(error)
        return
    if sarif_path:
        # lazily: the parsers are an extra, and help must be there without them
        from gfxgraph.port.sarif import as_sarif

        text = json.dumps(as_sarif(report, lang=lang), indent=1, ensure_ascii=False)
        if sarif_path == "-":
            click.echo(text)
        else:
            try:
                write_out(sarif_path, text + "\n", tree=path)
            except OSError as error:
                _fail(error)
    if as_json:
        click.echo(json.dumps(render.as_json(report, lang=lang, guarded=show_guarded), indent=1, ensure_ascii=False))
    elif sarif_path != "-":
        render.show(report, Console(highlight=False), lang=lang, guarded=show_guarded, limit=limit)
    sys.exit(0 if exit_zero or write_baseline or not report.findings else 1)


@command.command("rules")
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rules_command(lang: str, as_json: bool) -> None:
    """List every rule."""
    from rich.table import Table

    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port.phases import word
    from gfxgraph.port.registry import load

    loaded = load()
    if as_json:
        rows = [
            {"rule": r.rule.id, "code": r.rule.code, "severity": r.rule.severity.label, "phase": r.rule.phase,
             "fix": r.rule.fix.value, "archs": list(r.rule.archs.names()), "kinds": sorted(r.checks),
             "title": r.rule.text(lang).title}
            for r in loaded
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("", "", word("severity", lang), word("fix", lang), ""):
        table.add_column(heading, no_wrap=heading != "")
    for r in loaded:
        table.add_row(
            r.rule.id,
            r.rule.code,
            word(r.rule.severity.label, lang),
            word(r.rule.fix.value, lang),
            r.rule.text(lang).title,
        )
    Console(highlight=False).print(table)


@command.command("rule")
@click.argument("code")
@LANG
def rule_command(code: str, lang: str) -> None:
    """Explain one rule, with an example that fires and one that does not."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port.phases import phase_title, word
    from gfxgraph.port.registry import find

    found = find(code)
    if found is None:
        _fail(f"no rule {code!r}; gfxgraph port rules lists them")
        return
    rule, text = found.rule, found.rule.text(lang)
    click.echo(f"{rule.id} {rule.code}: {text.title}")
    click.echo(
        f"  {word('phase', lang)} {rule.phase} {phase_title(rule.phase, lang)} · "
        f"{word(rule.severity.label, lang)} · "
        f"{word('fix', lang)} {word(rule.fix.value, lang)} · {word('affects', lang)} {rule.archs.label}"
    )
    click.echo(f"  {word('why', lang)}: {text.why}")
    click.echo(f"  {word('do', lang)}: {text.do}")
    if rule.versions:
        click.echo(f"  ROCm/torch: {rule.versions}")
    for kind in ("bad", "good"):
        for path, body in rule.files(kind).items():
            click.echo(f"\n--- {kind}: {path}")
            click.echo(body.rstrip())


@command.command("plan")
@click.argument("path", default=".")
@ARCH
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_command(path: str, arch: str | None, lang: str, as_json: bool) -> None:
    """Say which phases PATH needs, in what order, and what no tool can do."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port import audit as auditing
    from gfxgraph.port import facts, plan
    from gfxgraph.port.project import discover

    targets = _archs(arch)
    try:
        report = auditing.audit(path, archs=targets)
        project = discover(path)
        facts.gather(project)
    except (auditing.AuditError, OSError) as error:
        _fail(error)
        return
    made = plan.make_plan(report, project)
    if as_json:
        click.echo(json.dumps(plan.as_json(made, lang=lang), indent=1, ensure_ascii=False))
    else:
        click.echo(plan.as_markdown(made, lang=lang), nl=False)


@command.command("agent")
@click.argument("path", default=".")
@ARCH
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the default.")
@click.option("--gate", "before", metavar="FILE", help="Audit again and compare with an earlier document.")
def agent_command(path: str, arch: str | None, lang: str, as_json: bool, before: str | None) -> None:
    """Everything a porting agent works through, in one document: ranked findings, diffs, and the gate.

    Save it, work from the top, then run it with --gate FILE. Exit status: 0 written, or the gate passed; 1 the gate
    did not pass; 2 it could not run.
    """
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port import agent
    from gfxgraph.port.audit import AuditError

    targets = _archs(arch)
    try:
        if before is None:
            data = agent.document(path, archs=targets, lang=lang)
        else:
            with open(before, encoding="utf-8") as file:
                data = agent.gate(path, json.load(file), archs=targets)
    except (AuditError, OSError, ValueError) as error:
        _fail(error)
        return
    click.echo(json.dumps(data, indent=1, ensure_ascii=False))
    sys.exit(0 if before is None or data["passed"] else 1)


@command.command("fix")
@click.argument("path", default=".")
@ARCH
@click.option("--unsafe", is_flag=True, help="Also make the edits that are only suggested.")
@click.option("--dry-run", is_flag=True, help="Print the patch and write nothing.")
@click.option("--apply", "apply_", is_flag=True, help="Edit the files instead of writing a patch.")
@click.option("--output", default="gfxgraph-port.patch", show_default=True, help="Patch file.")
@click.option("--test", "test", metavar="COMMAND", help="With --apply: run this; undo the edits where it fails.")
@click.option("--hipify", "hipify_to", metavar="FOLDER", help="Also translate CUDA sources, into FOLDER.")
def fix_command(
    path: str,
    arch: str | None,
    unsafe: bool,
    dry_run: bool,
    apply_: bool,
    output: str,
    test: str | None,
    hipify_to: str | None,
) -> None:
    """Fix what can be fixed without touching NVIDIA's path.

    Writes a patch for review. Every edit has passed the identity gate, but for those of --unsafe whose precondition
    says why NVIDIA gets the same. What is left, and why, is listed. Exit status: 0 done, 1 some edits were refused
    or undone, 2 it could not run.
    """
    if test and not apply_:
        _fail("--test runs after --apply")
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port.audit import AuditError
    from gfxgraph.port.fix import run

    targets = _archs(arch)
    try:
        fixes = run.fix(path, unsafe=unsafe, archs=targets)
    except (AuditError, OSError) as error:
        _fail(error)
        return
    patch = "".join(f.patch() for f in fixes if f.new != f.old)
    if dry_run:
        click.echo(patch, nl=False)
    elif apply_:
        try:
            written = run.write_all(path, fixes)
        except OSError as error:
            _fail(error)
            return
        failed = run.try_out(path, fixes, test) if test else ""
        for name in written:
            click.echo(f"{'edited' if not failed else 'put back'} {name}")
        if failed:
            click.echo(f"undone: {test}: {failed}", err=True)
            sys.exit(1)
    elif patch:
        try:
            write_out(output, patch, tree=path)
        except OSError as error:
            _fail(error)
        click.echo(f"wrote {output}: review it, then git apply {output}")
    n_edits = sum(len(f.applied) for f in fixes)
    refused = [(f.path, r) for f in fixes for r in f.refused]
    for name, r in refused:
        click.echo(f"refused {name}:{r.line} {r.rule}: {r.reason}", err=True)
    click.echo(f"{n_edits} {'edit' if n_edits == 1 else 'edits'}, {len(refused)} refused", err=True)
    _preconditions(fixes)
    for rest in run.left_over(path, fixes, targets) if not dry_run else ():
        click.echo(f"left {rest.rule} {rest.code} ({rest.count}): {rest.reason}", err=True)
    if hipify_to and not dry_run:
        _hipify(path, hipify_to)
    sys.exit(1 if refused else 0)


def _preconditions(fixes: list[Any]) -> None:
    """What a reviewer is to check, by rule."""
    from collections import Counter

    for (rule, needs), count in Counter((e.rule, e.needs) for f in fixes for e in f.applied if e.needs).items():
        click.echo(f"check {rule} ({count}): {needs}", err=True)


def _hipify(path: str, folder: str) -> None:
    """Translate out of place with torch's own hipify, where torch is installed."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.rocm.hipify import HipifyError, hipify

    try:
        for line in hipify(path, folder):
            click.echo(line)
    except HipifyError as error:
        _fail(error)


@command.command("env")
@click.argument("path", required=False)
@LANG
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def env_command(path: str | None, lang: str, as_json: bool) -> None:
    """Audit this machine, its packages and, with PATH, the images and requirements there (phases 0 and 1).

    The health checks are those of gfxgraph doctor. Exit status: 0 nothing found, 1 findings, 2 it could not run.
    """
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.hardware import checks
    from gfxgraph.port import audit as auditing
    from gfxgraph.port import env, render

    site = checks.Site()
    facts = env.gather(site)
    findings = env.audit_env(facts)
    health = checks.run(checks.ALL, site)
    recipes = None
    if path is not None:
        try:
            recipes = auditing.audit(path, kinds=frozenset({"docker", "requirements", "shell", "yaml", "ini"}))
        except (auditing.AuditError, OSError) as error:
            _fail(error)
            return
        recipes.findings = [f for f in recipes.findings if f.phase <= 1]
    if as_json:
        click.echo(json.dumps(_env_json(facts, findings, health, recipes, lang), indent=1, ensure_ascii=False))
    else:
        _env_screen(facts, findings, health, lang)
        if recipes is not None:
            render.show(recipes, Console(highlight=False), lang=lang, guarded=False, limit=8)
    found = any(f.severity > 0 for f in (*findings, *(recipes.findings if recipes else ())))
    sys.exit(1 if found or any(h.state.value == "red" for h in health) else 0)


def _env_json(facts: Any, findings: Any, health: Any, recipes: Any, lang: str) -> dict[str, Any]:
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port import render

    return {
        "schema": "gfxgraph-port-env/1",
        "torch": {"version": facts.torch_version, "build": facts.torch_build},
        "devices": list(facts.devices),
        "has_kfd": facts.has_kfd,
        "container": facts.container,
        "python": facts.python,
        "variables": dict(facts.variables),
        "findings": [{"rule": f.rule, "severity": f.severity.label, "values": dict(f.values)} for f in findings],
        "doctor": [{"name": h.name, "state": h.state.value, "text": h.text(lang), "fix": h.fix} for h in health],
        "recipes": render.as_json(recipes, lang=lang, guarded=False)["findings"] if recipes else [],
    }


def _env_screen(facts: Any, findings: Any, health: Any, lang: str) -> None:
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port.model import fill
    from gfxgraph.port.phases import word
    from gfxgraph.port.registry import find

    click.echo(f"torch {facts.torch_version or '-'} ({facts.torch_build or word('not_installed', lang)})")
    click.echo(f"GPU   {', '.join(facts.devices) or '-'}" + (f"  ({facts.container})" if facts.container else ""))
    for h in health:
        if h.state.value != "green":
            click.echo(f"{'FAIL' if h.state.value == 'red' else 'warn'}  {h.name}: {h.text(lang)}")
            if h.fix:
                click.echo(f"      {h.fix}")
    for f in findings:
        loaded = find(f.rule)
        assert loaded is not None
        text = loaded.rule.text(lang)
        click.echo(f"\n{word(f.severity.label, lang)} {f.rule} {f.code} · {text.title}")
        click.echo(f"  {fill(text.what, f.values)}")
        click.echo(f"  {word('why', lang)}: {text.why}")
        click.echo(f"  {word('do', lang)}: {text.do}")
    if not findings:
        click.echo(word("clean", lang))


@command.command("pip", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--check", is_flag=True, help="Only show what would happen.")
def pip_command(arguments: tuple[str, ...], check: bool) -> None:
    """Run pip install, unless it would replace an installed ROCm torch.

    gfxgraph port pip -- install PACKAGE...
    """
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.port import pip_guard

    try:
        judged = pip_guard.judge(arguments)
    except pip_guard.PipGuardError as error:
        _fail(error)
        return
    for change in judged.changes:
        click.echo(
            f"would install {change.name} {change.version}" + ("" if change.is_rocm else " (not a ROCm build)")
        )
    if judged.refused:
        click.echo(f"refused: torch {judged.installed} here is a ROCm build and would be replaced", err=True)
        click.echo(f"do: add --no-deps, or constrain it: -c a file with torch=={judged.installed}", err=True)
        sys.exit(1)
    if not check:
        sys.exit(pip_guard.install(arguments))


@command.group("verify")
def verify_group() -> None:
    """Golden vectors recorded on one machine and compared on another; static and build checks."""


SHAPE = click.option("--shape", "shapes", multiple=True, metavar="BxSxH", help="Input shape; repeatable.")
DEVICE = click.option("--device", default="cuda", show_default=True)


@verify_group.command("record")
@click.argument("target", metavar="FILE.py:FUNCTION")
@click.option("--out", default="golden.pt", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@SHAPE
@DEVICE
def record_command(target: str, out: str, dtype: str, seed: int, shapes: tuple[str, ...], device: str) -> None:
    """Record golden vectors of what FUNCTION builds."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.rocm import golden

    try:
        chosen = [tuple(int(p) for p in s.split("x")) for s in shapes] or golden.SHAPES
        data = golden.record(golden.load_target(target), dtype=dtype, device=device, seed=seed, shapes=chosen)
        golden.save(data, out)
    except (golden.GoldenError, ValueError) as error:
        _fail(error)
        return
    click.echo(f"wrote {out}: {len(data['cases'])} shapes in {dtype} on {data['made_on']['device']}")


@verify_group.command("run")
@click.argument("path", default=".")
@ARCH
@click.option("--golden", "golden_path", metavar="FILE", help="Golden vectors to compare with.")
@click.option("--target", metavar="FILE.py:FUNCTION", help="What the vectors were recorded from.")
@click.option("--iterations", type=int, default=100, show_default=True, help="Stability runs a shape.")
@click.option("--build", metavar="COMMAND", help="Build command to run in PATH.")
@click.option("--json", "json_path", metavar="FILE")
@click.option("--html", "html_path", metavar="FILE")
@DEVICE
def verify_command(
    path: str,
    arch: str | None,
    golden_path: str | None,
    target: str | None,
    iterations: int,
    build: str | None,
    json_path: str | None,
    html_path: str | None,
    device: str,
) -> None:
    """Check a port: static, build, and numbers where golden vectors are given."""
    # lazily: the parsers are an extra, and help must be there without them
    from gfxgraph.hardware import checks as checks_of
    from gfxgraph.port import audit as auditing
    from gfxgraph.port import env, verify

    numerics = None
    try:
        report = auditing.audit(path, archs=_archs(arch))
        variables = env.gather(checks_of.Site()).variables
        checks = [
            *verify.static_checks(report),
            *verify.environment_checks(variables),
            verify.build_check(build, path),
        ]
        if golden_path and target:
            # lazily: the parsers are an extra, and help must be there without them
            from gfxgraph.rocm import golden

            try:
                numerics = golden.compare(
                    golden.load_target(target), golden.load(golden_path), device=device, iterations=iterations
                )
            except golden.GoldenError as error:
                _fail(error)
    except (auditing.AuditError, OSError) as error:
        _fail(error)
        return
    data = verify.report(checks, numerics)
    verify.write(data, json_path, html_path)
    for c in checks:
        click.echo(f"{c.outcome:8} {c.name}: {c.detail}")
    for row in numerics["cases"] if numerics else []:
        shape = "x".join(map(str, row["shape"]))
        state = "passed" if row["passed"] else "failed"
        layer = f", first layer that differs: {row['first_layer']}" if row["first_layer"] else ""
        steady = row["stability"]
        runs = f"; bits changed in {steady['n_changed']} of {steady['iterations']} runs"
        click.echo(f"{state:8} numerics {shape}: largest error {row['max_abs_error']:.3g}{layer}{runs}")
        trained = row["training"]
        said = trained["reason"] or f"loss off by {trained['loss_error']:.2g}"
        first = f", first gradient that differs: {trained['first_gradient']}" if trained["first_gradient"] else ""
        click.echo(f"{trained['outcome']:8} loss and gradients {shape}: {said}{first}")
        times = f"first run {row['first_run_s']:g} s (compiling and tuning), next {row['next_run_s']:g} s"
        click.echo(f"{'':8} {times}")
    for name, file in numerics["loaded"].items() if numerics else ():
        click.echo(f"loaded   {name}: {file}")
    if numerics is None:
        click.echo("skipped  numerics: no --golden and --target")
    sys.exit(0 if data["passed"] else 1)
